"""Rules: what a head must show to earn a label, read from a file of thresholds."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from attnscope.config_files import config_path
from attnscope.errors import UsageError, did_you_mean
from attnscope.plain import visible
from attnscope.scoring.roles import ROLES

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
EVIDENCE = ("text", "random")


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
    baselines: bool = False
    unless: tuple[str, ...] = ()
    rests_on: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The threshold as the settings of a document record it."""
        whole = asdict(self)
        return {name: list(v) if isinstance(v, tuple) else v for name, v in whole.items()}


def read_rules(path: Path | None = None, own_roles: Collection[str] = ()) -> tuple[Rule, ...]:
    """The rules of a labels file, ours by default.

    `own_roles` are roles of the user's; a rule may name one, and its name as a label.
    Raises UsageError for what is no such file, and for unknown keys, labels and roles.
    """
    if path is None:
        return _our_rules()
    return _read(path, own_roles)


@cache
def _our_rules() -> tuple[Rule, ...]:
    return _read(config_path("labels.yaml"), ())


def _read(path: Path, own_roles: Collection[str]) -> tuple[Rule, ...]:
    shown = visible(str(path))
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"There is no file {shown}.") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"Cannot read {shown}: {visible(reason)}.") from error
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"{shown} is not a list of rules: see configs/labels.yaml for one.")
    rules = []
    for number, entry in enumerate(entries, 1):
        try:
            rules.append(_rule(entry, own_roles))
        except UsageError as error:
            raise UsageError(f"{shown}, rule {number}: {error}") from error
    return tuple(rules)


def _rule(entry: Any, own_roles: Collection[str]) -> Rule:
    if not isinstance(entry, dict):
        raise UsageError("not a rule with label, role, minimum, evidence and source.")
    known = {one.name: one for one in fields(Rule)}
    for key in entry:
        _choice("key", key, known)
    missing = [name for name, one in known.items() if one.default is MISSING and name not in entry]
    if missing:
        raise UsageError(f"it lacks {', '.join(missing)}.")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
    rule = Rule(**values)
    for name in ("evidence", "unless"):
        if not isinstance(getattr(rule, name), tuple):
            raise UsageError(f"`{name}` takes a list, as in [text].")
    for name in ("contrast", "causal", "baselines"):
        if not isinstance(getattr(rule, name), bool):
            raise UsageError(f"`{name}` takes true or false.")
    for label in (rule.label, *rule.unless):
        _choice("label", label, [label for label in LABELS if label != UNCLASSIFIED], own_roles)
    _choice("role", rule.role, ROLES, own_roles)
    for kind in rule.evidence:
        _choice("evidence", kind, EVIDENCE)
    if rule.rests_on is not None:
        _choice("rests_on", rule.rests_on, RESTING_PLACES)
    if not rule.evidence:
        raise UsageError(f"`evidence` takes {' and '.join(EVIDENCE)}.")
    number = isinstance(rule.minimum, (int, float)) and not isinstance(rule.minimum, bool)
    if not number or not math.isfinite(rule.minimum):
        raise UsageError(f"minimum {visible(str(rule.minimum))!r} is no number.")
    if not 0 <= rule.minimum <= 1:
        raise UsageError(f"minimum {rule.minimum} is no lift: write a number from 0 to 1.")
    return rule


def _choice(what: str, given: Any, known: Collection[str], more: Collection[str] = ()) -> None:
    if given not in (*known, *more):
        shown = visible(str(given))
        raise UsageError(f"unknown {what} {shown!r}." + did_you_mean(str(given), [*known, *more]))
