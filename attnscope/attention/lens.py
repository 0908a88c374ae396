"""Lens: what is asked of one forward pass and what is changed in it, and the answers.

A lens is used once: make it with the probes wanted, run the model with it, read `sums`.
Observers receive every block of weights as it is made and must not keep it unless that was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from attnscope.attention.ablation import Ablation
from attnscope.attention.cores import Block
from attnscope.attention.probes import Columns, Probe, Targets, read_all
from attnscope.attention.visibility import Visibility

Observer = Callable[[Block], None]
Recorder = Callable[[int, Mapping[str, Tensor]], None]

# Small layers wait for each other until so many weights (4 MiB) can be read at once: on a short
# text the probes would else cost more than the attention.
TOGETHER = 1_048_576


@dataclass(frozen=True)
class LayerSums:
    """The answers of one layer to P questions, summed over the rows asked. All float64.

    The last three leave resting places out: what is found on the other targets, what an even head
    with the same live mass would put there, and that live mass.
    """

    raw: Tensor  # (B, H, P)
    chance: Tensor  # (B, P): what a uniform head would have summed to
    rows: Tensor  # (B, P) int64: how many rows that was
    free: Tensor  # (B, H, P)
    free_chance: Tensor  # (B, H, P)
    live: Tensor  # (B, H, P)


@dataclass(frozen=True)
class _Asked:
    """The questions, where layers see alike. `parked`: their parts on resting places."""

    rows: Tensor  # (P, B, T) bool
    free_share: Tensor  # (P, B, T): targets among the keys that are no resting place; 0 off rows
    free_rows: Tensor  # (P, B, T): 1.0 where the question has such a share
    chance: Tensor  # (B, P)
    counts: Tensor  # (B, P)
    parked: dict[int, Probe]


@dataclass
class Lens:
    """Probes by name, observers of every block, recorders of what stands around the weights.

    `resting` (B, S) bool marks the keys where attention rests. A recorder is called once a layer
    with query (B, H, T, D), key and value (B, G, S, D), z (B, H, T, D), the head outputs before
    W_O, and sink (B, H, T), what a learned sink takes. `ablation` replaces the z of some heads.
    """

    probes: Mapping[str, Probe] = field(default_factory=dict)
    resting: Tensor | None = None
    observers: tuple[Observer, ...] = ()
    recorders: tuple[Recorder, ...] = ()
    ablation: Ablation | None = None
    _sums: dict[int, LayerSums] = field(default_factory=dict, init=False)
    _waiting: list[Block] = field(default_factory=list, init=False)
    _seen_by: Visibility | None = field(default=None, init=False)
    _known: dict[tuple[bool, int | None], _Asked] = field(default_factory=dict, init=False)

    @property
    def sums(self) -> dict[int, LayerSums]:
        """The answers of every layer that has been seen."""
        self._read()
        return self._sums

    def see(self, block: Block, visibility: Visibility) -> None:
        """Show a block of weights to the observers, and read every probe on it soon."""
        for observer in self.observers:
            observer(block)
        if not self.probes:
            return
        if self._waiting and not self._fits(block, visibility):
            self._read()
        self._waiting.append(block)
        self._seen_by = visibility
        if sum(waiting.weights.numel() for waiting in self._waiting) >= TOGETHER:
            self._read()

    def record(self, layer: int, around: Mapping[str, Tensor]) -> None:
        """Show the recorders what stood around the weights of a layer."""
        for recorder in self.recorders:
            recorder(layer, around)

    def _fits(self, block: Block, visibility: Visibility) -> bool:
        """Can the block be read together with those that wait?"""
        first, seen_by = self._waiting[0], self._seen_by
        assert seen_by is not None
        return (
            (block.start, block.low) == (first.start, first.low)
            and block.weights.shape == first.weights.shape
            and (block.sink is None) == (first.sink is None)
            and (visibility.causal, visibility.window) == (seen_by.causal, seen_by.window)
        )

    def _read(self) -> None:
        """Read every probe on the blocks that wait: layers side by side, as if one had them all."""
        if not self._waiting:
            return
        blocks, self._waiting = self._waiting, []
        assert self._seen_by is not None
        asked = self._asked(self._seen_by)
        found = self._answer(_side_by_side(blocks), self._seen_by, asked)
        n_heads = blocks[0].weights.shape[1]
        for place, block in enumerate(blocks):
            here = slice(place * n_heads, (place + 1) * n_heads)
            part = LayerSums(
                raw=found.raw[:, here],
                chance=asked.chance,
                rows=asked.counts,
                free=found.free[:, here],
                free_chance=found.free_chance[:, here],
                live=found.live[:, here],
            )
            before = self._sums.get(block.layer)
            self._sums[block.layer] = part if before is None else _added(before, part)

    def _answer(self, block: Block, visibility: Visibility, asked: _Asked) -> LayerSums:
        probes = dict(self.probes)
        if self.resting is not None:
            probes |= {f"parked {n}": probe for n, probe in asked.parked.items()}
            probes["resting places"] = Columns(visibility.valid, self.resting, with_sink=True)
        answers = read_all(probes, block, visibility)  # (B, H, t) each
        span = slice(block.start, block.stop)
        each = torch.stack([answers[name] for name in self.probes])  # (P, B, H, t)
        raw = _summed(each, asked.rows[..., span])  # (B, H, P)
        free, free_chance, live = torch.zeros(3, *raw.shape, dtype=raw.dtype, device=raw.device)
        if self.resting is not None:
            awake = (1 - answers["resting places"].double()).clamp(min=0)  # (B, H, t)
            live = torch.einsum("bht,pbt->bhp", awake, asked.free_rows[..., span])
            free_chance = torch.einsum("bht,pbt->bhp", awake, asked.free_share[..., span])
            free = raw.clone()
            for n in asked.parked:
                part = answers[f"parked {n}"][None]  # (1, B, H, t)
                free[..., n] -= _summed(part, asked.rows[n : n + 1, :, span])[..., 0]
        return LayerSums(raw, asked.chance, asked.counts, free, free_chance, live)

    def _asked(self, visibility: Visibility) -> _Asked:
        """Which rows are asked what. Layers that see alike share the answer."""
        kind = (visibility.causal, visibility.window)
        if kind not in self._known:
            self._known[kind] = _ask(list(self.probes.values()), self.resting, visibility)
        return self._known[kind]


def _ask(probes: list[Probe], resting: Tensor | None, visibility: Visibility) -> _Asked:
    rows = torch.stack([probe.targets(visibility) & visibility.valid for probe in probes])
    uniform = torch.stack([probe.uniform(visibility).double() for probe in probes])  # (P, B, T)
    share, has_share = torch.zeros_like(uniform), torch.zeros_like(uniform)
    parked: dict[int, Probe] = {}
    if resting is not None:
        live_keys = visibility.count(~resting).clamp(min=1)  # (B, T)
        for n, probe in enumerate(probes):
            if isinstance(probe, Targets):
                targets = probe.visible(visibility)  # (B, T)
                part = probe.among(resting)
                if part is not None:
                    parked[n] = part
                    targets = targets - part.visible(visibility)
                share[n] = torch.where(rows[n], targets / live_keys, 0.0)
                has_share[n] = rows[n].double()
    return _Asked(
        rows=rows,
        free_share=share,
        free_rows=has_share,
        chance=torch.where(rows, uniform, 0.0).sum(-1).T,
        counts=rows.sum(-1).T,
        parked=parked,
    )


def _summed(answers: Tensor, rows: Tensor) -> Tensor:
    """answers (P, B, H, t) summed over the rows asked (P, B, t), as (B, H, P) float64."""
    kept = torch.where(rows[:, :, None], answers, 0.0)
    return kept.sum(-1, dtype=torch.float64).permute(1, 2, 0)


def _side_by_side(blocks: list[Block]) -> Block:
    """The blocks of several layers as one with all their heads, layer by layer."""
    first = blocks[0]
    if len(blocks) == 1:
        return first
    weights = torch.cat([block.weights for block in blocks], dim=1)  # (B, L·H, t, S)
    scores = torch.cat([block.scores for block in blocks], dim=1)  # (B, L·H, t, S)
    sinks = [block.sink for block in blocks if block.sink is not None]
    return Block(
        first.layer, first.start, first.low, weights, scores,
        torch.cat(sinks, dim=1) if sinks else None,
    )  # fmt: skip


def _added(one: LayerSums, other: LayerSums) -> LayerSums:
    """More rows of the same layer; chance and number of rows are those of the whole text."""
    whole = ("chance", "rows")
    return LayerSums(
        **{
            f.name: getattr(one, f.name)
            if f.name in whole
            else getattr(one, f.name) + getattr(other, f.name)
            for f in fields(LayerSums)
        }
    )
