"""Which of two mentions a pronoun's attention prefers: the forced choice, per head.

A head reads an item right when it gives the right candidate more weight than a wrong one; ties
count half, so that chance is exactly one half for any number of candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from attnscope.attention.cores import Block
from attnscope.models.load import Model
from attnscope.scoring.passages import Item
from attnscope.scoring.scan import Watcher
from attnscope.scoring.sums import Floats, HeadSums
from attnscope.types import TokenBatch

ROLE, NEAREST_WRONG = "coreference", "coreference_nearest_wrong"
LATER = 2  # positions after the pronoun where a causal model may have resolved it


class PairWeights(Watcher):
    """The weights on listed (text, query, key), for every head: no (T, T) is ever kept."""

    def __init__(self, model: Model, pairs: Sequence[tuple[int, int, int]]) -> None:
        shape = model.shape
        self.pairs = torch.tensor(list(pairs), dtype=torch.int64).reshape(-1, 3)  # (N, 3)
        self.weights = torch.zeros(shape.n_layers, shape.n_heads, len(pairs))  # (L, H, N)

    def begin(self, batch: TokenBatch, texts: Sequence[int]) -> None:
        """Which pairs lie in the batch, and in which row of it."""
        row_of = {text: row for row, text in enumerate(texts)}
        rows = [row_of.get(int(text), -1) for text in self.pairs[:, 0]]
        self.rows = torch.tensor(rows, dtype=torch.int64)
        self.here = self.rows >= 0
        self.row = self.rows[self.here]
        self.query, self.key = self.pairs[self.here, 1], self.pairs[self.here, 2]
        self.place = self.here.nonzero().flatten()

    def see(self, block: Block) -> None:
        """Take the pairs that the block holds."""
        inside = (self.query >= block.start) & (self.query < block.stop)
        inside &= (self.key >= block.low) & (self.key < block.high)
        device = block.weights.device
        row, query, key = (
            part[inside].to(device)
            for part in (self.row, self.query - block.start, self.key - block.low)
        )
        found = block.weights[row, :, query, key]  # (n, H)
        self.weights[block.layer, :, self.place[inside]] = found.T.cpu()


@dataclass(frozen=True)
class Choices:
    """Forced choices on the items of a battery, each taken from where the head was best elsewhere.

    sums are per text: `coreference` on all items, and on those whose nearest candidate is wrong.
    baselines are accuracies on the same items, from reading no attention at all.
    """

    sums: HeadSums
    baselines: dict[str, float]


class CoreferenceProbe:
    """Asks every head, from several rows, which candidate it prefers.

    A causal model may settle a pronoun one or two tokens later; a bidirectional one may link the
    antecedent to the pronoun instead. Which row a head is read from is chosen on every other text
    and used on the rest, both ways round, so that no item helps to choose its own row.
    """

    def __init__(self, model: Model, items: Sequence[Item], lengths: Sequence[int]) -> None:
        self.items = tuple(items)
        self.n_texts = len(lengths)
        self._spans: list[tuple[int, int]] = []
        pairs: list[tuple[int, int, int]] = []
        for item in self.items:
            start = len(pairs)
            last = lengths[item.text] - 1
            for view in range(self._views(model)):
                for candidate in item.candidates:
                    later = min(item.pronoun + view, last)
                    ends = (later, candidate) if model.shape.causal else (item.pronoun, candidate)
                    if not model.shape.causal and view:
                        ends = (candidate, item.pronoun)
                    pairs.append((item.text, *ends))
            self._spans.append((start, len(pairs)))
        self.n_views = self._views(model)
        self.watcher = PairWeights(model, pairs)

    @staticmethod
    def _views(model: Model) -> int:
        return 1 + LATER if model.shape.causal else 2

    def choices(self) -> Choices:
        """What every head chose, once the scan is over."""
        return forced_choice(self.items, self.n_texts, self._won(), self._mass())

    def _weights_of(self, n: int) -> Floats:
        """The weights of item n, (views, candidates, L, H)."""
        start, end = self._spans[n]
        found = self.watcher.weights[..., start:end].double().numpy()  # (L, H, views·candidates)
        return np.moveaxis(found, -1, 0).reshape(self.n_views, -1, *found.shape[:2])

    def _won(self) -> Floats:
        """(items, views, L, H): the share of wrong candidates that the right one beats."""
        won = []
        for n, item in enumerate(self.items):
            weights = self._weights_of(n)
            right = weights[:, item.gold]
            wrong = np.delete(weights, item.gold, axis=1)
            beats = (right[:, None] > wrong) + 0.5 * (right[:, None] == wrong)
            won.append(beats.mean(1))
        return np.stack(won)

    def _mass(self) -> Floats:
        """(items, views, 3, L, H): weight on the right candidate, on all, and their mean."""
        mass = []
        for n, item in enumerate(self.items):
            weights = self._weights_of(n)
            parts = [weights[:, item.gold], weights.sum(1), weights.mean(1)]
            mass.append(np.stack(parts, axis=1))
        return np.stack(mass)


def forced_choice(items: Sequence[Item], n_texts: int, won: Floats, mass: Floats) -> Choices:
    """Sums per text, from won (items, views, L, H) and mass (items, views, 3, L, H)."""
    fold = np.array([item.text % 2 for item in items])
    chosen = np.empty_like(won[:, 0])
    weight = np.empty_like(mass[:, 0])
    for here in (0, 1):
        at, other = fold == here, fold != here
        best = won[other].mean(0).argmax(0) if other.any() else np.zeros(won.shape[2:], int)
        chosen[at] = _pick(won[at], best)
        weight[at] = _pick(mass[at], best)
    nearest_wrong = np.array([item.nearest != item.gold for item in items])
    sums = _sums(ROLE, items, n_texts, chosen, weight, np.ones(len(items), bool)).beside(
        _sums(NEAREST_WRONG, items, n_texts, chosen, weight, nearest_wrong)
    )
    return Choices(sums, baselines(items))


def _pick(values: Floats, view: NDArray[np.intp]) -> Floats:
    """values (items, views, ..., L, H) at each head's own view (L, H): (items, ..., L, H)."""
    index = view.reshape(1, 1, *(1,) * (values.ndim - 4), *view.shape)
    index = np.broadcast_to(index, (len(values), 1, *values.shape[2:]))
    return np.take_along_axis(values, index, axis=1)[:, 0]


def _sums(
    name: str,
    items: Sequence[Item],
    n_texts: int,
    won: Floats,
    mass: Floats,
    counted: NDArray[np.bool_],
) -> HeadSums:
    layers, heads = won.shape[1:]
    text = np.array([item.text for item in items])[counted]
    raw, free, live, even = (np.zeros((n_texts, layers, heads)) for _ in range(4))
    rows = np.zeros((n_texts, layers), dtype=np.int64)
    np.add.at(raw, text, won[counted])
    np.add.at(free, text, mass[counted, 0])
    np.add.at(live, text, mass[counted, 1])
    np.add.at(even, text, mass[counted, 2])
    np.add.at(rows, text, 1)
    return HeadSums(
        (name,),
        raw=raw[..., None],
        chance=rows[..., None] / 2,
        rows=rows[..., None],
        free=free[..., None],
        free_chance=even[..., None],
        live=live[..., None],
    )


def baselines(items: Sequence[Item]) -> dict[str, float]:
    """How often each simple rule is right; where it cannot tell two apart it is right half."""
    rules: dict[str, Callable[[Item], Sequence[float]]] = {
        "nearest candidate": lambda item: [n == item.nearest for n in range(len(item.candidates))],
        "first candidate": lambda item: [c == min(item.candidates) for c in item.candidates],
        "more often named": lambda item: item.named,
        "previous token": lambda item: [c == item.pronoun - 1 for c in item.candidates],
    }
    return {
        name: float(np.mean([_right(rule(item), item.gold) for item in items]))
        for name, rule in rules.items()
    }


def _right(values: Sequence[float], gold: int) -> float:
    wrong = np.delete(np.array(values, float), gold)
    return float(((values[gold] > wrong) + 0.5 * (values[gold] == wrong)).mean())
