"""What can be asked of a row of attention, without keeping the row.

A probe names rows (queries) and answers, for each, one number per head; it also knows what a head
that looks at every visible key alike would answer. Both are exact for every block size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.attention.cores import Block
from attnscope.attention.visibility import Visibility


@dataclass(frozen=True)
class Probe(ABC):
    """One question. rows (B, T) bool: the queries it is asked of."""

    rows: Tensor

    @abstractmethod
    def read(self, block: Block, visibility: Visibility) -> Tensor:
        """The answer for each row of the block, (B, H, t); rows not asked may hold anything."""

    def uniform(self, visibility: Visibility) -> Tensor:
        """The answer of a head that looks at every visible key alike, (B, T).

        0 for a question whose answer is not a share of attention.
        """
        return torch.zeros(self.rows.shape, device=self.rows.device)

    def targets(self, visibility: Visibility) -> Tensor:
        """Rows among `rows` for which the question makes sense, (B, T) bool."""
        return self.rows


def _positions(rows: Tensor) -> tuple[Tensor, Tensor]:
    batch = torch.arange(rows.shape[0], device=rows.device)[:, None]  # (B, 1)
    query = torch.arange(rows.shape[1], device=rows.device)[None, :]  # (1, T)
    return batch, query


@dataclass(frozen=True)
class Targets(Probe):
    """A question about a set of target keys: how much of the row's weight they get."""

    @abstractmethod
    def visible(self, visibility: Visibility) -> Tensor:
        """How many of its targets each query sees, (B, T)."""

    @abstractmethod
    def among(self, keys: Tensor) -> Targets | None:
        """The same question about those targets only that are marked in `keys`, (B, S) bool.

        None where that can be no target at all.
        """

    def uniform(self, visibility: Visibility) -> Tensor:
        return self.visible(visibility) / visibility.count().clamp(min=1)

    def targets(self, visibility: Visibility) -> Tensor:
        return self.rows & (self.visible(visibility) > 0)


@dataclass(frozen=True)
class Offset(Targets):
    """Total weight on keys i + k for each k in `offsets`."""

    offsets: tuple[int, ...]

    def read(self, block: Block, visibility: Visibility) -> Tensor:
        size = block.high - block.low
        query = torch.arange(block.start, block.stop, device=block.weights.device)  # (t,)
        total: Tensor | None = None
        for offset in self.offsets:
            column = query + offset - block.low  # (t,)
            inside = (column >= 0) & (column < size)
            index = column.clamp(0, size - 1)[None, None, :, None]  # (1, 1, t, 1)
            index = index.expand(*block.weights.shape[:2], -1, 1)  # (B, H, t, 1)
            found = block.weights.gather(-1, index).squeeze(-1) * inside  # (B, H, t)
            total = found if total is None else total + found
        assert total is not None
        return total

    def visible(self, visibility: Visibility) -> Tensor:
        batch, query = _positions(self.rows)
        found = torch.zeros_like(self.rows, dtype=torch.int64)
        for offset in self.offsets:
            found += visibility.sees(batch, query, query + offset)
        return found

    def among(self, keys: Tensor) -> Targets | None:
        found = []
        for offset in self.offsets:
            text, key = keys.nonzero(as_tuple=True)
            query = key - offset
            inside = (query >= 0) & (query < keys.shape[1])
            found.append(torch.stack([text, query, key])[:, inside])
        pairs = torch.cat(found, dim=1)  # (3, N)
        return Pairs(self.rows, *pairs) if pairs.numel() else None


@dataclass(frozen=True)
class Columns(Targets):
    """Total weight on the keys marked in `keys`, (B, S) bool; with `with_sink`, on a sink too."""

    keys: Tensor
    with_sink: bool = False

    def read(self, block: Block, visibility: Visibility) -> Tensor:
        marks = self.keys[:, block.low : block.high].float()  # (B, S)
        found = (block.weights @ marks[:, None, :, None]).squeeze(-1)  # (B, H, t)
        return self.add_sink(found, block)

    def add_sink(self, found: Tensor, block: Block) -> Tensor:
        """The weight found, (B, H, t), and the sink's share where that was asked."""
        return found + block.sink if self.with_sink and block.sink is not None else found

    def visible(self, visibility: Visibility) -> Tensor:
        return visibility.count(self.keys)

    def among(self, keys: Tensor) -> Targets | None:
        both = self.keys & keys
        return Columns(self.rows, both, self.with_sink) if self.with_sink or both.any() else None


def read_all(
    probes: Mapping[str, Probe], block: Block, visibility: Visibility
) -> dict[str, Tensor]:
    """Every probe's answer, (B, H, t) each. All Columns together cost one pass over the block."""
    columns = {name: probe for name, probe in probes.items() if type(probe) is Columns}
    answers = {
        name: probe.read(block, visibility) for name, probe in probes.items() if name not in columns
    }
    if columns:
        marks = torch.stack([probe.keys for probe in columns.values()], dim=-1)  # (B, S, P)
        here = marks[:, block.low : block.high].to(block.weights.dtype)
        batch, n_heads, rows, keys = block.weights.shape
        found = block.weights.view(batch, n_heads * rows, keys) @ here  # (B, H·t, P)
        each = found.view(batch, n_heads, rows, -1).unbind(-1)
        for (name, probe), answer in zip(columns.items(), each, strict=True):
            answers[name] = probe.add_sink(answer, block)
    return answers


@dataclass(frozen=True)
class Pairs(Targets):
    """Total weight on listed pairs: text batch[n], query[n], key[n], each (N,) int64."""

    batch: Tensor
    query: Tensor
    key: Tensor

    def read(self, block: Block, visibility: Visibility) -> Tensor:
        here = (self.query >= block.start) & (self.query < block.stop)
        here &= (self.key >= block.low) & (self.key < block.high)
        batch, query, key = self.batch[here], self.query[here], self.key[here]
        n_batch, n_heads, rows, _ = block.weights.shape
        found = block.weights[batch, :, query - block.start, key - block.low]  # (N, H)
        total = block.weights.new_zeros(n_batch, rows, n_heads)
        total.index_put_((batch, query - block.start), found, accumulate=True)
        return total.transpose(1, 2)  # (B, H, t)

    def visible(self, visibility: Visibility) -> Tensor:
        seen = visibility.sees(self.batch, self.query, self.key)
        found = torch.zeros_like(self.rows, dtype=torch.int64)
        found.index_put_((self.batch, self.query), seen.long(), accumulate=True)
        return found

    def among(self, keys: Tensor) -> Targets | None:
        inside = (self.key >= 0) & (self.key < keys.shape[1])
        kept = inside & keys[self.batch, self.key.clamp(0, keys.shape[1] - 1)]
        if not kept.any():
            return None
        return Pairs(self.rows, self.batch[kept], self.query[kept], self.key[kept])


@dataclass(frozen=True)
class Sink(Probe):
    """What a learned sink takes of the row; a head without one gives it nothing."""

    def read(self, block: Block, visibility: Visibility) -> Tensor:
        return (
            block.weights.new_zeros(block.weights.shape[:3]) if block.sink is None else block.sink
        )


@dataclass(frozen=True)
class Entropy(Probe):
    """Entropy of the row in nats."""

    def read(self, block: Block, visibility: Visibility) -> Tensor:
        return block.entropy


@dataclass(frozen=True)
class Breadth(Probe):
    """Entropy of the row over that of a uniform row, ln |V_i|; rows with |V_i| >= `min_keys`."""

    min_keys: int = 8

    def read(self, block: Block, visibility: Visibility) -> Tensor:
        seen = visibility.count()[:, block.start : block.stop].clamp(min=2)  # (B, t)
        return block.entropy / seen.log()[:, None, :]  # (B, H, t)

    def targets(self, visibility: Visibility) -> Tensor:
        return self.rows & (visibility.count() >= self.min_keys)


@dataclass(frozen=True)
class Distance(Probe):
    """Mean distance |i - j| to the keys looked at, in tokens; a learned sink is no distance."""

    def read(self, block: Block, visibility: Visibility) -> Tensor:
        device = block.weights.device
        query = torch.arange(block.start, block.stop, device=device).float()  # (t,)
        key = torch.arange(block.low, block.high, device=device).float()  # (S,)
        if visibility.causal:
            return block.total(query) - block.weights @ key  # (B, H, t)
        apart = (query[:, None] - key[None, :]).abs()  # (t, S)
        return (block.weights * apart).sum(-1)  # (B, H, t)
