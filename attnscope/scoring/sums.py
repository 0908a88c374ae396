"""HeadSums: float64 sums per text, layer, head and question. They add, and every score is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnscope.attention.lens import Lens

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class HeadSums:
    """For N texts, L layers, H heads and the questions `names` (P of them).

    raw (N, L, H, P): what the heads put on the targets, summed over rows; chance (N, L, P): what a
    uniform head would have put there; rows (N, L, P): how many rows that was.
    """

    names: tuple[str, ...]
    raw: Floats
    chance: Floats
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.raw.shape[0])

    def __add__(self, other: HeadSums) -> HeadSums:
        """The sums of both sets of texts."""
        return concatenate([self, other])

    def take(self, texts: Sequence[int]) -> HeadSums:
        """The sums of some of the texts."""
        at = list(texts)
        return HeadSums(self.names, self.raw[at], self.chance[at], self.rows[at])

    def of(self, name: str) -> tuple[Floats, Floats, NDArray[np.int64]]:
        """raw (N, L, H), chance (N, L), rows (N, L) of one question."""
        at = self.names.index(name)
        return self.raw[..., at], self.chance[..., at], self.rows[..., at]


def from_lens(lens: Lens, n_layers: int) -> HeadSums:
    """What a lens has summed over one forward pass."""
    names = tuple(lens.probes)
    layers = [[lens.sums[layer, name] for name in names] for layer in range(n_layers)]
    raw = np.stack(  # (L, P, B, H) to (B, L, H, P)
        [np.stack([answer.raw.cpu().numpy() for answer in layer]) for layer in layers]
    ).transpose(2, 0, 3, 1)
    chance = np.stack(
        [np.stack([answer.chance.cpu().numpy() for answer in layer]) for layer in layers]
    ).transpose(2, 0, 1)
    rows = np.stack(
        [np.stack([answer.rows.cpu().numpy() for answer in layer]) for layer in layers]
    ).transpose(2, 0, 1)
    return HeadSums(names, raw, chance, rows)


def concatenate(parts: Sequence[HeadSums]) -> HeadSums:
    """The texts of every part, one after the other. The questions must be the same."""
    if len({part.names for part in parts}) != 1:
        raise ValueError("Only sums of the same questions add.")
    return HeadSums(
        parts[0].names,
        np.concatenate([part.raw for part in parts]),
        np.concatenate([part.chance for part in parts]),
        np.concatenate([part.rows for part in parts]),
    )
