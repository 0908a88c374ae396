"""The residual stream: which norms lie between what one layer's attention writes and another reads.

Where norms stand is not looked up by name. With every matrix silenced only norms and additions are
left. Each norm multiplies by random factors of its own in place of its work; then what arrives at a
layer, over what was put in, is a product of factors, and tells which norms lay on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnscope.attention.rotary import Rotation
from attnscope.errors import CheckpointError
from attnscope.models.folds import Fold
from attnscope.models.load import Model
from attnscope.models.silence import run_silent
from attnscope.plain import visible

PER_LAYER = 4  # norms of a layer, at most as far as is known
SPREAD = 0.3  # of the logarithms of the factors
TOLERANCE = 1e-3
POSITIONS = 256  # whose embeddings are followed

Norms = tuple[int, ...]  # by the order in which they are called


@dataclass(frozen=True)
class Stream:
    """The norms on the way from any layer's attention to that of any later layer.

    `reads[l]` stand before the attention of layer l and only there; `writes[l]` behind it and only
    there, with `factors[l]`, which the layer multiplies its output by. `passes[l]` stand in the
    stream itself, between layers l - 1 and l; its last entry leads to the final hidden state.
    """

    reads: tuple[tuple[Fold, ...], ...]
    writes: tuple[tuple[Fold, ...], ...]
    factors: tuple[float, ...]
    passes: tuple[tuple[Fold, ...], ...]

    @property
    def plain(self) -> bool:
        """Does what is written stay as it is up to the last layer? Not in post-norm models."""
        return not any(self.passes[1:-1])


def read_stream(model: Model) -> Stream:
    """Follow the residual stream from layer to layer.

    Raises CheckpointError where it is not made of norms and additions.
    """
    n_layers, width = model.shape.n_layers, model.shape.d_model
    n_tokens = -(-4 * (PER_LAYER * n_layers + 2) // width)
    n_tokens = min(n_tokens, model.shape.max_positions or n_tokens)
    generator = torch.Generator().manual_seed(0)
    folds: dict[nn.Module, Fold] = {}
    factors: dict[nn.Module, Tensor] = {}
    sent = torch.randn(n_layers, n_tokens, width, generator=generator)  # by each layer
    begun = torch.Generator().manual_seed(1)

    def multiplied(module: nn.Module, fold: Fold, features: Tensor) -> Tensor:
        if module not in factors:
            folds[module] = fold
            factors[module] = SPREAD * torch.randn(n_tokens, width, generator=generator)
        return features * factors[module].exp().to(features)

    def write(layer: int, output: Tensor) -> Tensor:
        written = torch.zeros_like(output)  # (1 + L, T, C): text 0 is the embeddings alone
        written[layer + 1] = sent[layer].to(output)
        return written

    def start(embedded: Tensor) -> Tensor:
        noise = torch.randn(embedded.shape[1:], generator=begun.manual_seed(1))
        return embedded + noise.to(embedded)

    ids = torch.zeros(1 + n_layers, n_tokens, dtype=torch.int64)
    heard = run_silent(model, ids, multiplied, write, start)
    if heard.final is None or heard.final.shape[-1] != width:
        raise CheckpointError(
            f"{visible(model.id)} ends in a hidden state of another width than its layers, so its "
            "circuits cannot be read off the weights."
        )
    arrived = [hidden.cpu().double() for hidden in (*heard.entered, heard.final)]
    way = _Way(model, [factor.double() for factor in factors.values()])
    return _follow(way, list(folds.values()), sent.double(), arrived)


def _follow(way: _Way, folds: list[Fold], sent: Tensor, arrived: list[Tensor]) -> Stream:
    """Tell the norms apart: by what the embeddings met, and by what each layer's output met."""
    n_layers = len(sent)
    steps = [
        way.between(arrived[layer][0], arrived[layer + 1][0], layer) for layer in range(n_layers)
    ]
    # What stands before one layer's attention alone is no longer met at the next one.
    reads: list[Norms] = [step.lost for step in steps] + [()]
    passes: list[Norms] = [()]
    passes += [_without(step.met, reads[layer + 1]) for layer, step in enumerate(steps)]
    writes: list[Norms] = []
    factors: list[float] = []
    for layer in range(n_layers):
        new = arrived[layer + 1][layer + 1] - arrived[layer + 1][0]
        step = way.between(sent[layer], new, layer)
        writes.append(_without(step.met, passes[layer + 1] + reads[layer + 1]))
        factors.append(step.factor)
        beyond: Norms = ()
        for later in range(layer + 1, n_layers + 1):
            beyond += passes[later]
            new = arrived[later][layer + 1] - arrived[later][0]
            told = factors[layer] * way.product(writes[layer] + beyond + reads[later])
            way.check(told * sent[layer], new, layer)

    def named(norms: Norms) -> tuple[Fold, ...]:
        return tuple(folds[n] for n in norms)

    return Stream(
        tuple(map(named, reads[:-1])),
        tuple(map(named, writes)),
        tuple(factors),
        tuple(map(named, passes)),
    )


@dataclass(frozen=True)
class _Step:
    """The norms that lie between two places, those no longer met, and a factor beside them."""

    met: Norms
    lost: Norms
    factor: float


@dataclass(frozen=True)
class _Way:
    """Tells which norms lie between two places, by the logarithms of their factors (T, C)."""

    model: Model
    logs: list[Tensor]

    def between(self, before: Tensor, after: Tensor, layer: int) -> _Step:
        """before and after (T, C)."""
        ratio = (after / before).flatten()
        sign = 1.0 if bool((ratio > 0).all()) else -1.0
        if not bool((sign * ratio > 0).all() & ratio.isfinite().all()):
            raise self._lost(layer)
        known = torch.stack([*(log.flatten() for log in self.logs), torch.ones_like(ratio)], -1)
        found = torch.linalg.lstsq(known, (sign * ratio).log()[:, None]).solution[:, 0]
        times = found[:-1].round()
        if bool((found[:-1] - times).abs().max(dim=0).values > 0.1) if len(times) else False:
            raise self._lost(layer)
        met = tuple(int(n) for n in (times > 0).nonzero())
        lost = tuple(int(n) for n in (times < 0).nonzero())
        return _Step(met, lost, sign * float(found[-1].exp()))

    def product(self, norms: Norms) -> Tensor:
        """What so many norms multiply by, (T, C)."""
        return sum((self.logs[n] for n in norms), torch.zeros(1).double()).exp()

    def check(self, told: Tensor, arrived: Tensor, layer: int) -> None:
        """Raise when something else arrives than what was told."""
        if not bool((told - arrived).abs().max() <= TOLERANCE * arrived.abs().max()):
            raise self._lost(layer)

    def _lost(self, layer: int) -> CheckpointError:
        return CheckpointError(
            f"{visible(self.model.id)}: what layer {layer} writes does not reach the next layers "
            "through norms and additions alone, so its circuits cannot be read off the weights."
        )


def _without(norms: Norms, others: Norms) -> Norms:
    return tuple(n for n in norms if n not in others)


def rotations_at(model: Model, distance: int) -> list[tuple[Rotation, Rotation] | None]:
    """The turns of every layer at the first position and `distance` further, (1, 1, W) each.

    None for a layer that does not turn.
    """
    heard = run_silent(model, _same_tokens(model, distance + 1), _folded)
    return [
        None
        if turn is None
        else (_at(turn, 0), _at(turn, distance))
        for turn in heard.rotations
    ]  # fmt: skip


def positions_in(model: Model) -> list[Tensor] | None:
    """What the positions alone bring to each layer's attention, (T, C), their mean taken off.

    None where no position is added to the stream. Up to 256 positions.
    """
    n_tokens = min(POSITIONS, model.shape.max_positions or POSITIONS)
    heard = run_silent(model, _same_tokens(model, n_tokens), _folded)
    found = [entered[0] - entered[0].mean(0) for entered in heard.entered]  # (T, C)
    whole = [entered[0].abs().max() for entered in heard.entered]
    if all(bool(one.abs().max() <= 1e-5 * size) for one, size in zip(found, whole, strict=True)):
        return None
    return found


def _folded(_: nn.Module, fold: Fold, features: Tensor) -> Tensor:
    return fold(features)


def _at(turn: Rotation, position: int) -> Rotation:
    here = slice(position, position + 1)
    return Rotation(turn.cos[:1, here], turn.sin[:1, here])  # (1, 1, W)


def _same_tokens(model: Model, length: int) -> Tensor:
    """One token over and over: whatever differs comes from the positions. Not the padding one."""
    token = model.shape.vocab_size // 2
    token += token == model.tokenizer.pad_token_id
    return torch.full((1, length), token)
