"""Grouping: which key/value heads of a layer should come to share one, by what sharing loses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnscope.attention.alignment import Moments, key_features, lost_share, value_features
from attnscope.attention.pooling import Grouping
from attnscope.attention.spec import AttentionSpec
from attnscope.scoring.sums import Floats


@dataclass(frozen=True)
class Loss:
    """Shares of the squared size of keys and of values that one common head leaves, 0 to 1."""

    key: float
    value: float

    @property
    def mean(self) -> float:
        """Of both."""
        return (self.key + self.value) / 2


def sharing_loss(spec: AttentionSpec, moments: Moments, heads: tuple[int, ...]) -> Loss:
    """What the best common head of these key/value heads loses, over the tokens of the moments.

    Keys that are normed cannot be aligned: what their mean loses.
    """
    counts = dict.fromkeys(heads, 1)
    value = lost_share(value_features(spec), moments.value, counts)
    if spec.qk_norm is None:
        return Loss(lost_share(key_features(spec), moments.key, counts), value)
    n_all, width = spec.kv_heads, spec.head_width
    seen = moments.key.view(n_all, width, n_all, width)[list(heads)][:, :, list(heads)]
    total, mean = float(seen.diagonal(dim1=0, dim2=2).diagonal(dim1=0, dim2=1).sum()), 0.0
    mean = float(seen.sum((0, 2)).trace()) / len(heads)
    return Loss(1 - mean / total if total > 0 else 0.0, value)


def pair_losses(spec: AttentionSpec, moments: Moments) -> list[list[Loss]]:
    """The loss of every two key/value heads, [head][other]; a head with itself loses nothing."""
    n = spec.kv_heads
    table = [[Loss(0.0, 0.0)] * n for _ in range(n)]
    for one in range(n):
        for other in range(one):
            loss = sharing_loss(spec, moments, (other, one))
            table[one][other] = table[other][one] = loss
    return table


def alike(spec: AttentionSpec, moments: Moments, n_groups: int) -> Grouping:
    """Groups of equal size whose key/value heads lose little by sharing, by pairs.

    From neighbours on, the two heads whose exchange helps most change places until none does.
    Neighbours where the key/value heads do not divide up so.
    """
    neighbours = Grouping.neighbours(spec.n_heads, n_groups)
    if spec.kv_heads % n_groups or spec.kv_heads == n_groups:
        return neighbours
    table = pair_losses(spec, moments)
    costs = np.array([[loss.mean for loss in row] for row in table])
    size = spec.kv_heads // n_groups
    place = np.arange(spec.kv_heads) // size  # the group of each key/value head
    while (swap := _best_swap(costs, place)) is not None:
        place[list(swap)] = place[list(swap)[::-1]]
    found: list[tuple[int, ...]] = []
    for group in range(n_groups):
        heads = np.flatnonzero(place == group).tolist()
        shared = spec.group_size
        found.append(tuple(q for g in heads for q in range(g * shared, (g + 1) * shared)))
    return Grouping(tuple(sorted(found)))


def _best_swap(
    costs: Floats, place: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
) -> tuple[int, int] | None:
    """The two heads of different groups whose exchange saves most; None where none saves."""
    member = place[:, None] == np.arange(place.max() + 1)  # (G, groups)
    to_group = costs @ member  # what a head costs with all of a group
    own = to_group[np.arange(len(place)), place]
    moved = to_group[:, place]  # [i, j]: i in the group of j, where j still is
    change = moved + moved.T - own[:, None] - own[None, :] - 2 * costs
    change[place[:, None] == place[None, :]] = 0
    best = np.unravel_index(np.argmin(change), change.shape)
    return (int(best[0]), int(best[1])) if change[best] < -1e-12 else None
