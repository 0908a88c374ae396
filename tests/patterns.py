"""Heads planted by their patterns: a real model whose attention is replaced by weights we choose.

Everything but the weights is real: tokens, roles, battery, estimate, labels. The battery of such a
model is not that of its checkpoint, so it needs a cache of its own (conftest gives every test one).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

import attnscope
from attnscope.api import Model
from attnscope.attention.cores import Block
from attnscope.attention.lens import Lens
from attnscope.attention.visibility import Visibility
from attnscope.experiments.heads_result import HeadsResult
from attnscope.types import Head, TokenBatch

# Which keys the rows of each text look at, alike, (B or 1, T, T) bool; rows of none rest on 0.
Targets = Callable[[TokenBatch], Tensor]


def _apart(batch: TokenBatch) -> Tensor:
    index = torch.arange(batch.ids.shape[1])
    return (index[None, :] - index[:, None])[None]  # (1, T, T): key - query


def at(offset: int) -> Targets:
    return lambda batch: _apart(batch) == offset


def _uniform(batch: TokenBatch) -> Tensor:
    return torch.ones_like(_apart(batch), dtype=torch.bool)


def _columns(keys: Tensor) -> Tensor:
    return keys[:, None, :].expand(-1, keys.shape[1], -1)


def _first(batch: TokenBatch) -> Tensor:
    first = torch.zeros_like(batch.valid)
    first[:, 0] = True
    return _columns(first)


def _copies(batch: TokenBatch) -> Tensor:
    same = batch.ids[:, :, None] == batch.ids[:, None, :]
    return same & ~batch.special[:, None, :] & (_apart(batch) < 0)


def _after_copies(batch: TokenBatch) -> Tensor:
    return _copies(batch).roll(1, dims=-1)


def _special(batch: TokenBatch) -> Tensor:
    return _columns(batch.special) & ~_first(batch)


def _punctuation(batch: TokenBatch) -> Tensor:
    return _columns(batch.punctuation)


PATTERNS: dict[str, Targets] = {
    "uniform": _uniform,
    "previous": at(-1),
    "next": at(1),
    "second_previous": at(-2),
    "identity": at(0),
    "first": _first,
    "induction": _after_copies,
    "duplicate": _copies,
    "special": _special,
    "punctuation": _punctuation,
}


def planted_weights(
    batch: TokenBatch,
    causal: bool,
    names: Sequence[str],
    patterns: Mapping[str, Targets] = PATTERNS,
) -> Tensor:
    """(B, H, T, T); a row whose targets are not there rests on the first token."""
    seen = batch.valid[:, None, :] & ((_apart(batch) <= 0) if causal else _uniform(batch))
    first = _first(batch)
    weights = []
    for name in names:
        keys = patterns[name](batch) & seen  # (B, T, T)
        keys = torch.where(keys.any(-1, keepdim=True), keys, first)
        weights.append(keys / keys.sum(-1, keepdim=True))
    return torch.stack(weights, dim=1)


def show(lens: Lens, layer: int, weights: Tensor, seen: Visibility, rows: int) -> None:
    """Weights through a lens, some rows at a time."""
    for start in range(0, weights.shape[2], rows):
        stop = min(start + rows, weights.shape[2])
        low, high = seen.key_range(start, stop)
        part = weights[:, :, start:stop, low:high].contiguous()
        lens.see(Block(layer, start, low, part, part.clamp(min=1e-38).log()), seen)


def replace_attention(
    model: Model, weights: Callable[[TokenBatch], Tensor], rows: int = 100
) -> None:
    """Let the model attend as told: weights of a batch, (B, L·H, T, T)."""

    def run(batch: TokenBatch, lens: Lens | None = None) -> Tensor:
        assert lens is not None
        seen = Visibility(batch.valid, model.shape.causal)
        for layer, part in enumerate(weights(batch).split(model.shape.n_heads, dim=1)):
            show(lens, layer, part, seen, rows)
        return torch.empty(0)

    model.run = run  # type: ignore[method-assign]


class Planted:
    """A model of three layers with planted heads, four to a layer, and who is where."""

    def __init__(
        self,
        directory: Path,
        names: list[str],
        add_bos: bool | None = None,
        patterns: Mapping[str, Targets] = PATTERNS,
    ) -> None:
        self.model: Model = attnscope.load(str(directory), add_bos=add_bos)
        self.names = (names + ["uniform"] * 12)[:12]
        replace_attention(
            self.model,
            lambda batch: planted_weights(batch, self.model.shape.causal, self.names, patterns),
        )

    def place(self, name: str) -> Head:
        at = self.names.index(name)
        return Head(at // 4, at % 4)

    def labels(self, result: HeadsResult) -> dict[str, set[str]]:
        return {name: set(result.labels_of(self.place(name)).labels) for name in self.names}
