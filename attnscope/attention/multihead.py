"""Multi-head attention, written once for MHA, GQA and MQA.

Axis letters used in every shape comment of this package:
B texts, T tokens (queries), S keys, H query heads, G key/value heads, R = H/G query heads per
group, D d_head, C d_model, t queries in a block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from attnscope.attention.cores import Block, blocked, dense
from attnscope.attention.lens import Lens
from attnscope.attention.rotary import Rotation, rotate
from attnscope.attention.spec import AttentionSpec
from attnscope.attention.visibility import Visibility

DENSE_WEIGHTS = 1_048_576  # up to so many weights a layer (4 MiB) all rows are computed at once
BLOCK_ROWS = 64


@dataclass(frozen=True)
class Projections:
    """The four linear maps of a layer: W_Q (C to H·D), W_K and W_V (C to G·D), W_O (H·D to C).

    Where the layer has them: the norms of query and key, and the learned sink (H,).
    """

    query: nn.Module
    key: nn.Module
    value: nn.Module
    output: nn.Module
    query_norm: nn.Module | None = None
    key_norm: nn.Module | None = None
    sink: nn.Parameter | None = None


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
        normed = spec.qk_norm is not None
        self.query_norm = made.query_norm if normed else None
        self.key_norm = made.key_norm if normed else None
        self.sink = made.sink if spec.sink else None

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
        query, key, value = self.prepare(hidden_states, rotation)
        heads = self.attend(query, key, value, visibility, lens)
        return self.mix(self.merge(heads).to(hidden_states.dtype))

    def prepare(
        self, hidden_states: Tensor, rotation: Rotation | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query (B, H, T, D), key and value (B, G, S, D) as the scores take them."""
        query, key, value = self.project(hidden_states)
        query, key = self.normalise(query, key, "projection")
        query, key, value = self.split(query), self.split(key), self.split(value)
        if not self.spec.norm_after_rotary:
            query, key = self.normalise(query, key, "head")
        query, key = self.rotate(query, key, rotation)
        if self.spec.norm_after_rotary:
            query, key = self.normalise(query, key, "head")
        return query, key, value

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

    def normalise(self, query: Tensor, key: Tensor, over: str) -> tuple[Tensor, Tensor]:
        """Norm query and key, where the layer norms over this much of them."""
        if self.spec.qk_norm != over or self.query_norm is None or self.key_norm is None:
            return query, key
        if over == "projection":
            return self.query_norm(query), self.key_norm(key)  # (B, T, H·D), (B, T, G·D)
        # With the heads last but one: some norms have weights (H, D) of each head's own.
        query = self.query_norm(query.transpose(1, 2)).transpose(1, 2)  # (B, H, T, D)
        key = self.key_norm(key.transpose(1, 2)).transpose(1, 2)  # (B, G, T, D)
        return query, key

    def rotate(
        self, query: Tensor, key: Tensor, rotation: Rotation | None
    ) -> tuple[Tensor, Tensor]:
        """Turn query and key by their positions, where the layer is rotary."""
        if not self.spec.rotary:
            return query, key
        if rotation is None:
            raise ValueError("This layer is rotary: pass the rotation of its positions.")
        pairs = self.spec.rotary_pairs
        return rotate(query, rotation, pairs), rotate(key, rotation, pairs)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        visibility: Visibility,
        lens: Lens | None,
    ) -> Tensor:
        """softmax(query · key * scale) · value; the lens sees the weights, nobody keeps them."""
        ablation = None if lens is None else lens.ablation
        if ablation is not None:
            query, key = ablation.patterns(self.layer, query, key)
        batch, n_heads, rows, width = query.shape
        groups, shared = self.spec.kv_heads, self.spec.group_size
        grouped = query.reshape(batch, groups, shared, rows, width)  # (B, G, R, T, D)
        sink = None if self.sink is None else self.sink.view(groups, shared)  # (G, R)
        taken: list[Tensor] = []  # the sink's share of each row
        # Layers may lie on several devices; the lens asks on the one where the texts are.
        asked, visibility = visibility.valid.device, visibility.on(query.device)
        seen = visibility.on(asked)

        def show(
            start: int, low: int, weights: Tensor, scores: Tensor, share: Tensor | None
        ) -> None:
            if lens is None:
                return
            flat = (t.view(batch, n_heads, *t.shape[3:]).to(asked) for t in (weights, scores))
            block = Block(self.layer, start, low, *flat)  # (B, H, t, S)
            if share is not None:
                taken.append(share.view(batch, n_heads, -1).to(asked))  # (B, H, t)
                block = replace(block, sink=taken[-1])
            lens.see(block, seen)

        block = self.block_rows or self._automatic_rows(batch, rows)
        if block >= rows:
            heads = dense(grouped, key, value, self.spec, visibility, show, sink)  # (B, G, R, T, D)
        else:
            heads = blocked(grouped, key, value, self.spec, visibility, show, block, sink)
        z = heads.view(batch, n_heads, rows, width)  # (B, H, T, D)
        if ablation is not None:
            z = ablation.edit(self.layer, z, value, visibility, sink is not None)
        if lens is not None:
            around = {"query": query, "key": key, "value": value, "z": z}
            if taken:
                around["sink"] = torch.cat(taken, dim=-1)  # (B, H, T)
            lens.record(self.layer, around)
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
        query_norm=_new_norm(spec, query),
        key_norm=_new_norm(spec, shared),
        sink=nn.Parameter(torch.zeros(spec.n_heads)) if spec.sink else None,
    )


def _new_norm(spec: AttentionSpec, width: int) -> nn.Module | None:
    if spec.qk_norm is None:
        return None
    return nn.RMSNorm(width if spec.qk_norm == "projection" else spec.head_width)
