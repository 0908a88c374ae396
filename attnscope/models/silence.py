"""A run of the network in which only its norms and additions speak: every matrix is silenced.

What goes from layer to layer can then be followed with numbers that are put in on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from attnscope.attention.rotary import Rotation
from attnscope.models.angles import forget_lengths
from attnscope.models.folds import Fold, find_fold
from attnscope.models.load import Model

# (norm, its fold, what enters it) to what leaves it, in the norm's place.
StandIn = Callable[[nn.Module, Fold, Tensor], Tensor]
# (layer, what its attention would write) to what it writes instead, (B, T, C).
Write = Callable[[int, Tensor], Tensor]


@dataclass
class Heard:
    """What entered the attention of each layer (B, T, C), how it turns there, and what came out."""

    entered: list[Tensor] = field(default_factory=list)
    rotations: list[Rotation | None] = field(default_factory=list)
    final: Tensor | None = None


def run_silent(
    model: Model,
    ids: Tensor,
    stand_in: StandIn,
    write: Write | None = None,
    start: Callable[[Tensor], Tensor] | None = None,
) -> Heard:
    """ids (B, T) through the network, its layers' matrices and biases taken for zero; in float32.

    Norms are replaced by `stand_in`, the attention's output by `write` (nothing if left out), and
    token embeddings by `start` of them.
    """
    body: Any = getattr(model.network, "base_model", model.network)
    heard, folds = Heard(), dict[nn.Module, Fold | None]()
    width = model.shape.d_model

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        heard.entered.append(args[0])
        heard.rotations.append(kwargs.get("rotation"))

    def leave(attention: Any, args: tuple[Any, ...], output: Tensor) -> Tensor:
        return torch.zeros_like(output) if write is None else write(attention.layer, output)

    def embed(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        return output.float() if start is None else start(output.float())

    def replace(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        given = args[0] if args else None
        if not (isinstance(given, Tensor) and isinstance(output, Tensor)):
            return None
        if given.dim() != 3 or given.shape[-1] != width or output.shape != given.shape:
            return None
        if module not in folds:
            folds[module] = find_fold(module.forward, (width,), given)
        fold = folds[module]
        return None if fold is None else stand_in(module, fold, given)

    with _hooks() as hooks, torch.inference_mode():
        for seat in model.seats:
            hooks.append(seat.attention.register_forward_pre_hook(enter, with_kwargs=True))
            hooks.append(seat.attention.register_forward_hook(leave))
        hooks.append(body.get_input_embeddings().register_forward_hook(embed))
        hooks += [module.register_forward_hook(replace) for module in _norms(body)]
        forget_lengths(model.network)
        called = {"input_ids": ids.to(model.device), "use_cache": False}
        heard.final = functional_call(body, _silenced(model, body), (), called).last_hidden_state
        forget_lengths(model.network)
    return heard


def _norms(body: nn.Module) -> Iterator[nn.Module]:
    """The modules that may be norms: without parts, and without a matrix."""
    for module in body.modules():
        small = all(parameter.dim() < 2 for parameter in module.parameters())
        if small and next(module.children(), None) is None:
            yield module


def _silenced(model: Model, body: nn.Module) -> dict[str, Tensor]:
    """The parameters to run with: in the layers zero, all but gains; float32 everywhere."""
    layers = _layers_name(model, body)
    embeddings = {f"{n}.weight" for n, m in body.named_modules() if isinstance(m, nn.Embedding)}
    found: dict[str, Tensor] = {}
    silent: dict[str, Tensor] = {}
    for name, parameter in body.named_parameters():
        if name.startswith(layers) and (parameter.dim() > 1 or name.endswith("bias")):
            silent[name] = parameter
        elif name not in embeddings:
            found[name] = parameter.float()
    return found | _zeros(silent)


def _zeros(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Zeros of these shapes; on each device one piece of memory serves all of them."""
    most: dict[torch.device, int] = {}
    for one in parameters.values():
        most[one.device] = max(most.get(one.device, 0), one.numel())
    zeros = {device: torch.zeros(size, device=device) for device, size in most.items()}
    return {n: zeros[one.device][: one.numel()].view(one.shape) for n, one in parameters.items()}


def _layers_name(model: Model, body: nn.Module) -> str:
    """The name of the list of layers, with a dot: up to the first number in a seat's own name."""
    name = next(name for name, module in body.named_modules() if module is model.seats[0])
    parts = name.split(".")
    at = next((n for n, part in enumerate(parts) if part.isdecimal()), 0)
    return ".".join([*parts[:at], ""])


@contextmanager
def _hooks() -> Iterator[list[Any]]:
    hooks: list[Any] = []
    try:
        yield hooks
    finally:
        for hook in hooks:
            hook.remove()
