"""Linear maps as they are stored: their weights as rows per output, and new ones from such rows."""

from __future__ import annotations

from torch import Tensor, nn


def weight_of(module: nn.Module) -> Tensor:
    """The weight as Linear stores it, (out, in); GPT-2's Conv1D stores it transposed."""
    weight: Tensor = module.weight.data  # type: ignore[assignment]
    return weight.T if type(module).__name__ == "Conv1D" else weight


def bias_of(module: nn.Module) -> Tensor | None:
    """The bias, (out,), where there is one."""
    bias: nn.Parameter | None = getattr(module, "bias", None)
    return None if bias is None else bias.data


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A Linear over `weight` (out, in), which it shares: nothing is copied."""
    made = nn.Linear(1, 1, bias=False, device="meta")
    made.in_features, made.out_features = weight.shape[1], weight.shape[0]
    made.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias.data, requires_grad=False)
    return made
