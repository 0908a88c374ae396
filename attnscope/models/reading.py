"""What every layer of a network really does, read off one forward pass that computes no attention.

transformers looks up the function that computes attention, and the one that builds masks, by name.
Under ours each layer's call is written down: that tells the heads, the scale, the softcap, the sink
and the visibility that the network applies, whatever its config says; `forms` finds from the query,
key and value how they were made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.attention.spec import AttentionSpec
from attnscope.attention.visibility import in_reach
from attnscope.errors import CheckpointError
from attnscope.models.forms import Call, Form, angles_in, check_form, find_form
from attnscope.models.layouts import Stored
from attnscope.models.seam import attention_named, hidden_states_in, register

Allows = Callable[..., Tensor]  # (text, head, query, key) to what may be seen

READ = "attnscope_read"
READ_TOKENS = 6
FAR_POSITION = 1 << 16  # where no limit is known
LOUD = 100.0  # how much larger than usual the second reading's hidden states are
_FAR = 1 << 40  # a query this far into a text sees every key that any window allows


class _Reading:
    """Writes down the calls of one forward pass made under the name READ.

    With `loud`, each layer's hidden states are so many times as large: what clips them shows.
    """

    def __init__(self, loud: float = 1.0) -> None:
        self.loud = loud
        self.calls: list[tuple[nn.Module, AttentionSpec, Call]] = []
        self.allows: list[Allows] = []
        self.seen: dict[Callable[..., Tensor], tuple[bool, int | None]] = {}
        self.entered: dict[nn.Module, tuple[Tensor, tuple[Tensor, Tensor] | None]] = {}

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A layer's attention module is called."""
        given = hidden_states_in(args, kwargs)
        hidden = given * self.loud
        self.entered[module] = hidden, angles_in((*args, *kwargs.values()))
        named = {name: hidden if arg is given else arg for name, arg in kwargs.items()}
        return tuple(hidden if arg is given else arg for arg in args), named

    def mask(
        self,
        batch_size: int,
        q_length: int,
        kv_length: int,
        *_: object,
        mask_function: Callable[..., Tensor],
        device: torch.device | str = "cpu",
        **__: object,
    ) -> Tensor:
        """An open mask of the right shape, carrying its function: some are made and never used."""
        mask = torch.zeros(batch_size, 1, q_length, kv_length, device=device)
        mask.attnscope_allows = mask_function  # type: ignore[attr-defined]
        return mask

    def visibility(self, mask: Tensor | None) -> tuple[bool, int | None] | None:
        """(causal, window) of a mask that we made; None for any other."""
        allows = getattr(mask, "attnscope_allows", None)
        if allows is not None and allows not in self.seen:
            self.seen[allows] = read_visibility(allows)
        return None if allows is None else self.seen[allows]

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **kwargs: object,
    ) -> tuple[Tensor, None]:
        """The layer's module asks for attention: note how, and answer with nothing."""
        kind, width = type(module).__name__, query.shape[-1]
        sees = self.visibility(attention_mask)
        if sees is None:
            raise CheckpointError(f"{kind} builds a mask of its own, which attnscope cannot read.")
        if value.shape[-1] != width:
            raise CheckpointError(
                f"{kind} attends with values of another width than its keys, which attnscope "
                "does not have."
            )
        if module not in self.entered:
            raise _unknown(module)
        hidden, angles = self.entered[module]
        causal, window = sees
        spec = AttentionSpec(
            d_model=hidden.shape[-1],
            n_heads=query.shape[1],
            n_kv_heads=key.shape[1],
            d_head=width,
            scale=scaling,
            causal=causal,
            window=window,
            softcap=softcap,
            sink=s_aux is not None,
        )
        self.allows.append(attention_mask.attnscope_allows)  # type: ignore[union-attr]
        call = Call(len(self.calls), hidden, angles, query, key, value, s_aux)
        self.calls.append((module, spec, call))
        return torch.zeros_like(query.transpose(1, 2)), None


@dataclass(frozen=True)
class Layers:
    """The attention of every layer, in the order the network runs them."""

    stored: list[Stored]
    forms: list[Form]
    allows: list[Allows]  # transformers' own mask functions

    @property
    def specs(self) -> list[AttentionSpec]:
        """One per layer."""
        return [form.settled for form in self.forms]


def read_layers(network: nn.Module, stored: list[Stored], positions: int | None = None) -> Layers:
    """The places and forms of all layers, from what the network does, in the order it runs them.

    `positions` is how many tokens a text may have. Raises CheckpointError when a layer attends in
    a way that no layout or form describes.
    """
    places = {place.module: place for place in stored}
    n_tokens = min(READ_TOKENS, positions or READ_TOKENS)
    reading = _read(network, places, _Reading(), n_tokens)
    _check_layers(network, places, reading)
    found: list[Form] = []
    for module, spec, call in reading.calls:
        found.append(find_form(spec, places[module], call, found[-1] if found else None))
    far = None
    if any(form.spec.rotary for form in found) and _takes_positions(network):
        far = (positions or FAR_POSITION) - n_tokens
    again = _read(network, places, _Reading(loud=_loudness(reading)), n_tokens, far)
    for form, (module, _, call) in zip(found, again.calls, strict=True):
        check_form(form, places[module], call)
    called = [places[module] for module, *_ in reading.calls]
    return Layers(called, found, reading.allows)


def _loudness(reading: _Reading) -> float:
    """How much louder the layers can be read without leaving the range of their number format."""
    calls = [call for *_, call in reading.calls]
    tensors = [t for call in calls for t in (call.hidden_states, call.query, call.key, call.value)]
    greatest = max(float(tensor.abs().max()) for tensor in tensors)
    room = torch.finfo(tensors[0].dtype).max / 8
    return min(LOUD, room / max(greatest, 1.0))


def blind_spot(layers: Layers, specs: list[AttentionSpec]) -> str | None:
    """Where a layer would see other keys than transformers' own mask lets it, in words.

    A window may be far longer than any text that is run at loading: only its mask tells.
    """
    for layer, (spec, allows) in enumerate(zip(specs, layers.allows, strict=True)):
        near, far = (0, 1, 2, 7), spec.window or 1 << 20
        apart = torch.tensor(sorted({*near, *(far + step for step in (-1, 0, 1)), 2 * far}))
        for key in torch.cat((_FAR - apart, _FAR + apart)):
            query, zero = torch.tensor(_FAR), torch.tensor(0)
            ours = bool(in_reach(query, key, spec.causal, spec.window))
            if ours != bool(allows(zero, zero, query, key)):
                which = "sees" if ours else "does not see"
                return f"layer {layer} {which} a key {int(query - key)} tokens back"
    return None


def _read(
    network: nn.Module,
    places: Mapping[nn.Module, Stored],
    reading: _Reading,
    n_tokens: int,
    start: int | None = None,
) -> _Reading:
    """Run some tokens through the network and write down its calls; `start`: their position."""
    # Whoever calls attention without having been found must be noticed too, so hook every module.
    hooks = [
        module.register_forward_pre_hook(reading.enter, with_kwargs=True)
        for module in network.modules()
        if module in places or hasattr(module, "scaling")
    ]
    register(READ, reading.attend, reading.mask)
    device = next(network.parameters()).device
    vocabulary: int = network.config.get_text_config().vocab_size  # type: ignore[union-attr, operator]
    ids = torch.arange(n_tokens, device=device)[None] % vocabulary
    where = {} if start is None else {"position_ids": torch.arange(n_tokens)[None] + start}
    try:
        with attention_named(network, READ), torch.inference_mode():
            network(input_ids=ids, use_cache=False, **{k: v.to(device) for k, v in where.items()})
    finally:
        for hook in hooks:
            hook.remove()
    return reading


def _check_layers(
    network: nn.Module, places: Mapping[nn.Module, Stored], reading: _Reading
) -> None:
    """Every layer attends once, through a module that some layout knows."""
    called = [module for module, *_ in reading.calls]
    unknown = next((module for module in called if module not in places), None)
    if unknown is not None:
        raise _unknown(unknown)
    n_layers = getattr(network.config.get_text_config(), "num_hidden_layers", None)  # type: ignore[union-attr, operator]
    if not called or len(called) != (n_layers or len(called)):
        raise CheckpointError(
            f"{type(network).__name__}: {len(called)} of {n_layers} layers ask for attention "
            "where attnscope can answer, so it cannot be inspected."
        )
    if len(set(called)) != len(called):
        raise CheckpointError(
            f"{type(network).__name__} uses one attention module in several layers, so it cannot "
            "be inspected."
        )
    for module, spec, call in reading.calls:
        if spec.sink and (places[module].sink is None or call.sink is not places[module].sink):
            raise CheckpointError(
                f"{type(module).__name__} makes its learned sink in a way attnscope does not "
                "know, so this checkpoint cannot be inspected."
            )


def _unknown(module: nn.Module) -> CheckpointError:
    parts = ", ".join(name for name, _ in module.named_children())
    return CheckpointError(
        f"{type(module).__name__} stores its attention in a way attnscope does not know "
        f"({parts}), so this checkpoint cannot be inspected."
    )


def _takes_positions(network: nn.Module) -> bool:
    return "position_ids" in inspect.signature(network.forward).parameters


def read_visibility(allows: Callable[..., Tensor]) -> tuple[bool, int | None]:
    """Causal or not, and the window, by asking the mask function itself."""

    def sees(query: int, key: int) -> bool:
        zero = torch.tensor(0)
        return bool(allows(zero, zero, torch.tensor(query), torch.tensor(key)))

    if not sees(_FAR, _FAR):
        raise CheckpointError("A mask hides each token from itself: attnscope cannot read it.")
    causal = not sees(_FAR, _FAR + 1)
    if sees(_FAR, 0):
        return causal, None
    low, high = 0, _FAR  # sees `low` back, not `high` back
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if sees(_FAR, _FAR - middle) else (low, middle)
    # A window moves with the query; a chunk does not, and has another reach one query later.
    if not sees(_FAR + 1, _FAR + 1 - low) or sees(_FAR + 1, _FAR + 1 - high):
        raise CheckpointError("Attention in chunks is a mask that attnscope does not know.")
    if not causal and (not sees(_FAR, _FAR + low) or sees(_FAR, _FAR + high)):
        raise CheckpointError("A lopsided window is a mask that attnscope does not know.")
    return causal, high
