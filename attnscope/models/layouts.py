"""How a checkpoint stores W_Q, W_K, W_V and W_O: one function per layout, found by structure.

A layout looks at one module and either recognises its own way of storing a layer's attention or
returns None. It never looks at the model's name, and it must account for every parameter it finds:
a norm or a bias that it does not know makes it say no.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from attnscope.attention.multihead import Projections


@dataclass(frozen=True)
class Stored:
    """One layer's attention as the checkpoint stores it.

    `owner.name` is the module that ours replaces and `mixer` the module that applies W_O.
    Where that one lies outside (BERT), `outer.outer_name` holds it, to be bypassed.
    """

    layout: str
    owner: nn.Module
    name: str
    mixer: nn.Module
    projections: Projections
    outer: nn.Module | None = None
    outer_name: str = ""

    @property
    def module(self) -> nn.Module:
        """transformers' own attention module."""
        module: nn.Module = getattr(self.owner, self.name)
        return module


def _parts(module: nn.Module) -> dict[str, nn.Module]:
    """The children that hold parameters; empty when the module has parameters of its own."""
    if next(module.parameters(recurse=False), None) is not None:
        return {}
    return {
        name: child
        for name, child in module.named_children()
        if next(child.parameters(), None) is not None
    }


def _separate(owner: nn.Module, name: str) -> Stored | None:
    """q_proj, k_proj, v_proj, o_proj: Llama and the many that are built like it."""
    parts = _parts(getattr(owner, name))
    if set(parts) != {"q_proj", "k_proj", "v_proj", "o_proj"}:
        return None
    projections = Projections(parts["q_proj"], parts["k_proj"], parts["v_proj"], parts["o_proj"])
    return Stored("separate q/k/v/o", owner, name, parts["o_proj"], projections)


def _bert(owner: nn.Module, name: str) -> Stored | None:
    """query, key, value inside, and output.dense beside the residual and its norm."""
    parts = _parts(getattr(owner, name))
    output = getattr(owner, "output", None)
    if set(parts) != {"query", "key", "value"} or not isinstance(
        mixer := getattr(output, "dense", None), nn.Linear
    ):
        return None
    projections = Projections(parts["query"], parts["key"], parts["value"], mixer)
    return Stored("query/key/value", owner, name, mixer, projections, output, "dense")


def _gpt2(owner: nn.Module, name: str) -> Stored | None:
    """c_attn holds W_Q, W_K, W_V side by side, (C, 3·C): transposed to what Linear stores."""
    parts = _parts(getattr(owner, name))
    if set(parts) != {"c_attn", "c_proj"}:
        return None
    fused, mixer = parts["c_attn"], parts["c_proj"]
    if type(fused).__name__ != "Conv1D" or type(mixer).__name__ != "Conv1D":
        return None
    weights, biases = _parameter(fused, "weight").chunk(3, 1), _parameter(fused, "bias").chunk(3)
    query, key, value = (
        _linear(weight.T, bias) for weight, bias in zip(weights, biases, strict=True)
    )
    output = _linear(_parameter(mixer, "weight").T, _parameter(mixer, "bias"))
    return Stored("fused c_attn", owner, name, mixer, Projections(query, key, value, output))


LAYOUTS: tuple[Callable[[nn.Module, str], Stored | None], ...] = (_separate, _bert, _gpt2)


def find_attention(network: nn.Module) -> list[Stored]:
    """Every module of the network that some layout recognises, in order of appearance."""
    found = []
    for owner in network.modules():
        for name, child in owner.named_children():
            if any(child.children()):
                stored = next((s for layout in LAYOUTS if (s := layout(owner, name))), None)
                if stored is not None:
                    found.append(stored)
    return found


def _parameter(module: nn.Module, name: str) -> Tensor:
    parameter: Tensor = getattr(module, name).data
    return parameter


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A Linear over `weight` (out, in), which it shares: nothing is copied."""
    made = nn.Linear(1, 1, bias=False, device="meta")
    made.in_features, made.out_features = weight.shape[1], weight.shape[0]
    made.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias, requires_grad=False)
    return made
