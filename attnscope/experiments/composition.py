"""Composition: how much of what one head writes another one reads, from their weights alone.

Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits": ‖M · W_OV‖ / ‖M‖ ‖W_OV‖
with Frobenius norms, where M is the reader's W_QK from its query side (Q) or its key side (K), or
its W_OV (V), and W_OV the writer's. No (C, C) matrix is ever made: a head reads through D rows
(`readers`) and writes through D others (`written`) that have the same norms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from attnscope.attention.linear import weight_of
from attnscope.attention.rotary import Rotation, rotate
from attnscope.attention.spec import AttentionSpec
from attnscope.errors import CheckpointError
from attnscope.models.folds import Fold, find_fold
from attnscope.models.load import Model
from attnscope.models.stream import Stream
from attnscope.plain import visible

KINDS = ("Q", "K", "V")
Turns = tuple[Rotation, Rotation]  # of the query and of the key


@dataclass(frozen=True)
class HeadWeights:
    """The weights of one layer's heads, norms folded in, query and key turned; all (H, D, C).

    A query head stands with the key and value of its group.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor  # W_O's columns as rows, as they enter the residual stream

    def readers(self) -> Tensor:
        """What each head reads with, by kind: (3, H, D, C) with the norms of W_QK and W_OV."""
        by_query, by_key = _root(self.query), _root(self.key)  # (H, D, D)
        return torch.stack(
            [by_key @ self.query, by_query @ self.key, _root(self.output) @ self.value]
        )

    def written(self) -> Tensor:
        """What each head writes, (H, D, C) with the norm of W_OV."""
        return _root(self.value) @ self.output


def head_weights(model: Model, stream: Stream, layer: int, turns: Turns | None) -> HeadWeights:
    """One layer's weights in float32, where the model is (on mps: on the CPU).

    Raises CheckpointError for norms of query and key that are none.
    """
    attention, spec = model.seats[layer].attention, model.specs[layer]
    place = torch.device("cpu") if model.device.type == "mps" else model.device
    query, key, value = (
        _folded_into(weight_of(part).to(place, torch.float32), stream.reads[layer])
        for part in (attention.W_Q, attention.W_K, attention.W_V)
    )  # (H·D, C), 2 × (G·D, C)
    first, second = turns or (None, None)
    query = _as_attention_takes(model, query, spec, attention.query_norm, first)  # (H, D, C)
    key = _as_attention_takes(model, key, spec, attention.key_norm, second)  # (G, D, C)
    value = value.reshape(-1, spec.head_width, spec.d_model)  # (G, D, C)
    output = weight_of(attention.W_O).to(place, torch.float32)  # (C, H·D)
    output = output.T.reshape(-1, spec.head_width, spec.d_model)  # (H, D, C)
    for fold in stream.writes[layer]:
        output = fold(output)
    shared = torch.arange(spec.n_heads, device=place) // spec.group_size
    return HeadWeights(query, key[shared], value[shared], output * stream.factors[layer])


@dataclass(frozen=True)
class Compositions:
    """Every pair of heads (3, L, H, L, H): by kind, source layer and head, target layer and head.

    NaN where the source is not in an earlier layer, or where one of both is nothing but zeros.
    """

    score: Tensor
    z: Tensor


@dataclass(frozen=True)
class _Rows:
    """Rows of heads (..., D, C) with the sums that say how they could meet others by chance."""

    rows: Tensor
    squares: Tensor  # (...): the sum of squared singular values
    evenness: Tensor  # (...): the sum of their fourth powers over the square of that

    @classmethod
    def of(cls, rows: Tensor) -> _Rows:
        gram = (rows @ rows.mT).double()  # (..., D, D)
        squares = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
        return cls(rows, squares, gram.square().sum((-2, -1)) / squares.square())


def compare(reader: Tensor, written: Tensor) -> tuple[Tensor, Tensor]:
    """Score and z of readers (3, H, D, C) with what was written (H, D, C): (3, source, target).

    By chance two heads would lie in the residual stream as if one had been turned at random. Then
    the square of the score has mean 1/C and variance 2 (e - 1/C) (f - 1/C) / (C - 1) (C + 2), e and
    f being how unevenly either spreads (the second moment of an orbit of O(C); exact). z is the
    normal score of a gamma variable with that mean and variance (Wilson and Hilferty 1931).
    """
    target, source = _Rows.of(reader), _Rows.of(written)
    width, depth = reader.shape[-1], reader.shape[-2]
    n_heads = reader.shape[1]
    met = reader.flatten(0, 2) @ written.flatten(0, 1).T  # (3·H·D, H·D)
    met = met.view(3, n_heads, depth, len(written), -1).square().sum((2, 4)).double()  # (3, H, H)
    met = met.mT  # (3, source, target)
    share = met / (target.squares[:, None, :] * source.squares[None, :, None])
    uneven = (target.evenness[:, None, :] - 1 / width) * (
        source.evenness[None, :, None] - 1 / width
    )
    variance = 2 * uneven.clamp(min=0) / ((width - 1) * (width + 2))
    ninth = variance * width**2 / 9
    z = ((share * width).pow(1 / 3) - 1 + ninth) / ninth.sqrt()
    return share.sqrt(), torch.where(ninth > 0, z, torch.nan)


def compositions(model: Model, stream: Stream, layers: Iterator[HeadWeights]) -> Compositions:
    """Compare every head with those of all later layers, as the layers come."""
    shape = model.shape
    size = (len(KINDS), shape.n_layers, shape.n_heads, shape.n_layers, shape.n_heads)
    score, z = torch.full(size, torch.nan), torch.full(size, torch.nan)
    before: list[Tensor] = []  # what earlier layers wrote, as it reaches this one
    for layer, weights in enumerate(layers):
        before = [_passed(written, stream.passes[layer]) for written in before]
        reader = weights.readers()
        for earlier, written in enumerate(before):
            found = compare(reader, written)
            score[:, earlier, :, layer], z[:, earlier, :, layer] = (f.cpu() for f in found)
        before.append(weights.written())
    return Compositions(score, z)


def _passed(rows: Tensor, folds: tuple[Fold, ...]) -> Tensor:
    for fold in folds:
        rows = fold(rows)
    return rows


def _folded_into(weight: Tensor, folds: tuple[Fold, ...]) -> Tensor:
    for fold in reversed(folds):
        weight = fold.into(weight)
    return weight


def _root(rows: Tensor) -> Tensor:
    """rows (H, D, C) to (H, ≤ D, D) with ‖rowsᵀ · M‖ = ‖root · M‖ for every M."""
    root: Tensor = torch.linalg.qr(rows.mT, mode="r").R
    return root


def _as_attention_takes(
    model: Model, rows: Tensor, spec: AttentionSpec, norm: nn.Module | None, turn: Rotation | None
) -> Tensor:
    """W_Q or W_K (H·D, C) as (H, D, C), normed and turned like queries and keys."""
    features = rows.T  # (C, H·D)
    if norm is not None and spec.qk_norm == "projection":
        features = _fold_of(model, norm, features.shape[1:])(features)
    features = features.reshape(len(features), -1, spec.head_width)  # (C, H, D)
    by_head = norm is not None and spec.qk_norm == "head"
    if by_head and not spec.norm_after_rotary:
        features = _fold_of(model, norm, features.shape[1:])(features)
    if spec.rotary and turn is not None:
        turned = Rotation(turn.cos.to(features), turn.sin.to(features))
        features = rotate(features.movedim(0, 1)[None], turned, spec.rotary_pairs)[0].movedim(0, 1)
    if by_head and spec.norm_after_rotary:
        features = _fold_of(model, norm, features.shape[1:])(features)
    return features.permute(1, 2, 0)  # (H, D, C)


def _fold_of(model: Model, norm: nn.Module | None, shape: torch.Size) -> Fold:
    assert norm is not None
    exact = {name: parameter.float() for name, parameter in norm.named_parameters()}
    with torch.inference_mode():
        like = torch.zeros((), device=next(iter(exact.values()), torch.zeros(())).device)
        fold = find_fold(lambda features: functional_call(norm, exact, (features,)), shape, like)
    if fold is None:
        raise CheckpointError(
            f"{visible(model.id)} changes its queries and keys in a way that is no norm, so its "
            "circuits cannot be read off the weights."
        )
    return fold
