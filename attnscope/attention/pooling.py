"""Pooling: a layer with fewer key/value heads, made from the weights of the ones it has.

Query heads that come to share are a group; three methods make the group's one key/value head.

`mean`: the mean of their W_K and of their W_V, W_Q and W_O as they are (Ainslie et al. 2023,
section 2.1). `first`: those of the first.

`best-aligned`: each head is turned into common coordinates before they are pooled, and its query
and output heads are turned along; `alignment` says how, and what is kept. Where keys are normed
behind W_K they are pooled by their mean.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from attnscope.attention.alignment import (
    Features,
    Moments,
    common_head,
    key_features,
    value_features,
)
from attnscope.attention.linear import bias_of, linear, weight_of
from attnscope.attention.multihead import MultiHeadAttention, Projections
from attnscope.attention.spec import AttentionSpec
from attnscope.errors import UsageError

METHODS = ("mean", "first", "best-aligned")


@dataclass(frozen=True)
class Grouping:
    """Which query heads share a key/value head: groups of equal size, as they will be laid out."""

    groups: tuple[tuple[int, ...], ...]

    @classmethod
    def neighbours(cls, n_heads: int, n_groups: int) -> Grouping:
        """Groups of heads that stand side by side. Raises UsageError where heads are left over."""
        if n_groups < 1 or n_heads % n_groups:
            fitting = [str(n) for n in range(1, n_heads + 1) if n_heads % n == 0]
            raise UsageError(
                f"{n_heads} query heads cannot share {n_groups} key/value heads evenly. "
                f"Choose from {', '.join(fitting)}."
            )
        size = n_heads // n_groups
        return cls(tuple(tuple(range(n, n + size)) for n in range(0, n_heads, size)))

    @property
    def order(self) -> tuple[int, ...]:
        """The heads in their new places: which one comes to stand there."""
        return tuple(chain.from_iterable(self.groups))

    def sources(self, spec: AttentionSpec) -> list[dict[int, int]]:
        """For each group: the key/value heads that its query heads read, and how many read it."""
        found = []
        for group in self.groups:
            read = [spec.kv_head(head) for head in group]
            found.append({head: read.count(head) for head in dict.fromkeys(read)})
        return found

    def is_exact(self, spec: AttentionSpec) -> bool:
        """Do all heads of each group read the same key/value head already?"""
        return all(len(heads) == 1 for heads in self.sources(spec))


def pool(
    attention: MultiHeadAttention,
    grouping: Grouping,
    method: str = "mean",
    moments: Moments | None = None,
) -> MultiHeadAttention:
    """The layer with one key/value head for each group; itself where nothing would change.

    Its heads stand as `grouping.order` says. `moments` decide what `best-aligned` keeps; without
    them, the weights alone do. Raises UsageError for an unknown method.
    """
    if method not in METHODS:
        raise UsageError(f"Unknown method {method!r}: choose from {', '.join(METHODS)}.")
    spec = attention.spec
    same = len(grouping.groups) == spec.kv_heads and grouping.is_exact(spec)
    if same and grouping.order == tuple(range(spec.n_heads)):
        return attention
    query, key, value, output = _split(attention)
    sources = grouping.sources(spec)
    shares = [_shares(heads, method) for heads in sources]
    pooled_key, pooled_value = _mixed(key, shares), _mixed(value, shares)
    if method == "best-aligned":
        seen = moments or _moments_of_weights(key, value)
        for group, (members, heads) in enumerate(zip(grouping.groups, sources, strict=True)):
            if len(heads) == 1:
                continue
            if spec.qk_norm is None:
                maps = _align(key, heads, key_features(spec), seen.key, pooled_key, group)
                for head in members:
                    query.turn(head, maps[spec.kv_head(head)].T)
            maps = _align(value, heads, value_features(spec), seen.value, pooled_value, group)
            for head in members:
                output.weight[:, head] = output.weight[:, head] @ maps[spec.kv_head(head)]  # (C, D)
    order = list(grouping.order)
    kept = order == list(range(spec.n_heads)) and method != "best-aligned"
    made = MultiHeadAttention(
        spec.with_changes(n_kv_heads=len(grouping.groups)),
        Projections(
            query=attention.W_Q if kept else _linear(query.take(order), attention.W_Q),
            key=_linear(pooled_key, attention.W_K),
            value=_linear(pooled_value, attention.W_V),
            output=attention.W_O if kept else _mixer(output, order, attention.W_O),
            query_norm=_norm(attention.query_norm, spec, [{head: 1.0} for head in order]),
            key_norm=_norm(attention.key_norm, spec, shares),
            sink=None if attention.sink is None else _kept(attention.sink[order], attention.sink),
        ),
        attention.layer,
    )
    made.block_rows = attention.block_rows
    return made.train(attention.training)


@dataclass(frozen=True)
class _Heads:
    """A projection by head: weight (H or G, D, C) float64, bias (H or G, D). W_O: (C, H, D)."""

    weight: Tensor
    bias: Tensor | None

    def take(self, heads: Sequence[int]) -> _Heads:
        """Some of the heads, in this order."""
        at = list(heads)
        return _Heads(self.weight[at], None if self.bias is None else self.bias[at])

    def turn(self, head: int, by: Tensor) -> None:
        """Put the features of one head through a matrix (D, D), in place."""
        self.weight[head] = by @ self.weight[head]
        if self.bias is not None:
            self.bias[head] = by @ self.bias[head]


def _split(attention: MultiHeadAttention) -> tuple[_Heads, _Heads, _Heads, _Heads]:
    """W_Q, W_K, W_V and W_O, copied in double precision."""
    width = attention.spec.head_width
    found = []
    for module in (attention.W_Q, attention.W_K, attention.W_V):
        weight, bias = weight_of(module), bias_of(module)
        by_head = None if bias is None else _double(bias).view(-1, width)
        found.append(_Heads(_double(weight).view(-1, width, weight.shape[1]), by_head))
    mixer = weight_of(attention.W_O)
    output = _double(mixer).view(mixer.shape[0], -1, width)  # (C, H, D)
    query, key, value = found
    return query, key, value, _Heads(output, None)


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float64, copy=True).contiguous()


def _moments_of_weights(key: _Heads, value: _Heads) -> Moments:
    """As they would be if all inputs were alike likely: rarely near the truth."""
    flat = [one.weight.flatten(0, 1) for one in (key, value)]  # (G·D, C)
    biases = [
        0.0 if one.bias is None else one.bias.flatten().outer(one.bias.flatten())
        for one in (key, value)
    ]
    return Moments(*(rows @ rows.T + bias for rows, bias in zip(flat, biases, strict=True)))


def _align(
    heads: _Heads,
    counts: dict[int, int],
    features: Features,
    moment: Tensor,
    pooled: _Heads,
    group: int,
) -> dict[int, Tensor]:
    """Put the head that the sources share into `pooled`; the map A_g (D, D) of each source."""
    found = common_head(features, moment, counts)
    chosen = list(counts)
    pooled.weight[group] = torch.einsum("nde,ndc->ec", found.back, heads.weight[chosen])  # (D, C)
    if heads.bias is not None and pooled.bias is not None:
        pooled.bias[group] = torch.einsum("nde,nd->e", found.back, heads.bias[chosen])  # (D,)
    return dict(zip(chosen, found.maps, strict=True))


def _shares(heads: dict[int, int], method: str) -> dict[int, float]:
    """How much of each source goes into a pooled head."""
    if method == "first":
        return {next(iter(heads)): 1.0}
    total = sum(heads.values())
    return {head: count / total for head, count in heads.items()}


def _mixed(heads: _Heads, shares: Sequence[dict[int, float]]) -> _Heads:
    weight, bias = (
        None if one is None else torch.stack([_mixture(one, share) for share in shares])
        for one in (heads.weight, heads.bias)
    )
    assert weight is not None
    return _Heads(weight, bias)


def _mixture(by_head: Tensor, shares: dict[int, float]) -> Tensor:
    if len(shares) == 1:
        return by_head[next(iter(shares))]
    return torch.stack([share * by_head[head] for head, share in shares.items()]).sum(0)


def _linear(heads: _Heads, like: nn.Module) -> nn.Linear:
    model = weight_of(like)
    bias = None if heads.bias is None else _kept(heads.bias.flatten(), model)
    return linear(_kept(heads.weight.flatten(0, 1), model), bias)


def _mixer(output: _Heads, order: list[int], like: nn.Module) -> nn.Linear:
    weight = _kept(output.weight[:, order].flatten(1), weight_of(like))
    return linear(weight, bias_of(like))


def _kept(tensor: Tensor, like: Tensor) -> nn.Parameter:
    made = tensor.detach().to(like.device, like.dtype).contiguous()
    return nn.Parameter(made, requires_grad=False)


def _norm(
    norm: nn.Module | None, spec: AttentionSpec, shares: Sequence[dict[int, float]]
) -> nn.Module | None:
    """A norm for other heads, where it has weights of each head's own; else the norm itself."""
    if norm is None:
        return None
    own = {
        name: parameter
        for name, parameter in norm.named_parameters(recurse=False)
        if spec.qk_norm == "projection" or parameter.dim() == 2
    }
    if not own:
        return norm
    made = copy.deepcopy(norm)
    for name, parameter in own.items():
        by_head = _double(parameter).view(-1, spec.head_width)
        mixed = torch.stack([_mixture(by_head, share) for share in shares])
        shape = mixed if parameter.dim() == 2 else mixed.flatten()
        setattr(made, name, _kept(shape, parameter))
    if isinstance(made, (nn.LayerNorm, nn.RMSNorm)):
        made.normalized_shape = tuple(next(iter(made.parameters())).shape)
    return made
