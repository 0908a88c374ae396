"""Labels: which scores are strong enough to say what a head is for. None is "unclassified"."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from attnscope.config_files import config_path
from attnscope.errors import UsageError, did_you_mean
from attnscope.plain import visible
from attnscope.scoring.estimate import Scores
from attnscope.scoring.roles import ROLES

MIN_ROWS = 8  # rows that a contrast label needs where nothing is there to contrast with
UNCLASSIFIED = "unclassified"
RESTING = "resting"
LABELS = (  # in the order in which they are shown
    "previous-token",
    "next-token",
    "local",
    "current-token",
    "duplicate-token",
    "induction",
    "shifted-induction",
    "anti-induction",
    "coreference",
    RESTING,
    "broad",
    UNCLASSIFIED,
)
RESTING_PLACES = ("first-token", "special-token", "punctuation", "sink")


@dataclass(frozen=True)
class Rule:
    """One way to earn a label; the fields are explained in configs/labels.yaml."""

    label: str
    role: str
    minimum: float
    evidence: tuple[str, ...]
    source: str
    contrast: bool = False
    causal: bool = False
    unless: tuple[str, ...] = ()
    rests_on: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The threshold as the settings of a document record it."""
        return {
            "label": self.label,
            "role": self.role,
            "minimum": self.minimum,
            "evidence": [*self.evidence],
        }


@dataclass(frozen=True)
class Evidence:
    """Scores by role on one kind of text. `control` are those of the unrepeated tokens."""

    scores: Mapping[str, Scores]
    control: Mapping[str, Scores] | None = None


@dataclass(frozen=True)
class HeadLabels:
    """What one head is for, strongest first, and what it rests on if it does."""

    labels: tuple[str, ...]
    rests_on: tuple[str, ...]
    roles: tuple[str, ...]  # the role behind each label


def read_rules(path: Path | None = None) -> tuple[Rule, ...]:
    """The rules of a labels file, ours by default. Unknown keys, labels and roles are errors."""
    path = path or config_path("labels.yaml")
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"Cannot read {visible(str(path))}: {visible(reason)}.") from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"{visible(str(path))} is not a list of rules.")
    return tuple(_rule(entry, path) for entry in entries)


def _rule(entry: dict[str, Any], path: Path) -> Rule:
    known = {field.name for field in fields(Rule)}
    for key in entry:
        if key not in known:
            raise UsageError(
                f"{visible(str(path))}: unknown key {visible(str(key))!r}."
                + did_you_mean(str(key), known)
            )
    try:
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
        }
        rule = Rule(**values)
    except TypeError as error:
        raise UsageError(
            f"{visible(str(path))}: a rule needs label, role, minimum, evidence and source."
        ) from error
    for label in (rule.label, *rule.unless):
        if label not in LABELS:
            raise UsageError(
                f"{visible(str(path))}: unknown label {visible(str(label))!r}."
                + did_you_mean(str(label), LABELS)
            )
    if rule.rests_on not in (None, *RESTING_PLACES):
        raise UsageError(f"{visible(str(path))}: rests_on takes {', '.join(RESTING_PLACES)}.")
    if not isinstance(rule.minimum, (int, float)) or not math.isfinite(rule.minimum):
        raise UsageError(
            f"{visible(str(path))}: minimum {visible(str(rule.minimum))!r} is no number."
        )
    if rule.role not in ROLES:
        raise UsageError(
            f"{visible(str(path))}: unknown role {visible(str(rule.role))!r}."
            + did_you_mean(str(rule.role), ROLES)
        )
    if set(rule.evidence) - {"texts", "battery"} or not rule.evidence:
        raise UsageError(f"{visible(str(path))}: `evidence` takes texts and battery.")
    return rule


def label_heads(
    rules: Sequence[Rule], texts: Evidence, battery: Evidence | None, causal: bool
) -> list[list[HeadLabels]]:
    """The labels of every head, [layer][head]. Without a battery the texts must show it all."""
    shape = next(iter(texts.scores.values())).raw.shape
    held: list[tuple[Rule, NDArray[np.bool_], NDArray[np.float64]]] = []
    for rule in rules:
        if rule.causal and not causal:
            continue
        evidence = [
            texts if battery is None or name == "texts" else battery for name in rule.evidence
        ]
        if all(rule.role in one.scores for one in evidence):
            holds = np.logical_and.reduce([_holds(rule, one) for one in evidence])
            held.append((rule, holds, evidence[-1].scores[rule.role].lift))
    return [
        [_labels_of(held, layer, head) for head in range(shape[1])] for layer in range(shape[0])
    ]


def _holds(rule: Rule, evidence: Evidence) -> NDArray[np.bool_]:
    """Where the rule holds, (L, H): NaN holds nowhere. One text has no bound: its lift decides."""
    scores = evidence.scores[rule.role]
    bound = np.where(np.isnan(scores.low), scores.lift, scores.low)
    with np.errstate(invalid="ignore"):
        holds = bound >= rule.minimum
        if rule.contrast and evidence.control is None:  # texts alone: at least so many chances
            holds &= scores.n >= MIN_ROWS
        elif rule.contrast and evidence.control is not None:
            without = np.nan_to_num(evidence.control[rule.role].raw)
            holds &= scores.raw - without >= rule.minimum
    return np.asarray(holds)


def _labels_of(
    held: Sequence[tuple[Rule, NDArray[np.bool_], NDArray[np.float64]]], layer: int, head: int
) -> HeadLabels:
    won = [(lift[layer, head], rule) for rule, holds, lift in held if holds[layer, head]]
    names = {rule.label for _, rule in won}
    won = [(lift, rule) for lift, rule in won if not names & set(rule.unless)]
    # What a head does comes before where it rests when it has nothing to do.
    won.sort(key=lambda pair: (pair[1].label == RESTING, -pair[0]))
    strongest: dict[str, str] = {}
    for _, rule in won:
        strongest.setdefault(rule.label, rule.role)
    rests = tuple(rule.rests_on for _, rule in won if rule.rests_on is not None)
    return HeadLabels(tuple(strongest), rests, tuple(strongest.values()))
