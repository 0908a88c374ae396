"""HeadSums: float64 sums per text, layer, head and question. They add, and every score is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attnscope.attention.lens import LayerSums, Lens

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class HeadSums:
    """For N texts, L layers, H heads and the questions `names` (P of them), float64.

    raw (N, L, H, P): what the heads put on the targets, summed over rows; chance (N, L, P): what a
    uniform head would have put there; rows (N, L, P): how many rows that was.
    free, free_chance, live (N, L, H, P): the same without resting places: what is found on the
    other targets, what an even head of the same live mass would put there, and that live mass.
    """

    names: tuple[str, ...]
    raw: Floats
    chance: Floats
    rows: NDArray[np.int64]
    free: Floats
    free_chance: Floats
    live: Floats

    def __len__(self) -> int:
        return int(self.raw.shape[0])

    def __add__(self, other: HeadSums) -> HeadSums:
        """The sums of both sets of texts."""
        return concatenate([self, other])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Every array by its name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "names"}

    def take(self, texts: Sequence[int]) -> HeadSums:
        """The sums of some of the texts."""
        at = list(texts)
        return HeadSums(self.names, **{name: a[at] for name, a in self.arrays().items()})

    def folded(self) -> HeadSums:
        """Neighbouring texts taken together, two and two: half as many units to resample."""
        at = np.arange(0, len(self), 2)
        return HeadSums(
            self.names, **{name: np.add.reduceat(a, at) for name, a in self.arrays().items()}
        )

    def of(self, name: str) -> HeadSums:
        """One question alone."""
        return self.asked([name])

    def asked(self, names: Sequence[str]) -> HeadSums:
        """Some of the questions."""
        at = [self.names.index(name) for name in names]
        return HeadSums(tuple(names), **{key: a[..., at] for key, a in self.arrays().items()})

    def beside(self, other: HeadSums) -> HeadSums:
        """The questions of both, of the same texts."""
        mine, theirs = self.arrays(), other.arrays()
        return HeadSums(
            (*self.names, *other.names),
            **{name: np.concatenate([mine[name], theirs[name]], -1) for name in mine},
        )


def from_lens(lens: Lens, n_layers: int) -> HeadSums:
    """What a lens has summed over one forward pass."""
    sums = lens.sums
    return HeadSums(
        tuple(lens.probes),
        **{
            f.name: torch.stack([getattr(sums[layer], f.name) for layer in range(n_layers)], 1)
            .cpu()
            .numpy()  # (B, L, H, P) or (B, L, P)
            for f in fields(LayerSums)
        },
    )


def concatenate(parts: Sequence[HeadSums]) -> HeadSums:
    """The texts of every part, one after the other. The questions must be the same."""
    if len({part.names for part in parts}) != 1:
        raise ValueError("Only sums of the same questions add.")
    each = [part.arrays() for part in parts]
    return HeadSums(
        parts[0].names,
        **{name: np.concatenate([arrays[name] for arrays in each]) for name in each[0]},
    )
