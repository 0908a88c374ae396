"""Lens: what is asked of one forward pass, and the answers.

A lens is used once: make it with the probes wanted, run the model with it, read `sums`.
Observers receive every block of weights as it is made and must not keep it unless that was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnscope.attention.cores import Block
from attnscope.attention.probes import Probe, read_all
from attnscope.attention.visibility import Visibility

Observer = Callable[[Block], None]
Recorder = Callable[[int, Mapping[str, Tensor]], None]


@dataclass(frozen=True)
class LayerSums:
    """The answers of one layer: sums over the rows asked, and how many rows that were."""

    raw: Tensor  # (B, H) float64
    chance: Tensor  # (B,) float64: what a uniform head would have summed to
    rows: Tensor  # (B,) int64


@dataclass
class Lens:
    """Probes by name, observers of every block, recorders of what stands around the weights.

    A recorder is called once a layer with query (B, H, T, D), key and value (B, G, S, D),
    z (B, H, T, D), the head outputs before W_O, and sink (B, H, T), what a learned sink takes.
    """

    probes: Mapping[str, Probe] = field(default_factory=dict)
    observers: tuple[Observer, ...] = ()
    recorders: tuple[Recorder, ...] = ()
    sums: dict[tuple[int, str], LayerSums] = field(default_factory=dict, init=False)
    _open: dict[str, Tensor] = field(default_factory=dict, init=False)
    _asked: dict[tuple[bool, int | None], dict[str, tuple[Tensor, Tensor, Tensor]]] = field(
        default_factory=dict, init=False
    )

    def begin_layer(self) -> None:
        """A layer starts: its sums are empty."""
        self._open = {}

    def see(self, block: Block, visibility: Visibility) -> None:
        """Read every probe on a block of weights, and show it to the observers."""
        targets = self._targets(visibility)
        for name, answers in read_all(self.probes, block, visibility).items():
            here = targets[name][0][:, None, block.start : block.stop]  # (B, 1, t)
            part = torch.where(here, answers, 0.0).sum(-1, dtype=torch.float64)  # (B, H)
            self._open[name] = self._open[name] + part if name in self._open else part
        for observer in self.observers:
            observer(block)

    def end_layer(self, layer: int, visibility: Visibility, around: Mapping[str, Tensor]) -> None:
        """A layer is done: file its sums, and show what stood around its weights."""
        for name, (_, chance, rows) in self._targets(visibility).items():
            self.sums[layer, name] = LayerSums(self._open[name], chance, rows)
        for recorder in self.recorders:
            recorder(layer, around)

    def _targets(self, visibility: Visibility) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
        """For each probe: rows asked (B, T), their summed chance (B,), their number (B,).

        Layers that see alike share the answer.
        """
        kind = (visibility.causal, visibility.window)
        if kind not in self._asked:
            found = {}
            for name, probe in self.probes.items():
                asked = probe.targets(visibility) & visibility.valid  # (B, T)
                uniform = probe.uniform(visibility).double()  # (B, T)
                chance = torch.where(asked, uniform, 0.0).sum(-1)  # (B,)
                found[name] = (asked, chance, asked.sum(-1))
            self._asked[kind] = found
        return self._asked[kind]
