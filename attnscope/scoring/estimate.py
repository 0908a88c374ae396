"""From sums to scores: raw, chance, lift, and an interval from resampling texts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnscope.scoring.sums import Floats, HeadSums

RESAMPLES = 2000


@dataclass(frozen=True)
class Scores:
    """One question over all heads. Arrays are (L, H), NaN where there is nothing to score.

    raw is the mean share of attention on the targets; chance that of a uniform head;
    lift = (raw - chance) / (1 - chance). low and high bound the lift (95 %), NaN with one text.
    n is the number of rows, (L, H).
    """

    raw: Floats
    chance: Floats
    lift: Floats
    low: Floats
    high: Floats
    n: NDArray[np.int64]

    def entry(self, layer: int, head: int) -> dict[str, float | int | None] | None:
        """One head's numbers for a document; None where there is nothing to score."""
        if self.n[layer, head] == 0:
            return None
        values = {
            name: finite(getattr(self, name)[layer, head])
            for name in ("raw", "chance", "lift", "low", "high")
        }
        return {**values, "n": int(self.n[layer, head])}


def score(sums: HeadSums, name: str, seed: int = 0) -> Scores:
    """Score one question. The interval resamples texts, the same way for every head.

    A lift without room above chance (every row sees only its target) is NaN.
    """
    raw, chance, rows = sums.of(name)  # (N, L, H), (N, L), (N, L)
    everything = np.ones((1, len(sums)))
    raw_mean, chance_mean, lift = (part[0] for part in _estimate(everything, raw, chance, rows))
    low = high = np.full_like(lift, np.nan)
    if len(sums) > 1:
        draws = _resamples(len(sums), seed)
        _, _, lifts = _estimate(draws, raw, chance, rows)  # (B, L, H)
        with np.errstate(invalid="ignore"):
            low, high = _percentiles(lifts)
    n = np.broadcast_to(rows.sum(0)[:, None], lift.shape)
    return Scores(raw_mean, chance_mean, lift, low, high, n)


def mean(sums: HeadSums, name: str) -> Floats:
    """The mean over rows of a question without chance, (L, H); NaN where no row was asked."""
    raw, _, rows = sums.of(name)
    total = rows.sum(0)[:, None].astype(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(raw.sum(0) / total)


def _estimate(
    weights: Floats, raw: Floats, chance: Floats, rows: NDArray[np.int64]
) -> tuple[Floats, Floats, Floats]:
    """raw, chance and lift, each (draws, L, H), with texts counted as often as `weights` say."""
    total = np.tensordot(weights, rows, 1)[..., None]  # (draws, L, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        raw_mean = np.tensordot(weights, raw, 1) / total  # (draws, L, H)
        chance_mean = np.tensordot(weights, chance, 1)[..., None] / total  # (draws, L, 1)
        room = 1 - chance_mean
        lift = np.where(room > 1e-12, (raw_mean - chance_mean) / room, np.nan)
    return raw_mean, np.broadcast_to(chance_mean, raw_mean.shape), lift


def _resamples(n_texts: int, seed: int) -> Floats:
    """How often each text is drawn in each resample, (B, N)."""
    generator = np.random.default_rng(seed)
    share = np.full(n_texts, 1 / n_texts)
    return generator.multinomial(n_texts, share, size=RESAMPLES).astype(float)


def _percentiles(lifts: Floats) -> tuple[Floats, Floats]:
    """The middle 95 % over draws. Draws without a single row to score are left out."""
    known = np.isfinite(lifts)
    if known.all():
        low, high = np.percentile(lifts, [2.5, 97.5], axis=0)
        return low, high
    low = np.full(lifts.shape[1:], np.nan)
    high = low.copy()
    some = known.any(0)
    if some.any():
        low[some], high[some] = np.nanpercentile(lifts[:, some], [2.5, 97.5], axis=0)
    return low, high


def finite(value: float) -> float | None:
    """The number for a document: None where it is not finite."""
    return float(value) if np.isfinite(value) else None
