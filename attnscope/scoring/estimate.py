"""From sums to scores: raw, chance, lift, sink-free, and bounds from resampling texts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from attnscope.scoring.sums import Floats, HeadSums

RESAMPLES = 2000
FAMILY_ERROR = 0.05  # chance that any bound of a family is wrong, Westfall and Young 1993
LEAST = 0.2  # no label of ours asks for less lift; heads that are FAR errors below it are no part
FAR = 4.0  # of the family: no bound of theirs could be mistaken for one (Hansen 2005)
_STILL = 1e-9  # a lift that moves less over the resamples is the same in every text


@dataclass(frozen=True)
class Scores:
    """One question over all heads. Arrays are (L, H), NaN where there is nothing to score.

    raw is the mean share of attention on the targets; chance that of a uniform head;
    lift = (raw - chance) / (1 - chance). low and high bound the lift of this head and role (95 %);
    bound is lower: it holds for all heads and roles at once. All three are NaN with one text.
    sink_free and sink_free_chance are raw and chance among what is not parked on resting places,
    live_mass. n is the number of rows.
    """

    raw: Floats
    chance: Floats
    lift: Floats
    low: Floats
    high: Floats
    bound: Floats
    sink_free: Floats
    sink_free_chance: Floats
    live_mass: Floats
    n: NDArray[np.int64]

    def entry(self, layer: int, head: int) -> dict[str, float | int | None] | None:
        """One head's numbers for a document; None where there is nothing to score."""
        if self.n[layer, head] == 0:
            return None
        values = {name: finite(getattr(self, name)[layer, head]) for name in NUMBERS}
        return {**values, "n": int(self.n[layer, head])}


NUMBERS = tuple(f.name for f in fields(Scores) if f.name != "n")


def estimate(
    sums: HeadSums,
    names: Sequence[str] | None = None,
    *,
    seed: int = 0,
    error: float = FAMILY_ERROR,
    tested: Collection[str] | None = None,
) -> dict[str, Scores]:
    """Score questions (all of them by default), which are one family with the heads.

    Where `tested` names those that labels rest on, they are one family and the others another: what
    decides nothing here need not widen the bounds of what does.

    The intervals resample texts, the same way for every head and question. `bound` is the lift less
    c standard errors, where c is what the greatest studentised deviation over heads and questions
    stays below in all but `error` of the resamples (max-T). A question that only one text answers
    has no interval.
    A lift without room above chance (every row sees only its target) is NaN.
    """
    names = sums.names if names is None else names
    draws = resamples(len(sums), seed) if len(sums) > 1 else None
    found: dict[str, dict[str, Floats]] = {}
    deviations: dict[str, Floats] = {}
    spread: dict[str, Floats] = {}
    for name in names:
        one = _Question.of(sums, name)
        found[name] = _measure(one)
        if draws is not None and one.n_asked > 1:
            found[name] |= _percentiles(one.lifts(draws))
            spread[name], deviations[name] = one.studentised(draws, found[name]["lift"])
    ours = [name for name in spread if tested is None or name in tested]
    for family in (ours, [name for name in spread if name not in ours]):
        multiple = _multiple([deviations[name] for name in family], error)
        for name in family:
            found[name]["bound"] = found[name]["lift"] - multiple * spread[name]
    return {name: _scores(found[name], sums.of(name)) for name in names}


def _multiple(deviations: Sequence[Floats], error: float) -> float:
    """How many standard errors the greatest of these stays below, in all but `error` of draws."""
    if not deviations:
        return 0.0
    greatest = np.max(deviations, axis=0)
    known = greatest[np.isfinite(greatest)]  # none where no head moves at all
    return max(float(np.quantile(known, 1 - error, method="higher")), 0.0) if len(known) else 0.0


def score(sums: HeadSums, name: str, seed: int = 0) -> Scores:
    """One question as a family of its own."""
    return estimate(sums, [name], seed=seed)[name]


def difference(
    before: HeadSums, after: HeadSums, name: str, seed: int = 0
) -> tuple[Floats, Floats, Floats]:
    """Lift after less lift before, and its 95 % interval over the same texts, (L, H) each.

    The interval is NaN where there is one text, or where the texts are not as many.
    """
    one, other = _Question.of(before, name), _Question.of(after, name)
    moved = _measure(other)["lift"] - _measure(one)["lift"]
    if len(before) != len(after) or min(one.n_asked, other.n_asked) < 2:
        return moved, np.full_like(moved, np.nan), np.full_like(moved, np.nan)
    draws = resamples(len(before), seed)
    bounds = _percentiles(other.lifts(draws) - one.lifts(draws))
    return moved, bounds["low"], bounds["high"]


def sign_test(wins: NDArray[np.int64], losses: NDArray[np.int64]) -> Floats:
    """The two-sided exact chance of so uneven a split, were both sides equally likely.

    On answers that are right or wrong it is McNemar's exact test (McNemar 1947) of two that
    answered the same items: only those count where one is better.
    """
    most = int((wins + losses).max(initial=0))
    logs = np.concatenate([[0.0], np.log(np.arange(1, most + 1)).cumsum()])  # ln n!
    found = np.ones(wins.shape)
    for at in np.ndindex(wins.shape):
        n, k = int(wins[at] + losses[at]), np.arange(int(min(wins[at], losses[at])) + 1)
        terms = logs[n] - logs[k] - logs[n - k] - n * np.log(2)
        found[at] = min(1.0, 2 * float(np.exp(terms).sum()))
    return found


def mean(sums: HeadSums, name: str) -> Floats:
    """The mean over rows of a question without chance, (L, H); NaN where no row was asked."""
    one = sums.of(name)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(one.raw[..., 0].sum(0) / one.rows[..., 0].sum(0)[:, None])


def finite(value: float) -> float | None:
    """The number for a document: None where it is not finite."""
    return float(value) if np.isfinite(value) else None


@dataclass(frozen=True)
class _Question:
    """The sums of one question: raw (N, L, H), chance and rows (N, L)."""

    raw: Floats
    chance: Floats
    rows: NDArray[np.int64]

    @classmethod
    def of(cls, sums: HeadSums, name: str) -> _Question:
        one = sums.of(name)
        return cls(one.raw[..., 0], one.chance[..., 0], one.rows[..., 0])

    @property
    def n_asked(self) -> int:
        """How many texts have a row that is asked: one alone says nothing of others."""
        return int((self.rows > 0).any(1).sum())

    def means(self, weights: Floats) -> tuple[Floats, Floats]:
        """raw and chance, (draws, L, H) and (draws, L, 1); texts count as often as weights say."""
        total = np.tensordot(weights, self.rows, 1)[..., None]  # (draws, L, 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            raw = np.tensordot(weights, self.raw, 1) / total  # (draws, L, H)
            return raw, np.tensordot(weights, self.chance, 1)[..., None] / total

    def lifts(self, weights: Floats) -> Floats:
        """The lift in each draw, (draws, L, H)."""
        return _lift(*self.means(weights))

    def studentised(self, weights: Floats, lift: Floats) -> tuple[Floats, Floats]:
        """The standard error of each lift (L, H), and each draw's greatest deviation, (draws,).

        Every draw is measured by its own standard error (the bootstrap-t, Efron 1981), that of a
        ratio of sums: the error itself is uncertain, and goes up with the lift where texts are
        skewed. A draw of hardly more than one text would have none; it gets a tenth of the whole's.
        """
        room = self.rows - self.chance  # (N, L)
        left = self.raw - self.chance[..., None] - lift * room[..., None]  # (N, L, H)
        spread = np.full_like(lift, np.nan)
        greatest = np.full(len(weights), -np.inf)
        for layer in range(lift.shape[0]):  # one by one: a draw of every head is large
            apart, free = left[:, layer], room[:, layer]  # (N, H), (N,)
            total = weights @ free  # (draws,)
            with np.errstate(invalid="ignore", divide="ignore"):
                error = np.sqrt((apart**2).sum(0)) / free.sum()  # (H,)
                moved = (weights @ apart) / total[:, None]  # (draws, H)
                squares = weights @ apart**2 - 2 * moved * (weights @ (apart * free[:, None]))
                squares += moved**2 * (weights @ free**2)[:, None]
                own = np.sqrt(squares.clip(min=0)) / total[:, None]  # (draws, H)
                above = moved / np.maximum(own, error / 10)
            spread[layer] = error
            matters = (error > _STILL) & (lift[layer] + FAR * error >= LEAST)  # (H,)
            above = np.where(np.isfinite(above) & matters, above, -np.inf)
            greatest = np.maximum(greatest, above.max(1, initial=-np.inf))
        return spread, greatest


def _lift(raw: Floats, chance: Floats) -> Floats:
    room = 1 - chance
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(room > 1e-12, (raw - chance) / room, np.nan)


def _measure(one: _Question) -> dict[str, Floats]:
    raw, chance = (part[0] for part in one.means(np.ones((1, len(one.raw)))))
    return {"raw": raw, "chance": np.broadcast_to(chance, raw.shape), "lift": _lift(raw, chance)}


def _scores(found: dict[str, Floats], one: HeadSums) -> Scores:
    nothing = np.full_like(found["lift"], np.nan)
    n = np.broadcast_to(one.rows[..., 0].sum(0)[:, None], nothing.shape)
    free, chance, live = (a[..., 0].sum(0) for a in (one.free, one.free_chance, one.live))
    with np.errstate(invalid="ignore", divide="ignore"):
        there = np.where(chance > 0, live, np.nan)  # no target but resting places: nothing to say
        return Scores(
            raw=found["raw"],
            chance=found["chance"],
            lift=found["lift"],
            low=found.get("low", nothing),
            high=found.get("high", nothing),
            bound=found.get("bound", nothing),
            sink_free=free / there,
            sink_free_chance=chance / there,
            live_mass=np.where(n > 0, live, np.nan) / n,
            n=n,
        )


def resamples(n_texts: int, seed: int) -> Floats:
    """How often each text is drawn in each resample, (B, N)."""
    generator = np.random.default_rng(seed)
    share = np.full(n_texts, 1 / n_texts)
    return generator.multinomial(n_texts, share, size=RESAMPLES).astype(float)


def _percentiles(lifts: Floats) -> dict[str, Floats]:
    """The middle 95 % over draws. Draws without a single row to score are left out."""
    known = np.isfinite(lifts)
    low = np.full(lifts.shape[1:], np.nan)
    high = low.copy()
    if known.all():
        low, high = np.percentile(lifts, [2.5, 97.5], axis=0)
    elif (some := known.any(0)).any():
        low[some], high[some] = np.nanpercentile(lifts[:, some], [2.5, 97.5], axis=0)
    return {"low": low, "high": high}
