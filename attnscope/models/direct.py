"""How what a head writes reaches the logits: through the residual stream and the final norm.

Measured, not looked up: one short forward pass tells through which norm, and times what, each
layer's attention is added to the stream, and which norm stands at the stream's end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.models.load import Model
from attnscope.models.widen import find_blocks
from attnscope.types import TokenBatch

_TOKENS = 16  # everything that a pass over so many computes is kept for a moment
_FITS = 1e-3  # relative error up to which a sum of two tensors is the third


@dataclass(frozen=True)
class FrozenNorm:
    """A norm as a linear map: x becomes gain · (x - mean, where centred) · scale of the row."""

    module: nn.Module
    gain: Tensor  # (C,)
    bias: Tensor  # (C,)
    centred: bool

    @classmethod
    def of(cls, module: nn.Module, width: int, like: Tensor) -> FrozenNorm | None:
        """What the norm does, from its answers; None where it is no such map."""
        swing = torch.ones(1, 1, width, dtype=torch.float32, device=like.device)
        swing[..., 1::2] = -((width + 1) // 2) / (width // 2)  # mean 0, and no zero in it
        large = (1e3 * swing).to(like.dtype)  # so large that no epsilon counts
        bias = _call(module, torch.zeros_like(large)).float()
        size = large.float().square().mean().sqrt()
        gain = (_call(module, large).float() - bias) * size / large.float()
        flat = (_call(module, torch.full_like(large, 1e3)).float() - bias).abs().max()
        centred = float(flat) < 0.5 * float(gain.abs().max())
        found = cls(module, gain[0, 0], bias[0, 0], centred)
        probe = torch.linspace(-1, 2, width, device=like.device).to(like.dtype)[None, None] ** 3
        again = found.apply(probe, found.scales(probe)) + found.bias
        right = _call(module, probe)
        return found if _near(again, right) else None

    def scales(self, x: Tensor) -> Tensor:
        """What the norm multiplies each row of x (..., C) by, (..., 1), besides the gain."""
        turned = self._centre(x.float())
        plain = _call(self.module, x).float() - self.bias
        straight = turned * self.gain
        return (plain * straight).sum(-1, keepdim=True) / straight.square().sum(-1, keepdim=True)

    def apply(self, x: Tensor, scales: Tensor) -> Tensor:
        """The map, without its bias."""
        return self._centre(x.float()) * scales * self.gain

    def pull(self, gradient: Tensor, scales: Tensor) -> Tensor:
        """The transposed map: from what is asked of the output to what that asks of the input."""
        return self._centre(gradient * self.gain * scales)

    def _centre(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True) if self.centred else x


@dataclass(frozen=True)
class Write:
    """How a layer's attention is added to the stream: times `factor`, through `norm` if any."""

    factor: float
    norm: FrozenNorm | None


@dataclass(frozen=True)
class DirectPath:
    """The writes of every layer, and the norm at the end. Logits are scale · W_U · norm(stream)."""

    writes: tuple[Write, ...]
    final: FrozenNorm
    scale: float


def find_direct_path(model: Model, batch: TokenBatch) -> DirectPath | None:
    """The path of this model, measured on a few tokens of one text; None where it has none.

    Layers that norm after they add (BERT, OPT-350m) have none.
    """
    blocks = find_blocks(model)
    scale = model.predictor().scale()
    if blocks is None or scale is None:
        return None
    part = TokenBatch(
        *(t[:1, :_TOKENS] for t in (batch.ids, batch.valid, batch.special, batch.punctuation))
    )
    calls: list[_Call] = []
    hooks = [
        module.register_forward_hook(_listen(calls), with_kwargs=True)
        for module in model.network.modules()
    ]
    try:
        hidden = model.run(part)
    finally:
        for hook in hooks:
            hook.remove()
    with torch.inference_mode():
        writes = [_write(model, calls, *pair) for pair in enumerate(blocks)]
        flat = hidden.flatten(0, -2)  # (B·T, C)
        last = next(c for c in reversed(calls) if c.module is blocks[-1])
        ends = [c for c in calls if _same(c.given, last.result) and _same(c.result, flat)]
        final = next((c.module for c in ends if _is_norm(c.module)), None)
        norm = None if final is None else FrozenNorm.of(final, hidden.shape[-1], hidden)
    if norm is None or any(write is None for write in writes):
        return None
    return DirectPath(tuple(write for write in writes if write is not None), norm, scale)


@dataclass(frozen=True)
class _Call:
    """One call of a module: what went in and what came out, (B·T, C)."""

    module: nn.Module
    given: Tensor
    result: Tensor


def _listen(calls: list[_Call]) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        given = args[0] if args else kwargs.get("hidden_states")
        result = result[0] if isinstance(result, tuple) else result
        if isinstance(given, Tensor) and isinstance(result, Tensor) and given.is_floating_point():
            calls.append(_Call(module, given.flatten(0, -2), result.flatten(0, -2)))

    return hook


def _write(model: Model, calls: list[_Call], layer: int, block: nn.Module) -> Write | None:
    inside = {id(part) for part in block.modules()}
    here = [call for call in calls if id(call.module) in inside]
    whole = next((call for call in here if call.module is block), None)
    seat = next((n for n, c in enumerate(here) if c.module is model.seats[layer]), None)
    if whole is None or seat is None:
        return None
    written, norm = here[seat].result, None
    after = [call for call in here[seat + 1 :] if call.module is not block]
    for call in after:  # dropouts that do nothing, and a norm of what attention gives
        if _same(call.given, written) and call.module is not block:
            norm = call.module if _is_norm(call.module) else norm
            written = call.result
    if any(_same(call.result, whole.result) and _is_norm(call.module) for call in here):
        return None  # the layer's own output is normed: nothing is simply added
    sums = [(call.given, written) for call in after if _is_norm(call.module)]
    sums += [(whole.result, written + c.result) for c in here if c.result.shape == written.shape]
    for total, added in sums:
        factor = _factor(total - whole.given, added)
        if factor is not None:
            frozen = None if norm is None else FrozenNorm.of(norm, written.shape[-1], written)
            return None if norm is not None and frozen is None else Write(factor, frozen)
    return None


def _factor(moved: Tensor, added: Tensor) -> float | None:
    """The number that `added` is multiplied by to give `moved`, if there is one."""
    moved, added = moved.float(), added.float()
    factor = float((moved * added).sum() / added.square().sum().clamp(min=1e-30))
    return factor if _near(factor * added, moved) and abs(factor) > 1e-6 else None


def _is_norm(module: nn.Module) -> bool:
    """Has it weights, and none of them a matrix? (Some norms have a row for each head.)"""
    own = list(module.parameters())
    named = "norm" in type(module).__name__.lower()
    return named or (bool(own) and all(parameter.ndim == 1 for parameter in own))


def _near(one: Tensor, other: Tensor) -> bool:
    apart = float((one.float() - other.float()).norm())
    eps = 10 * torch.finfo(other.dtype).eps
    return apart <= max(_FITS, eps) * max(float(other.float().norm()), 1e-30)


def _same(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.shape == other.shape and one.data_ptr() == other.data_ptr())


def _call(module: nn.Module, x: Tensor) -> Tensor:
    with torch.inference_mode():
        result: Tensor = module(x)
    return result
