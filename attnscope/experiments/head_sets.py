"""Sets of heads: by layer, what shares their keys and values, and random sets to compare with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import numpy as np

from attnscope.models.load import Model
from attnscope.types import Head

_FEW = 10_000  # so many sets are listed one by one; of more, some are drawn


def control_sets(
    model: Model, heads: Sequence[Head], draws: int, seed: int
) -> tuple[list[tuple[Head, ...]], bool]:
    """Random sets of as many heads of the same layers, all different; and: do they overlap ours?

    They hold none of these heads, unless a layer has not enough others. Where fewer sets than
    `draws` exist, all of them; where none exists but ours, none.
    """
    wanted = Counter(head.layer for head in heads)
    n_heads, own = model.shape.n_heads, set(heads)
    others = {
        layer: [Head(layer, h) for h in range(n_heads) if Head(layer, h) not in own]
        for layer in wanted
    }
    overlap = any(len(others[layer]) < number for layer, number in wanted.items())
    if overlap:
        others = {layer: [Head(layer, h) for h in range(n_heads)] for layer in wanted}
    possible = math.prod(math.comb(len(others[layer]), k) for layer, k in wanted.items())
    generator = np.random.default_rng(seed)
    found: dict[tuple[Head, ...], None] = {}
    if possible <= min(_FEW, 4 * draws):
        ways: list[tuple[Head, ...]] = [()]
        for layer, k in wanted.items():
            ways = [(*way, *more) for way in ways for more in combinations(others[layer], k)]
        ways = [way for way in ways if set(way) != own]
        order = generator.permutation(len(ways))[:draws]
        return [ways[n] for n in order], overlap
    while len(found) < draws:
        drawn = [
            others[layer][n]
            for layer, k in wanted.items()
            for n in sorted(generator.permutation(len(others[layer]))[:k])
        ]
        if set(drawn) != own:
            found[tuple(drawn)] = None
    return list(found), overlap


def siblings(model: Model, heads: Sequence[Head]) -> dict[Head, tuple[Head, ...]]:
    """The heads that share a head's key and value, and stay as they are."""
    size = model.shape.n_heads // model.shape.n_kv_heads
    found = {}
    for head in heads:
        group = range(head.head // size * size, (head.head // size + 1) * size)
        found[head] = tuple(
            other for h in group if (other := Head(head.layer, h)) not in set(heads)
        )
    return found


def by_layer(heads: Sequence[Head]) -> dict[int, tuple[int, ...]]:
    found: dict[int, tuple[int, ...]] = {}
    for head in heads:
        found[head.layer] = (*found.get(head.layer, ()), head.head)
    return found
