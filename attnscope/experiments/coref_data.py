"""coref --data: the forced choice and the strict one, of every head, on a labelled set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from attnscope.errors import UsageError
from attnscope.experiments.coref_asked import Asked
from attnscope.experiments.coref_items import Counted, Heard, Prepared, hear, prepare
from attnscope.experiments.coref_scores import CorefScores, Gap, Group, HeldOut, share_entry
from attnscope.models.load import Model
from attnscope.scoring.coreference import (
    NEAREST_WRONG,
    ROLE,
    Answers,
    Places,
    rule_answers,
    views,
)
from attnscope.scoring.estimate import Scores, difference, score, sign_test
from attnscope.scoring.labels import Evidence, judge
from attnscope.scoring.rules import Rule, read_rules
from attnscope.scoring.sums import Floats
from attnscope.types import Head, Progress, no_progress

FEWEST = 50  # items that a label needs: of 144 coins the luckiest has .68 of 50 right
_DISTANCES = ((5, "up to 5 words"), (10, "6 to 10"), (20, "11 to 20"), (40, "21 to 40"))
_FARTHEST = "over 40"
_SIDES = (("pro", "anti"), ("male", "female"))


def score_set(
    model: Model,
    asked: Asked,
    *,
    rules: Sequence[Rule] | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> CorefScores:
    """Score every head on a labelled set.

    Raises UsageError when no item can be used, CheckpointError where the tokenizer gives no
    offsets, RunError when memory would not be enough.
    """
    seen = _Seen.of(model, asked, progress)
    scores = {name: seen.score(counted, seed) for name, counted in seen.by_nearest().items()}
    rivals = rule_answers(seen.prepared.items)
    baselines = {name: seen.baseline(given, seed) for name, given in rivals.items()}
    rules = [rule for rule in (rules or read_rules()) if rule.role == ROLE]
    evidence = Evidence(
        {ROLE: scores["all"], NEAREST_WRONG: scores["wrong"]},
        baselines={ROLE: {name: one["raw"] for name, one in baselines.items()}},
    )
    verdicts = judge(rules, {"text": evidence}, model.shape.causal)
    enough = seen.n_texts >= FEWEST
    notes = []
    if not enough:
        notes.append(f"Fewer than {FEWEST} different texts are too little evidence for a label.")
    if seen.n_texts < seen.n_items:
        notes.append(
            f"The {seen.n_items} items are of {seen.n_texts} different texts (twins count as one): "
            "intervals and p rest on these."
        )
    return CorefScores(
        model=model.describe(),
        settings={
            **model.settings(seed),
            "format": asked.main.format,
            "query": asked.query,
            "chosen_on": seen.chosen_on,
            "thresholds": [rule.to_json() for rule in rules],
            "fewest_items": FEWEST,
        },
        n_items=seen.n_items,
        skipped=dict(Counter(asked.main.skipped) + Counter(seen.prepared.skipped)),
        cut=seen.prepared.cut,
        baselines=baselines,
        forced=scores["all"],
        strict=seen.strict(seed),
        nearest_wrong=scores["wrong"],
        nearest_right=scores["right"],
        against={name: seen.against(given) for name, given in rivals.items()},
        labelled=np.any([verdict.holds for verdict in verdicts], axis=0) & enough,
        views=views(model.shape.causal),
        view=seen.usual_view,
        groups=tuple(seen.groups()),
        gap=seen.gap(seed),
        held_out=tuple(seen.held_out()),
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class _Seen:
    """The answers of every head to the items, each read in the view chosen for it elsewhere.

    `twins` are answers to the other variants of the same sentences, `development` those of the
    items that views were chosen on.
    """

    prepared: Prepared
    heard: Heard
    view: Places
    usual_view: Places  # (L, H)
    chosen_on: str | None
    twins: tuple[Prepared, Answers] | None
    development: Answers | None

    @classmethod
    def of(cls, model: Model, asked: Asked, progress: Progress) -> _Seen:
        """Read the items, and whatever views are chosen on and the gap needs."""
        chosen, select_on, twins = asked.query == "chosen", asked.select_on, asked.twins
        n_views = len(views(model.shape.causal)) if chosen else 1
        prepared = prepare(model, asked.main.questions, progress)
        if not prepared.items:
            reasons = Counter(asked.main.skipped) + Counter(prepared.skipped)
            told = "; ".join(f"{n} times {reason}" for reason, n in reasons.items())
            raise UsageError(f"No item can be used: {told or 'the file holds none'}.")
        heard = hear(model, prepared, n_views, progress)
        development, chosen_on = None, None
        by_fold = np.stack([heard.readings.best_view()] * 2)  # (2, L, H)
        if select_on is not None:
            before = prepare(model, select_on.questions, progress)
            if not before.items:
                raise UsageError("No item of --select-on can be used.")
            earlier = hear(model, before, n_views, progress).readings
            by_fold = np.stack([earlier.best_view()] * 2)
            development, chosen_on = earlier.at(by_fold[0]), "another file"
        elif chosen:
            by_fold = heard.readings.best_elsewhere(prepared.folds())
            chosen_on = "the other half of the items"
        other = None
        if twins is not None and (beside := prepare(model, twins.questions, progress)).items:
            answers = hear(model, beside, n_views, progress).readings
            other = beside, answers.at(by_fold[beside.folds()])
        usual = heard.readings.best_view() if select_on is None else by_fold[0]
        view = by_fold[prepared.folds()]
        return cls(prepared, heard, view, usual, chosen_on, other, development)

    @property
    def n_items(self) -> int:
        """How many items are scored."""
        return len(self.prepared.items)

    @property
    def n_texts(self) -> int:
        """Of how many different texts they are: units, which are resampled."""
        return int(self.prepared.units().max()) + 1

    @cached_property
    def answers(self) -> Answers:
        """What every head answers."""
        return self.heard.readings.at(self.view)

    def by_nearest(self) -> dict[str, Counted]:
        """All items, and those whose nearest candidate is right or wrong."""
        right = np.array([item.nearest == item.gold for item in self.prepared.items])
        return {"all": np.ones_like(right), "right": right, "wrong": ~right}

    def score(self, counted: Counted, seed: int) -> Scores:
        """The forced choice on some of the items; heads are one family (max-T)."""
        unit = self.prepared.units()
        return score(self.answers.sums(ROLE, unit, unit.max() + 1, counted), ROLE, seed)

    def strict(self, seed: int) -> Scores:
        """The strict choice on all items."""
        return score(self.heard.strict_sums(ROLE, self.view, self.prepared.units()), ROLE, seed)

    def baseline(self, given: Floats, seed: int) -> dict[str, Any]:
        """A simple rule's score, as if it were the only head."""
        won = given[:, None, None]
        alone = Answers(won, won, won, self.answers.n_candidates)
        unit = self.prepared.units()
        scores = score(alone.sums(ROLE, unit, unit.max() + 1), ROLE, seed)
        entry = share_entry(scores, Head(0, 0)) or {}
        return {name: entry[name] for name in ("raw", "low", "high", "n")}

    def against(self, given: Floats) -> Floats:
        """McNemar's p of every head against a rule, by text, (L, H)."""
        better = np.zeros((self.n_texts, *self.answers.won.shape[1:]))
        np.add.at(better, self.prepared.units(), self.answers.won - given[:, None, None])
        return sign_test((better > 0).sum(0), (better < 0).sum(0))

    def groups(self) -> Iterator[Group]:
        """Shares by what the nearest candidate is, by distance and by pronoun."""
        questions = self.prepared.questions
        nearest = self.by_nearest()["right"]
        kinds = {
            "nearest": ["right" if right else "wrong" for right in nearest],
            "distance": [_distance(question.distance) for question in questions],
            "pronoun": [question.pronoun.lower() for question in questions],
        }
        orders = {"nearest": ["right", "wrong"], "distance": [*dict(_DISTANCES).values()]}
        orders["distance"].append(_FARTHEST)
        for kind, names in kinds.items():
            common = [name for name, _ in Counter(names).most_common()]
            for name in orders.get(kind, common):
                here = np.array(names) == name
                if here.any():
                    share = self.answers.won[here].mean(0)
                    yield Group(kind, name, int(here.sum()), share, float(nearest[here].mean()))

    def gap(self, seed: int) -> Gap | None:
        """The shares in either variant of the sentences that have both; None without variants."""
        asked = [(q.unit, q.variant) for q in self.prepared.questions]
        won = self.answers.won
        if self.twins is not None:
            beside, answers = self.twins
            asked += [(q.unit, q.variant) for q in beside.questions]
            won = np.concatenate([won, answers.won])
        variants = sorted({variant for _, variant in asked if variant})
        sides = next((pair for pair in _SIDES if {*pair} <= {*variants}), tuple(variants))
        if len(sides) != 2:
            return None
        whole = [{unit for unit, variant in asked if variant == side} for side in sides]
        units = {unit: n for n, unit in enumerate(sorted(whole[0] & whole[1]))}
        if not units:
            return None
        shares, sums = {}, []
        for variant in dict.fromkeys((*sides, *variants)):
            here = np.array([one == variant and unit in units for unit, one in asked])
            shares[variant] = won[here].mean(0)
            at = np.array([units[unit] for (unit, _), use in zip(asked, here, strict=True) if use])
            part = won[here]
            answers = Answers(part, part, part, np.full(len(part), 2))
            sums.append(answers.sums(ROLE, at, len(units)))
        # Lift is twice what a share is above one half.
        moved = (part / 2 for part in difference(sums[1], sums[0], ROLE, seed))
        return Gap(sides[0], sides[1], len(units), shares, *moved)

    def held_out(self) -> Iterator[HeldOut]:
        """The best head on the development items, tried on the others."""
        won = self.answers.won
        if self.development is not None:
            yield _held_out(self.development.won, won)
            return
        folds = self.prepared.folds()
        for here in (0, 1):
            if (folds == here).any() and (folds != here).any():
                yield _held_out(won[folds == here], won[folds != here])


def _held_out(development: Floats, others: Floats) -> HeldOut:
    shares = development.mean(0)
    layer, head = (int(n) for n in np.unravel_index(shares.argmax(), shares.shape))
    there, here = float(shares[layer, head]), float(others[:, layer, head].mean())
    return HeldOut(Head(layer, head), len(development), there, len(others), here)


def _distance(words: int) -> str:
    return next((name for most, name in _DISTANCES if words <= most), _FARTHEST)
