"""What `circuits` returns: heads and pairs of heads, as a document and as rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import attnscope
from attnscope.experiments.composition import KINDS, Compositions
from attnscope.experiments.own_weights import OwnWeights
from attnscope.scoring.estimate import finite
from attnscope.scoring.labels import HeadLabels
from attnscope.types import Head

if TYPE_CHECKING:
    from pandas import DataFrame

SIDES = 5  # sources of an induction head, targets of a previous-token head
FED = ("induction", "shifted-induction")
FEEDING = ("previous-token",)


@dataclass(frozen=True)
class Composition:
    """How much of what `source` writes `target` reads into its queries, keys or values.

    `z` is against a source turned at random, `z_among` against all pairs of the same kind.
    """

    kind: str
    source: Head
    target: Head
    score: float
    z: float
    z_among: float


@dataclass(frozen=True)
class CircuitsResult:
    """Every head's own weights and the pairs that were asked for.

    `family_z` is what the strongest of all pairs stays below in 95 % of models without circuits.
    """

    model: dict[str, Any]
    settings: dict[str, Any]
    own: OwnWeights
    compositions: Compositions
    family_z: float
    labels: list[list[HeadLabels]] | None
    source: tuple[Head, ...]
    target: tuple[Head, ...]
    kinds: tuple[str, ...]
    top_k: int
    notes: tuple[str, ...] = ()

    @property
    def heads(self) -> list[Head]:
        """Every head, in order."""
        n_layers, n_heads = self.model["n_layers"], self.model["n_heads"]
        return [Head(layer, head) for layer in range(n_layers) for head in range(n_heads)]

    @property
    def baseline(self) -> float:
        """The score that two heads have by chance, 1/sqrt(d_model)."""
        return float(self.model["d_model"] ** -0.5)

    @property
    def n_pairs(self) -> int:
        """How many pairs of heads in increasing layers there are."""
        n_layers, n_heads = self.model["n_layers"], self.model["n_heads"]
        return int(n_heads**2 * n_layers * (n_layers - 1) // 2)

    @cached_property
    def top(self) -> list[Composition]:
        """The strongest pairs asked for, by z."""
        return self.strongest(self.source, self.target, self.top_k, self.kinds)

    @cached_property
    def z_among(self) -> Tensor:
        """z in robust standard deviations from the median of its kind: (3, L, H, L, H)."""
        z = self.compositions.z
        flat = z.flatten(1)
        middle = flat.nanmedian(1, keepdim=True).values  # (3, 1)
        spread = 1.4826 * (flat - middle).abs().nanmedian(1, keepdim=True).values
        return ((flat - middle) / spread).view_as(z)

    def strongest(
        self,
        source: Sequence[Head] = (),
        target: Sequence[Head] = (),
        top_k: int = SIDES,
        kinds: Sequence[str] = KINDS,
    ) -> list[Composition]:
        """The strongest pairs from any of `source` to any of `target`; no head named: all."""
        z = self.compositions.z.clone()
        for kind, name in enumerate(KINDS):
            if name not in kinds:
                z[kind] = torch.nan
        for heads, ends in ((source, z), (target, z.permute(0, 3, 4, 1, 2))):
            if heads:
                out = torch.ones(ends.shape[1:3], dtype=torch.bool)
                for head in heads:
                    out[head.layer, head.head] = False
                ends[:, out] = torch.nan
        flat = z.flatten()
        order = flat.nan_to_num(-torch.inf).argsort(descending=True, stable=True)[:top_k]
        return [self._at(int(at)) for at in order if not bool(flat[at].isnan())]

    def _at(self, flat: int) -> Composition:
        kind, *ends = (int(n) for n in torch.unravel_index(torch.tensor(flat), self._shape))
        score, z = self.compositions.score.flatten()[flat], self.compositions.z.flatten()[flat]
        among = self.z_among.flatten()[flat]
        source, target = Head(*ends[:2]), Head(*ends[2:])
        return Composition(KINDS[kind], source, target, float(score), float(z), float(among))

    @property
    def _shape(self) -> torch.Size:
        return self.compositions.z.shape

    def labels_of(self, head: Head) -> tuple[str, ...]:
        """What the battery calls a head; nothing without it."""
        return () if self.labels is None else self.labels[head.layer][head.head].labels

    def named(self, labels: Sequence[str]) -> list[Head]:
        """The heads that have one of these labels."""
        return [head for head in self.heads if set(labels) & set(self.labels_of(head))]

    @cached_property
    def sources(self) -> dict[Head, list[Composition]]:
        """For each induction head, what it reads most of."""
        found = {head: self.strongest(target=[head]) for head in self.named(FED)}
        return {head: pairs for head, pairs in found.items() if pairs}

    @cached_property
    def targets(self) -> dict[Head, list[Composition]]:
        """For each previous-token head, what reads most of it."""
        found = {head: self.strongest(source=[head]) for head in self.named(FEEDING)}
        return {head: pairs for head, pairs in found.items() if pairs}

    def head_entry(self, head: Head) -> dict[str, Any]:
        """One head's own numbers for a document."""
        at = head.layer * int(self.model["n_heads"]) + head.head
        group = int(self.model["n_heads"] // self.model["n_kv_heads"])
        distance = self.own.distance[at]
        return {
            "layer": head.layer,
            "head": head.head,
            "kv_head": head.head // group,
            "labels": list(self.labels_of(head)) if self.labels is not None else None,
            "qk_norm": finite(self.own.qk_norm[at]),
            "ov_norm": finite(self.own.ov_norm[at]),
            "copying_eigenvalues": finite(self.own.copying[at]),
            "position_offset": None if distance is None else distance.offset,
            "position_share": None if distance is None else distance.share,
        }

    def pair_entry(self, pair: Composition) -> dict[str, Any]:
        """One pair for a document."""
        return {
            "kind": pair.kind,
            "source": str(pair.source),
            "target": str(pair.target),
            "score": pair.score,
            "baseline": self.baseline,
            "z": pair.z,
            "z_among": finite(pair.z_among),
        }

    def to_json(self) -> dict[str, Any]:
        """The `attnscope.circuits/1` document."""

        def listed(sides: dict[Head, list[Composition]]) -> dict[str, Any] | None:
            if self.labels is None:
                return None
            return {str(head): list(map(self.pair_entry, pairs)) for head, pairs in sides.items()}

        return {
            "schema": "attnscope.circuits/1",
            "attnscope": attnscope.__version__,
            "model": self.model,
            "settings": self.settings,
            "notes": list(self.notes),
            "pairs": self.n_pairs,
            "family_z": self.family_z,
            "heads": [self.head_entry(head) for head in self.heads],
            "composition": [self.pair_entry(pair) for pair in self.top],
            "induction_sources": listed(self.sources),
            "previous_token_targets": listed(self.targets),
        }

    def to_frame(self) -> DataFrame:
        """One row per pair listed."""
        from pandas import DataFrame

        names = ["kind", "source", "target", "score", "baseline", "z", "z_among"]
        return DataFrame([self.pair_entry(pair) for pair in self.top], columns=names)

    def by_head(self) -> ByHead:
        """The same with one row per head."""
        return ByHead(self)


@dataclass(frozen=True)
class ByHead:
    """A result whose rows are heads."""

    result: CircuitsResult

    def to_json(self) -> dict[str, Any]:
        """The same document."""
        return self.result.to_json()

    def to_frame(self) -> DataFrame:
        """One row per head: norms, copying, and the distance that positions favour."""
        from pandas import DataFrame

        entries = [self.result.head_entry(head) for head in self.result.heads]
        rows = [{**entry, "labels": " ".join(entry["labels"] or ())} for entry in entries]
        return DataFrame(rows)
