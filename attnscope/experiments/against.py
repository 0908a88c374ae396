"""against: two checkpoints of one shape, head by head: which labels changed, and by how much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import attnscope
from attnscope.errors import UsageError
from attnscope.experiments.heads_result import HeadsResult
from attnscope.plain import visible
from attnscope.scoring.estimate import difference, finite
from attnscope.scoring.roles import ROLES
from attnscope.scoring.sums import Floats, HeadSums
from attnscope.types import Head

if TYPE_CHECKING:
    from pandas import DataFrame

_SHAPE = {"n_layers": "layers", "n_heads": "heads", "n_kv_heads": "key/value heads"}


@dataclass(frozen=True)
class Change:
    """How one role's lift moved in one head, with the 95 % interval over the same texts."""

    role: str
    before: float
    after: float
    difference: float
    low: float
    high: float

    def to_json(self) -> dict[str, Any]:
        """The numbers; null where there is none."""
        return {name: finite(v) for name, v in vars(self).items() if name != "role"}


@dataclass(frozen=True)
class Comparison:
    """Labels of `before` and `after`, head by head; moved[role] holds difference, low, high."""

    before: HeadsResult
    after: HeadsResult
    moved: dict[str, tuple[Floats, Floats, Floats]]

    @property
    def changed(self) -> list[Head]:
        """Heads with another set of labels, in order."""
        return [
            head
            for head in self.before.heads
            if set(self.before.labels_of(head).labels) != set(self.after.labels_of(head).labels)
        ]

    def change(self, head: Head, role: str) -> Change:
        """How far a role moved in a head."""
        at = head.layer, head.head
        moved, low, high = (float(part[at]) for part in self.moved[role])
        before, after = (float(one.decisive(role).lift[at]) for one in (self.before, self.after))
        return Change(role, before, after, moved, low, high)

    def telling(self, head: Head) -> list[tuple[str, bool, Change]]:
        """The labels that came (True) or went, each with the role behind it."""
        one, other = self.before.labels_of(head), self.after.labels_of(head)
        ours = dict(zip(one.labels, one.roles, strict=True))
        theirs = dict(zip(other.labels, other.roles, strict=True))
        return [
            (label, label in theirs, self.change(head, role))
            for label, role in (ours | theirs).items()
            if (label in ours) != (label in theirs) and role in self.moved
        ]

    def to_json(self) -> dict[str, Any]:
        """The `attnscope.against/1` document."""
        return {
            "schema": "attnscope.against/1",
            "attnscope": attnscope.__version__,
            "model": self.before.model,
            "against": self.after.model,
            "settings": self.before.settings,
            "changed": len(self.changed),
            "heads": [self._entry(head) for head in self.before.heads],
        }

    def _entry(self, head: Head) -> dict[str, Any]:
        return {
            "layer": head.layer,
            "head": head.head,
            "labels": list(self.before.labels_of(head).labels),
            "labels_against": list(self.after.labels_of(head).labels),
            "lifts": {role: self.change(head, role).to_json() for role in self.moved},
        }

    def to_frame(self) -> DataFrame:
        """One row per head and role."""
        from pandas import DataFrame

        return DataFrame(
            {
                "layer": head.layer,
                "head": head.head,
                "labels": " ".join(self.before.labels_of(head).labels),
                "labels_against": " ".join(self.after.labels_of(head).labels),
                **vars(self.change(head, role)),
            }
            for head in self.before.heads
            for role in self.moved
        )


def check_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Raise UsageError when the heads of two models cannot be paired."""
    if any(one[name] != other[name] for name in (*_SHAPE, "d_head", "causal")):
        shapes = [
            f"{visible(model['id'])} has "
            + ", ".join(f"{model[name]} {what}" for name, what in _SHAPE.items())
            + f" of width {model['d_head']}"
            for model in (one, other)
        ]
        raise UsageError(f"--against pairs checkpoints of one shape: {'; '.join(shapes)}.")


def compare_heads(before: HeadsResult, after: HeadsResult, seed: int = 0) -> Comparison:
    """Pair the heads of two checkpoints. Raises UsageError when their shapes differ."""
    check_alike(before.model, after.model)
    moved = {}
    for role in [*ROLES, *(role.name for role in before.roles)]:
        one, other = _sums(before, role), _sums(after, role)
        if role in one.names and role in other.names:
            moved[role] = difference(one, other, role, seed)
    return Comparison(before, after, moved)


def _sums(result: HeadsResult, role: str) -> HeadSums:
    if result.random is not None and result.all_roles[role].home == "random":
        return result.random.sums
    return result.general.sums
