"""Multi-head attention, written once for MHA, GQA and MQA.

Axis letters used in every shape comment of this package:
B texts, T tokens (queries), S keys, H query heads, G key/value heads, R = H/G query heads per
group, D d_head, C d_model, t queries in a block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnscope.attention.cores import Block, blocked, dense
from attnscope.attention.lens import Lens
from attnscope.attention.rotary import Rotation, rotate
from attnscope.attention.spec import AttentionSpec
from attnscope.attention.visibility import Visibility

DENSE_WEIGHTS = 4_194_304  # up to so many weights a layer (16 MiB) all rows are computed at once
BLOCK_ROWS = 64


@dataclass(frozen=True)
class Projections:
    """The four linear maps of a layer: W_Q (C to H·D), W_K and W_V (C to G·D), W_O (H·D to C)."""

    query: nn.Module
    key: nn.Module
    value: nn.Module
    output: nn.Module


class MultiHeadAttention(nn.Module):
    """Scaled dot-product attention over several heads (Vaswani et al. 2017, section 3.2).

    With fewer key/value heads than query heads it is grouped-query attention (Ainslie et al. 2023),
    with one it is multi-query attention (Shazeer 2019).
    """

    def __init__(
        self, spec: AttentionSpec, projections: Projections | None = None, layer: int = 0
    ) -> None:
        super().__init__()
        self.spec = spec
        self.layer = layer
        self.block_rows: int | None = None  # None: all rows at once while they are few
        made = projections or _new_projections(spec)
        self.W_Q, self.W_K = made.query, made.key
        self.W_V, self.W_O = made.value, made.output

    def forward(
        self,
        hidden_states: Tensor,
        *,
        valid: Tensor | None = None,
        rotation: Rotation | None = None,
        lens: Lens | None = None,
    ) -> Tensor:
        """hidden_states (B, T, C) to (B, T, C). valid (B, T) bool is False on padding.

        A rotary layer needs the `rotation` of its positions.
        """
        if valid is None:
            valid = torch.ones(
                hidden_states.shape[:2], dtype=torch.bool, device=hidden_states.device
            )
        visibility = Visibility(valid, self.spec.causal, self.spec.window)
        query, key, value = self.project(hidden_states)
        query, key, value = self.split(query), self.split(key), self.split(value)
        query, key = self.rotate(query, key, rotation)
        heads = self.attend(query, key, value, visibility, lens)
        return self.mix(self.merge(heads).to(hidden_states.dtype))

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x · W_Q, x · W_K, x · W_V."""
        return (
            self.W_Q(hidden_states),  # (B, T, H·D)
            self.W_K(hidden_states),  # (B, T, G·D)
            self.W_V(hidden_states),  # (B, T, G·D)
        )

    def split(self, features: Tensor) -> Tensor:
        """Cut the features into heads."""
        batch, rows, _ = features.shape
        heads = features.view(batch, rows, -1, self.spec.head_width)  # (B, T, H or G, D)
        return heads.transpose(1, 2)  # (B, H or G, T, D)

    def rotate(
        self, query: Tensor, key: Tensor, rotation: Rotation | None
    ) -> tuple[Tensor, Tensor]:
        """Turn query and key by their positions, where the layer is rotary."""
        if not self.spec.rotary:
            return query, key
        if rotation is None:
            raise ValueError("This layer is rotary: pass the rotation of its positions.")
        return rotate(query, rotation), rotate(key, rotation)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        visibility: Visibility,
        lens: Lens | None,
    ) -> Tensor:
        """softmax(query · key * scale) · value; the lens sees the weights, nobody keeps them."""
        batch, n_heads, rows, width = query.shape
        groups, shared = self.spec.kv_heads, self.spec.group_size
        grouped = query.view(batch, groups, shared, rows, width)  # (B, G, R, T, D)

        def show(start: int, low: int, weights: Tensor, scores: Tensor) -> None:
            if lens is not None:
                flat = (t.view(batch, n_heads, *t.shape[3:]) for t in (weights, scores))
                lens.see(Block(self.layer, start, low, *flat), visibility)  # (B, H, t, S)

        if lens is not None:
            lens.begin_layer()
        block = self.block_rows or self._automatic_rows(batch, rows)
        if block >= rows:
            heads = dense(grouped, key, value, self.spec, visibility, show)  # (B, G, R, T, D)
        else:
            heads = blocked(grouped, key, value, self.spec, visibility, show, block)
        z = heads.view(batch, n_heads, rows, width)  # (B, H, T, D)
        if lens is not None:
            around = {"query": query, "key": key, "value": value, "z": z}
            lens.end_layer(self.layer, visibility, around)
        return z

    def merge(self, heads: Tensor) -> Tensor:
        """Put the heads side by side again."""
        return heads.transpose(1, 2).flatten(2)  # (B, T, H·D)

    def mix(self, merged: Tensor) -> Tensor:
        """The output projection, heads · W_O."""
        output: Tensor = self.W_O(merged)  # (B, T, C)
        return output

    def _automatic_rows(self, batch: int, rows: int) -> int:
        if batch * self.spec.n_heads * rows * rows <= DENSE_WEIGHTS:
            return rows
        return BLOCK_ROWS


def _new_projections(spec: AttentionSpec) -> Projections:
    query, shared = spec.n_heads * spec.head_width, spec.kv_heads * spec.head_width
    return Projections(
        query=nn.Linear(spec.d_model, query, bias=spec.bias),
        key=nn.Linear(spec.d_model, shared, bias=spec.bias),
        value=nn.Linear(spec.d_model, shared, bias=spec.bias),
        output=nn.Linear(query, spec.d_model, bias=spec.bias),
    )
