"""How a checkpoint stores W_Q, W_K, W_V and W_O: one function per layout, found by structure.

A layout looks at one module and either recognises its own way of storing a layer's attention or
returns None. It never looks at the model's name, and it must account for every parameter it finds:
a bias or a gate that it does not know makes it say no. Where the numbers of heads decide (a fused
matrix can be cut in several ways), a layout offers every cut; `forms` finds the one in use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from attnscope.attention.linear import bias_of, linear, weight_of
from attnscope.attention.multihead import Projections

# Names under which a layer keeps the norms of its query and key, and its learned sink.
NORMS = (
    ("q_norm", "k_norm"),
    ("q_layernorm", "k_layernorm"),
    ("query_layernorm", "key_layernorm"),
    ("qk_norm", "qk_norm"),
)
SINKS = ("sinks", "sink", "attention_sink_bias")

Sizes = tuple[int, int, int]  # query heads, key/value heads, width of a head
Cut = Callable[[Sizes], Sequence[Projections]]
Rows = Callable[[Tensor, Sizes], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Stored:
    """One layer's attention as the checkpoint stores it.

    `owner.name` is the module that ours replaces and `mixer` the module that applies W_O.
    Where that one lies outside (BERT), `outer.outer_name` holds it, to be bypassed.
    `cut` gives the projections for known numbers of heads: every way that the layout allows.
    """

    layout: str
    owner: nn.Module
    name: str
    mixer: nn.Module
    cut: Cut
    outer: nn.Module | None = None
    outer_name: str = ""
    norms: tuple[nn.Module, nn.Module] | None = None
    sink: nn.Parameter | None = None

    @property
    def module(self) -> nn.Module:
        """transformers' own attention module."""
        module: nn.Module = getattr(self.owner, self.name)
        return module

    def projections(self, sizes: Sizes) -> list[Projections]:
        """Every way to read W_Q, W_K, W_V and W_O out of it."""
        query_norm, key_norm = self.norms or (None, None)
        return [
            replace(cut, query_norm=query_norm, key_norm=key_norm, sink=self.sink)
            for cut in self.cut(sizes)
        ]


@dataclass(frozen=True)
class _Parts:
    """A module taken apart: the children that hold parameters, its norms, its learned sink."""

    children: dict[str, nn.Module]
    norms: tuple[nn.Module, nn.Module] | None = None
    sink: nn.Parameter | None = None
    unknown: set[str] = field(default_factory=set)  # parameters of its own that are no sink


def _parts(module: nn.Module) -> _Parts:
    own = dict(module.named_parameters(recurse=False))
    sinks = [name for name in SINKS if name in own]
    norms = next((pair for pair in NORMS if all(hasattr(module, name) for name in pair)), None)
    pair = (getattr(module, norms[0]), getattr(module, norms[1])) if norms else None
    children = {
        name: child
        for name, child in module.named_children()
        if next(child.parameters(), None) is not None and name not in (norms or ())
    }
    sink = own[sinks[0]] if sinks else None
    return _Parts(children, pair, sink, set(own) - set(sinks[:1]))


def _separate(layout: str, names: tuple[str, str, str, str]) -> Layout:
    """Four modules inside, W_Q, W_K, W_V and W_O."""

    def look(owner: nn.Module, name: str, parts: _Parts) -> Stored | None:
        if set(parts.children) != set(names):
            return None
        query, key, value, output = (parts.children[part] for part in names)
        cut = Projections(query, key, value, output)
        return Stored(layout, owner, name, output, lambda _: [cut])

    return look


def _bert(owner: nn.Module, name: str, parts: _Parts) -> Stored | None:
    """query, key, value inside, and output.dense beside the residual and its norm."""
    inside, output = parts.children, getattr(owner, "output", None)
    if set(inside) != {"query", "key", "value"} or not isinstance(
        mixer := getattr(output, "dense", None), nn.Linear
    ):
        return None
    cut = Projections(inside["query"], inside["key"], inside["value"], mixer)
    return Stored("query/key/value", owner, name, mixer, lambda _: [cut], output, "dense")


def _fused(layout: str, inner: str, outer: str) -> Layout:
    """One module holds W_Q, W_K and W_V: one after the other, or group by group."""

    def look(owner: nn.Module, name: str, parts: _Parts) -> Stored | None:
        if set(parts.children) != {inner, outer}:
            return None
        fused, mixer = parts.children[inner], parts.children[outer]
        weight, bias = weight_of(fused), bias_of(fused)
        output = linear(weight_of(mixer), bias_of(mixer))

        def cut(sizes: Sizes) -> list[Projections]:
            n_heads, groups, width = sizes
            if weight.shape[0] != (n_heads + 2 * groups) * width:
                return []
            return [
                _cut(weight, bias, output, sizes, rows)
                for rows in (_one_after_the_other, _group_by_group, _four_shards)
            ]

        return Stored(layout, owner, name, mixer, cut)

    return look


Layout = Callable[[nn.Module, str, _Parts], Stored | None]

LAYOUTS: tuple[Layout, ...] = (
    _separate("separate q/k/v/o", ("q_proj", "k_proj", "v_proj", "o_proj")),
    _separate("separate q/k/v/out", ("q_proj", "k_proj", "v_proj", "out_proj")),
    _separate("separate q/k/v/dense", ("q_proj", "k_proj", "v_proj", "dense")),
    _separate("q_lin/k_lin/v_lin", ("q_lin", "k_lin", "v_lin", "out_lin")),
    _separate("Wq/Wk/Wv", ("Wq", "Wk", "Wv", "dense")),
    _separate("separate q/k/v/o", ("q_proj", "k_proj", "v_proj", "Wo")),
    _bert,
    _fused("fused c_attn", "c_attn", "c_proj"),
    _fused("fused qkv_proj", "qkv_proj", "o_proj"),
    _fused("fused qkv_proj", "qkv_proj", "out_proj"),
    _fused("fused query_key_value", "query_key_value", "dense"),
    _fused("fused Wqkv", "Wqkv", "Wo"),
)


def find_attention(network: nn.Module) -> list[Stored]:
    """Every module of the network that some layout recognises, in order of appearance."""
    found = []
    for owner in network.modules():
        for name, child in owner.named_children():
            if any(child.children()) and (stored := _look(owner, name, child)) is not None:
                found.append(stored)
    return found


def _look(owner: nn.Module, name: str, module: nn.Module) -> Stored | None:
    parts = _parts(module)
    if parts.unknown:
        return None
    stored = next((s for layout in LAYOUTS if (s := layout(owner, name, parts))), None)
    return replace(stored, norms=parts.norms, sink=parts.sink) if stored else None


def _cut(
    weight: Tensor, bias: Tensor | None, output: nn.Module, sizes: Sizes, rows: Rows
) -> Projections:
    biases = rows(bias, sizes) if bias is not None else (None, None, None)
    query, key, value = map(linear, rows(weight, sizes), biases)
    return Projections(query, key, value, output)


def _one_after_the_other(fused: Tensor, sizes: Sizes) -> tuple[Tensor, ...]:
    """All of W_Q, all of W_K, all of W_V."""
    n_heads, groups, width = sizes
    return torch.split(fused, [n_heads * width, groups * width, groups * width])


def _group_by_group(fused: Tensor, sizes: Sizes) -> tuple[Tensor, ...]:
    """For each key/value head: its query heads, its key, its value. This is a copy."""
    n_heads, groups, width = sizes
    shared = n_heads // groups
    by_group = fused.view(groups, shared + 2, width, *fused.shape[1:])  # (G, R + 2, D, ...)
    parts = torch.split(by_group, [shared, 1, 1], dim=1)
    return tuple(part.flatten(0, 2) for part in parts)


def _four_shards(fused: Tensor, sizes: Sizes) -> tuple[Tensor, ...]:
    """CodeGen: as four machines held it, each its part of query, value, key. This is a copy."""
    n_heads, groups, _ = sizes
    if n_heads != groups or fused.shape[0] % 12:
        return _one_after_the_other(fused, sizes)
    query, value, key = fused.view(4, 3, -1, *fused.shape[1:]).unbind(1)  # 3 × (4, H·D/4, ...)
    return query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1)
