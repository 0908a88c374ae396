"""Labels: which scores are strong enough to say what a head is for. None is "unclassified"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from attnscope.scoring.coreference import NEAREST_WRONG
from attnscope.scoring.estimate import Scores
from attnscope.scoring.rules import RESTING, Rule
from attnscope.scoring.sums import Floats

MIN_ROWS = 8  # rows that a contrast label needs where nothing is there to contrast with
_MORE = 1e-9  # than a rule: what equals it, and rounding, does not beat it


@dataclass(frozen=True)
class Evidence:
    """Scores by role on one kind of text.

    `control` are those of the unrepeated tokens; `baselines` what simple rules score on the same
    items, by role.
    """

    scores: Mapping[str, Scores]
    control: Mapping[str, Scores] | None = None
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class HeadLabels:
    """What one head is for, strongest first, and what it rests on if it does."""

    labels: tuple[str, ...]
    rests_on: tuple[str, ...]
    roles: tuple[str, ...]  # the role behind each label


@dataclass(frozen=True)
class Check:
    """One condition of a rule on one kind of text, for every head: does `value` reach `least`?

    `what` says what the value is; arrays are (L, H).
    """

    what: str
    on: str
    value: Floats
    least: Floats

    @property
    def holds(self) -> NDArray[np.bool_]:
        """Where it is met; what cannot be scored meets nothing."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.value >= self.least)


@dataclass(frozen=True)
class Verdict:
    """A rule with all its conditions, and where it holds, (L, H)."""

    rule: Rule
    checks: tuple[Check, ...]
    lift: Floats

    @property
    def holds(self) -> NDArray[np.bool_]:
        """Where every condition is met."""
        return np.asarray(np.all([check.holds for check in self.checks], axis=0))


def judge(
    rules: Sequence[Rule], evidence: Mapping[str, Evidence], causal: bool
) -> tuple[Verdict, ...]:
    """Try every rule on every head. `evidence` is by kind of text: text, random.

    A rule whose kind of text was not read rests on `text` alone; one whose role was not scored
    there is not tried.
    """
    found = []
    for rule in rules:
        kinds = dict.fromkeys(kind if kind in evidence else "text" for kind in rule.evidence)
        tried = [(kind, evidence[kind]) for kind in kinds]
        if (rule.causal and not causal) or any(rule.role not in one.scores for _, one in tried):
            continue
        checks = [check for kind, one in tried for check in _checks(rule, kind, one)]
        found.append(Verdict(rule, tuple(checks), tried[-1][1].scores[rule.role].lift))
    return tuple(found)


def by_mean(evidence: Evidence) -> Evidence:
    """The same scores without bounds: every lift decides by itself, as that of one text does."""

    scores = {
        name: replace(one, bound=np.full_like(one.bound, np.nan))
        for name, one in evidence.scores.items()
    }
    return replace(evidence, scores=scores)


def _checks(rule: Rule, kind: str, evidence: Evidence) -> list[Check]:
    scores = evidence.scores[rule.role]
    least = np.full(scores.lift.shape, float(rule.minimum))
    alone = bool(np.isnan(scores.bound).all())  # one text has no bound: its lift decides
    bound = scores.lift if alone else scores.bound
    checks = [Check("lift" if alone else "lower bound of the lift", kind, bound, least)]
    if rule.contrast and evidence.control is None:
        rows = scores.n.astype(float)
        checks.append(Check("rows with a target", kind, rows, np.full_like(rows, MIN_ROWS)))
    elif rule.contrast and evidence.control is not None:
        without = np.nan_to_num(evidence.control[rule.role].raw)
        checks.append(Check("score above unrepeated tokens", kind, scores.raw - without, least))
    if rule.baselines:
        share = bound * (1 - scores.chance) + scores.chance
        for name, reached in evidence.baselines.get(rule.role, {}).items():
            above = np.full_like(least, reached + _MORE)
            checks.append(Check(f"lower bound against “{name}”", kind, share, above))
        wrong = evidence.scores[NEAREST_WRONG]
        low = wrong.lift if alone else wrong.low
        some = np.full_like(low, np.nextafter(0, 1))
        checks.append(Check("lower bound of the lift where the nearest is wrong", kind, low, some))
    return checks


def labels_of(verdicts: Sequence[Verdict], shape: tuple[int, int]) -> list[list[HeadLabels]]:
    """The labels of every head, [layer][head], of so many layers and heads."""
    held = [(verdict, verdict.holds) for verdict in verdicts]
    return [
        [
            _head_labels([verdict for verdict, holds in held if holds[layer, head]], layer, head)
            for head in range(shape[1])
        ]
        for layer in range(shape[0])
    ]


def _head_labels(won: list[Verdict], layer: int, head: int) -> HeadLabels:
    names = {verdict.rule.label for verdict in won}
    kept = [verdict for verdict in won if not names & set(verdict.rule.unless)]
    # What a head does comes before where it rests when it has nothing to do.
    kept.sort(key=lambda one: (one.rule.label == RESTING, -one.lift[layer, head]))
    strongest: dict[str, str] = {}
    for verdict in kept:
        strongest.setdefault(verdict.rule.label, verdict.rule.role)
    rests = tuple(one.rule.rests_on for one in kept if one.rule.rests_on is not None)
    return HeadLabels(tuple(strongest), rests, tuple(strongest.values()))
