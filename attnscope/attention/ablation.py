"""Ablation: what some heads add is replaced before W_O, in runs of the same texts side by side.

Side by side with a clean run, an edited one can keep the clean patterns without storing any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.attention.visibility import Visibility
from attnscope.errors import UsageError

METHODS = {
    "zero": "adds nothing",
    "mean": "adds its mean over other texts, whatever it reads",
    "resample": "adds what it would at this place of another text",
    "rest": "looks at its resting place only: the first token, or a learned sink",
}
MODES = {
    "full": "later layers see the change, and may attend elsewhere",
    "frozen": "every attention pattern stays that of the clean run",
}


@dataclass(frozen=True)
class Ablation:
    """What happens to a batch of several runs of the same texts, one run after the other.

    The first run is clean; in run n + 1 the heads `off[n]` (by layer) are replaced. Below the first
    layer with such a head the batch may be of other sizes (see models/widen.py). `means`
    (L, H, D) go with the method `mean`; with `resample` the last run is of other texts, as long,
    and lends the heads its z. `frozen`: every run attends as the first one does.
    """

    method: str
    off: tuple[Mapping[int, tuple[int, ...]], ...]
    means: Tensor | None = None
    frozen: bool = False

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UsageError(f"Unknown method {self.method!r}: choose from {', '.join(METHODS)}.")
        if (self.method == "mean") != (self.means is not None):
            raise UsageError("The means of heads go with the method `mean`, and it needs them.")

    @property
    def runs(self) -> int:
        """How many runs a batch holds."""
        return 1 + len(self.off) + (self.method == "resample")

    @property
    def first(self) -> int:
        """The lowest layer with a head that is off: below it all runs of a text are the same."""
        return min(layer for heads in self.off for layer in heads)

    def patterns(self, layer: int, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Query (B, H, T, D) and key (B, G, S, D) as each run attends with them."""
        if not self.frozen or layer <= self.first:
            return query, key
        return self._as_first(query), self._as_first(key)

    def _as_first(self, features: Tensor) -> Tensor:
        apart = self._apart(features)  # (runs, texts, H or G, T, D)
        kept = 1 + len(self.off)  # other texts attend as they do
        shared = apart[:1].expand(kept, -1, -1, -1, -1)
        return torch.cat([shared, apart[kept:]]).flatten(0, 1)  # (B, H or G, T, D)

    def edit(
        self, layer: int, z: Tensor, value: Tensor, visibility: Visibility, sink: bool
    ) -> Tensor:
        """z (B, H, T, D) with the heads of this layer replaced that are off; value (B, G, S, D)."""
        chosen = [list(heads.get(layer, ())) for heads in self.off]
        if not any(chosen):
            return z
        shared = z.shape[1] // value.shape[1]
        edited = self._apart(z.clone())  # (runs, texts, H, T, D)
        values = self._apart(value)  # (runs, texts, G, S, D)
        for run, heads in enumerate(chosen, 1):
            if self.method == "zero" or (self.method == "rest" and sink):
                edited[run][:, heads] = 0
            elif self.means is not None:
                edited[run][:, heads] = self.means[layer, heads, None].to(z)  # (heads, 1, D)
            elif self.method == "resample":
                edited[run][:, heads] = edited[-1][:, heads]
            else:
                groups = [head // shared for head in heads]
                edited[run][:, heads] = values[run][:, groups][:, :, _first_seen(visibility)].to(z)
        return edited.flatten(0, 1)  # (B, H, T, D)

    def _apart(self, features: Tensor) -> Tensor:
        return features.reshape(self.runs, -1, *features.shape[1:])  # (runs, texts, H or G, T, D)


def _first_seen(visibility: Visibility) -> Tensor:
    """The first key that each query may see, (T,): the first token, unless a window hides it."""
    query = torch.arange(visibility.n_keys, device=visibility.valid.device)
    if visibility.window is None:
        return torch.zeros_like(query)
    return (query - visibility.window + 1).clamp(min=0)
