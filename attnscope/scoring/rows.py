"""Listed places of a model's attention, read as it passes: single weights, and a row's greatest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnscope.attention.cores import Block
from attnscope.attention.visibility import in_reach
from attnscope.models.load import Model
from attnscope.scoring.scan import Watcher
from attnscope.scoring.sums import Floats
from attnscope.types import TokenBatch


class _Listed(Watcher):
    """Watches listed queries, each in a text: which lie in the batch, and in which row of it."""

    def __init__(self, texts: Sequence[int], queries: Sequence[int]) -> None:
        self._query_of = torch.tensor(list(queries), dtype=torch.int64)  # (N,)
        order = np.argsort(texts, kind="stable")
        starts = np.flatnonzero(np.diff(np.array(texts)[order], prepend=-1))
        self._of_text: dict[int, NDArray[np.intp]] = {
            texts[some[0]]: some for some in np.split(order, starts[1:]) if len(some)
        }

    def begin(self, batch: TokenBatch, texts: Sequence[int]) -> None:
        """Find what is listed for the texts of the batch."""
        none = np.zeros(0, dtype=np.intp)
        found = [self._of_text.get(text, none) for text in texts]
        self.place = torch.from_numpy(np.concatenate(found))  # (n,): which of the N
        counts = torch.tensor([len(some) for some in found])
        self.row = torch.arange(len(texts)).repeat_interleave(counts)  # (n,)
        self.query = self._query_of[self.place]  # (n,)

    def _in(self, block: Block) -> Tensor:
        return (self.query >= block.start) & (self.query < block.stop)


class PairWeights(_Listed):
    """The weights on listed (text, query, key), for every head: no (T, T) is ever kept."""

    def __init__(self, model: Model, pairs: Sequence[tuple[int, int, int]]) -> None:
        shape = model.shape
        super().__init__([text for text, _, _ in pairs], [query for _, query, _ in pairs])
        self._key_of = torch.tensor([key for _, _, key in pairs], dtype=torch.int64)  # (N,)
        self.weights = torch.zeros(shape.n_layers, shape.n_heads, len(pairs))  # (L, H, N)

    def see(self, block: Block) -> None:
        """Take the pairs that the block holds."""
        keys = self._key_of[self.place]
        inside = self._in(block) & (keys >= block.low) & (keys < block.high)
        device = block.weights.device
        row, query, key = (
            part[inside].to(device) for part in (self.row, self.query - block.start, keys)
        )
        found = block.weights[row, :, query, key - block.low]  # (n, H)
        self.weights[block.layer, :, self.place[inside]] = found.T.cpu()


@dataclass(frozen=True)
class Choice:
    """A query, the keys it may choose among, and which of them are right; keys by number."""

    text: int
    query: int
    among: tuple[int, ...]
    right: tuple[int, ...]


class GreatestWeights(_Listed):
    """Whether the greatest weight of a row, among the keys it may choose, is on a right one.

    Several alike share the choice, so that a head that looks everywhere alike is right as often
    as `chance` says: the right ones' share of the keys that are visible.
    """

    def __init__(self, model: Model, choices: Sequence[Choice]) -> None:
        super().__init__([one.text for one in choices], [one.query for one in choices])
        self.choices = choices
        shape = (model.shape.n_layers, model.shape.n_heads, len(choices))
        self.right = torch.zeros(shape)  # (L, H, N)
        self._reach = [(spec.causal, spec.window) for spec in model.specs]

    def begin(self, batch: TokenBatch, texts: Sequence[int]) -> None:
        """Mark the keys of each choice."""
        super().begin(batch, texts)
        chosen = [self.choices[int(n)] for n in self.place]
        size = (len(chosen), batch.ids.shape[1])
        self.among, self.good = torch.zeros(size, dtype=torch.bool), torch.zeros(size)  # (n, S)
        for n, one in enumerate(chosen):
            self.among[n, list(one.among)] = True
            self.good[n, list(one.right)] = 1

    def see(self, block: Block) -> None:
        """Take the rows that the block holds."""
        inside, device = self._in(block), block.weights.device
        if not inside.any():
            return
        keys = slice(block.low, block.high)
        query = self.query[inside, None]
        visible = in_reach(query, torch.arange(block.low, block.high), *self._reach[block.layer])
        among = (self.among[inside, keys] & visible).to(device)[:, None]  # (n, 1, S)
        good = self.good[inside, keys].to(device)[:, None]
        place = (self.query[inside] - block.start).to(device)
        rows = block.weights[self.row[inside].to(device), :, place]  # (n, H, S)
        greatest = rows.masked_fill(~among, -1).amax(-1, keepdim=True)
        top = ((rows == greatest) & among).float()  # (n, H, S)
        share = (top * good).sum(-1) / top.sum(-1).clamp(min=1)  # (n, H)
        self.right[block.layer, :, self.place[inside]] = share.T.cpu()

    def chance(self) -> Floats:
        """What a head that looks everywhere alike gets, (L, N)."""
        kinds = {kind: self._chance(*kind) for kind in set(self._reach)}
        return np.stack([kinds[kind] for kind in self._reach])

    def _chance(self, causal: bool, window: int | None) -> Floats:
        found = np.zeros(len(self.choices))
        for n, one in enumerate(self.choices):
            among = torch.tensor(one.among, dtype=torch.int64)
            seen = among[in_reach(torch.tensor(one.query), among, causal, window)].tolist()
            found[n] = len(set(seen) & set(one.right)) / max(len(seen), 1)
        return found
