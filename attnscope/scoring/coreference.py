"""Which of two mentions a pronoun's attention prefers: the forced choice, per head.

A head reads an item right when it gives the right candidate more weight than a wrong one; ties
count half, so that chance is exactly one half for any number of candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnscope.models.load import Model
from attnscope.scoring.passages import Item
from attnscope.scoring.rows import PairWeights
from attnscope.scoring.sums import Floats, HeadSums

ROLE, NEAREST_WRONG = "coreference", "coreference_nearest_wrong"
LATER = 2  # positions after the pronoun where a causal model may have resolved it

Places = NDArray[np.intp]


def views(causal: bool) -> tuple[str, ...]:
    """The rows a head can be read from; the first is the pronoun's own."""
    if not causal:
        return "pronoun", "candidates"
    return "pronoun", *(f"{n} later" for n in range(1, LATER + 1))


@dataclass(frozen=True)
class Answers:
    """What every head says to every item, each read in one view. Arrays are (items, L, H).

    won is the share of wrong candidates that get less than the right one; right and live are the
    weight on the right candidate and on all of them.
    """

    won: Floats
    right: Floats
    live: Floats
    n_candidates: NDArray[np.int64]  # (items,)

    def sums(
        self, name: str, unit: Places, n_units: int, counted: NDArray[np.bool_] | None = None
    ) -> HeadSums:
        """The items (or those counted) as sums over units, which are what is resampled."""
        kept = np.ones(len(unit), dtype=bool) if counted is None else counted
        layers, heads = self.won.shape[1:]
        rows = np.bincount(unit[kept], minlength=n_units)
        rows = np.broadcast_to(rows[:, None], (n_units, layers))
        even = self.live / self.n_candidates[:, None, None]

        def added(values: Floats) -> Floats:
            total = np.zeros((n_units, layers, heads))
            np.add.at(total, unit[kept], values[kept])
            return total[..., None]

        return HeadSums(
            (name,),
            raw=added(self.won),
            chance=rows[..., None] / 2,
            rows=rows[..., None],
            free=added(self.right),
            free_chance=added(even),
            live=added(self.live),
        )


@dataclass(frozen=True)
class Readings:
    """The same in every view: arrays are (items, views, L, H)."""

    won: Floats
    right: Floats
    live: Floats
    n_candidates: NDArray[np.int64]

    def at(self, view: Places) -> Answers:
        """Each head read in its own view, (L, H) or (items, L, H)."""
        won, right, live = (picked(each, view) for each in (self.won, self.right, self.live))
        return Answers(won, right, live, self.n_candidates)

    def best_view(self, items: NDArray[np.bool_] | None = None) -> Places:
        """The view in which each head wins most (of these items), (L, H)."""
        won = self.won if items is None else self.won[items]
        return won.mean(0).argmax(0) if len(won) else np.zeros(self.won.shape[2:], dtype=np.intp)

    def best_elsewhere(self, fold: Places) -> Places:
        """For folds 0 and 1 the view in which each head wins most in the other, (2, L, H)."""
        return np.stack([self.best_view(fold != here) for here in (0, 1)])


def picked(values: Floats, view: Places) -> Floats:
    """values (items, views, L, H) in the views (L, H) or (items, L, H): (items, L, H)."""
    index = np.broadcast_to(view, (len(values), *values.shape[2:]))
    return np.take_along_axis(values, index[:, None], axis=1)[:, 0]


@dataclass(frozen=True)
class Choices:
    """Forced choices on the items of a battery, each taken from where the head was best elsewhere.

    sums are per text: `coreference` on all items, and on those whose nearest candidate is wrong.
    baselines are accuracies on the same items, from reading no attention at all. view (L, H) is
    where each head is best on all of them.
    """

    sums: HeadSums
    baselines: dict[str, float]
    view: Places


class CoreferenceProbe:
    """Asks every head, from several rows, which candidate it prefers.

    A causal model may settle a pronoun one or two tokens later; a bidirectional one may link the
    antecedent to the pronoun instead.
    """

    def __init__(
        self,
        model: Model,
        items: Sequence[Item],
        lengths: Sequence[int],
        n_views: int | None = None,
    ) -> None:
        self.items = tuple(items)
        self.n_texts = len(lengths)
        self.n_views = len(views(model.shape.causal)) if n_views is None else n_views
        self._spans: list[tuple[int, int]] = []
        pairs: list[tuple[int, int, int]] = []
        for item in self.items:
            start = len(pairs)
            for view in range(self.n_views):
                later = view if model.shape.causal else 0
                query = query_of(item, later, lengths[item.text])
                for key in item.candidates:
                    ends = (query, key) if later == view else (key, query)
                    pairs.append((item.text, *ends))
            self._spans.append((start, len(pairs)))
        self.watcher = PairWeights(model, pairs)

    def weights_of(self, n: int) -> Floats:
        """The weights of item n, (views, candidates, L, H)."""
        start, end = self._spans[n]
        found = self.watcher.weights[..., start:end].double().numpy()  # (L, H, views·candidates)
        return np.moveaxis(found, -1, 0).reshape(self.n_views, -1, *found.shape[:2])

    def readings(self) -> Readings:
        """What every head said in every view, once the scan is over."""
        shape = (len(self.items), self.n_views, *self.watcher.weights.shape[:2])
        won, right, live = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        for n, item in enumerate(self.items):
            weights = self.weights_of(n)
            won[n] = share_beaten(weights, item.gold)
            right[n], live[n] = weights[:, item.gold], weights.sum(1)
        return Readings(won, right, live, np.array([len(i.candidates) for i in self.items]))

    def choices(self) -> Choices:
        """The forced choices of a battery, once the scan is over."""
        return choose(self.items, self.n_texts, self.readings())


def choose(items: Sequence[Item], n_texts: int, read: Readings) -> Choices:
    """The view of a head is chosen on every other text and used on the rest, both ways round.

    So no item helps to choose its own.
    """
    text = np.array([item.text for item in items])
    answers = read.at(read.best_elsewhere(text % 2)[text % 2])
    wrong = np.array([item.nearest != item.gold for item in items])
    sums = answers.sums(ROLE, text, n_texts)
    sums = sums.beside(answers.sums(NEAREST_WRONG, text, n_texts, wrong))
    return Choices(sums, baselines(items), read.best_view())


def query_of(item: Item, later: int, length: int) -> int:
    """The row so many after the pronoun's, or the last of the text."""
    return min(item.pronoun + later, length - 1)


def share_beaten(values: Floats, gold: int) -> Floats:
    """values (..., candidates, L, H): the share of the others that the right one beats."""
    right = np.take(values, [gold], axis=-3)
    wrong = np.delete(values, gold, axis=-3)
    beaten: Floats = ((right > wrong) + 0.5 * (right == wrong)).mean(-3)
    return beaten


_RULES: dict[str, Callable[[Item], Sequence[float]]] = {
    "nearest candidate": lambda item: [n == item.nearest for n in range(len(item.candidates))],
    "first candidate": lambda item: [c == min(item.candidates) for c in item.candidates],
    "more often named": lambda item: item.named,
    "previous token": lambda item: [c == item.pronoun - 1 for c in item.candidates],
}


def rule_answers(items: Sequence[Item]) -> dict[str, Floats]:
    """What each simple rule says to each item, (items,): 1 right, 0 wrong, half if torn."""
    return {
        name: np.array([_right(rule(item), item.gold) for item in items], dtype=float)
        for name, rule in _RULES.items()
    }


def baselines(items: Sequence[Item]) -> dict[str, float]:
    """How often each simple rule is right."""
    return {name: float(answers.mean()) for name, answers in rule_answers(items).items()}


def _right(values: Sequence[float], gold: int) -> float:
    return float(share_beaten(np.array(values, float)[:, None, None], gold)[0, 0])
