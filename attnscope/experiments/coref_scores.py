"""What `coref --data` returns: every head on a labelled set, as a document and as rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import attnscope
from attnscope.scoring.estimate import Scores, finite
from attnscope.scoring.rules import UNCLASSIFIED
from attnscope.scoring.sums import Floats
from attnscope.types import Head

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Group:
    """Some of the items: which, how many, each head's share of right answers (L, H), and the
    nearest candidate's.
    """

    kind: str
    name: str
    n: int
    share: Floats
    nearest: float


@dataclass(frozen=True)
class Gap:
    """How much more often a head is right in one variant of a sentence than in its twin.

    shares are (L, H) by variant, over the n sentences that have both; gap, low and high (L, H) are
    those of the first less the second, with the 95 % interval over sentences.
    """

    first: str
    second: str
    n: int
    shares: dict[str, Floats]
    gap: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class HeldOut:
    """The best head on some items, and what it scores on others."""

    head: Head
    chosen_on: int
    there: float
    n: int
    held_out: float


@dataclass(frozen=True)
class CorefScores:
    """Every head on a labelled set. Arrays are (L, H)."""

    model: dict[str, Any]
    settings: dict[str, Any]
    n_items: int
    skipped: dict[str, int]
    cut: int  # texts that were cut to fit, and still hold their item
    baselines: dict[str, dict[str, Any]]
    forced: Scores
    strict: Scores
    nearest_wrong: Scores
    nearest_right: Scores
    against: Mapping[str, Floats]  # exact McNemar p by baseline
    labelled: NDArray[np.bool_]
    views: tuple[str, ...]
    view: NDArray[np.intp]  # where each head is read
    groups: tuple[Group, ...]
    gap: Gap | None
    held_out: tuple[HeldOut, ...]
    notes: tuple[str, ...] = ()

    @property
    def ranked(self) -> list[Head]:
        """Every head, the most often right first."""
        shape = self.forced.raw.shape
        order = np.argsort(-np.nan_to_num(self.forced.raw, nan=-1), axis=None, kind="stable")
        return [Head(int(n // shape[1]), int(n % shape[1])) for n in order]

    @property
    def reached(self) -> float:
        """What the best simple rule scores, and chance at least."""
        return max(0.5, *(float(one["raw"]) for one in self.baselines.values()))

    def to_json(self) -> dict[str, Any]:
        """The `attnscope.coref/1` document."""
        return {
            "schema": "attnscope.coref/1",
            "attnscope": attnscope.__version__,
            "model": self.model,
            "settings": self.settings,
            "items": self.n_items,
            "skipped": self.skipped,
            "truncated": self.cut,
            "notes": list(self.notes),
            "baselines": self.baselines,
            "groups": [
                {"kind": g.kind, "name": g.name, "n": g.n, "nearest": finite(g.nearest)}
                for g in self.groups
            ],
            "gap": None if self.gap is None else self._gap(self.gap),
            "held_out": [{**vars(one), "head": str(one.head)} for one in self.held_out],
            "heads": [self._entry(head) for head in sorted(self.ranked)],
        }

    def _gap(self, gap: Gap) -> dict[str, Any]:
        return {"first": gap.first, "second": gap.second, "n": gap.n, "variants": [*gap.shares]}

    def _entry(self, head: Head) -> dict[str, Any]:
        at = head.layer, head.head
        groups: dict[str, dict[str, float | None]] = {}
        for group in self.groups:
            groups.setdefault(group.kind, {})[group.name] = finite(group.share[at])
        return {
            "layer": head.layer,
            "head": head.head,
            "kv_head": head.head // int(self.model["n_heads"] // self.model["n_kv_heads"]),
            "forced_choice": share_entry(self.forced, head),
            "strict": share_entry(self.strict, head),
            "nearest_wrong": share_entry(self.nearest_wrong, head),
            "nearest_right": _without_bound(share_entry(self.nearest_right, head)),
            "live_mass": finite(self.forced.live_mass[at]),
            "label": "coreference" if self.labelled[at] else UNCLASSIFIED,
            "query": self.views[int(self.view[at])],
            "mcnemar": {name: finite(p[at]) for name, p in self.against.items()},
            "groups": groups,
            "gap": None if self.gap is None else _gap_entry(self.gap, at),
        }

    def to_frame(self) -> DataFrame:
        """One row per head."""
        from pandas import DataFrame

        rows = []
        for head in sorted(self.ranked):
            entry = self._entry(head)
            row = {name: entry[name] for name in ("layer", "head", "kv_head", "label", "query")}
            for name in ("forced_choice", "strict", "nearest_wrong", "nearest_right"):
                empty = dict.fromkeys(("raw", "chance", "low", "high", "n"))
                row |= {f"{name}_{key}": v for key, v in (entry[name] or empty).items()}
            row["live_mass"] = entry["live_mass"]
            row |= {f"p_{name.replace(' ', '_')}": p for name, p in entry["mcnemar"].items()}
            for kind, shares in entry["groups"].items():
                row |= {f"{kind}_{name}".replace(" ", "_"): v for name, v in shares.items()}
            for name, value in (entry["gap"] or {}).items():
                row |= {f"gap_{name}": value}
            rows.append(row)
        return DataFrame(rows)


def share_entry(scores: Scores, head: Head) -> dict[str, Any] | None:
    """One head's share of right answers, with its bounds on the scale of that share."""
    at = head.layer, head.head
    if scores.n[at] == 0:
        return None
    chance = float(scores.chance[at])
    bounds = {
        name: finite(min(max(float(getattr(scores, name)[at]) * (1 - chance) + chance, 0), 1))
        for name in ("low", "high", "bound")
    }
    return {
        "raw": finite(scores.raw[at]),
        "chance": finite(chance),
        **bounds,
        "n": int(scores.n[at]),
    }


def _without_bound(entry: dict[str, Any] | None) -> dict[str, Any] | None:
    """Where the nearest is right no label rests on a bound for all heads at once."""
    return entry and {name: value for name, value in entry.items() if name != "bound"}


def _gap_entry(gap: Gap, at: tuple[int, int]) -> dict[str, float | None]:
    shares = {name: finite(share[at]) for name, share in gap.shares.items()}
    return {
        **shares,
        "gap": finite(gap.gap[at]),
        "low": finite(gap.low[at]),
        "high": finite(gap.high[at]),
    }
