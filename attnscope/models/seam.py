"""Where our attention meets transformers: reading what a layer really does, taking its place.

transformers looks up the function that computes attention, and the one that builds masks, by name.
Two names are ours. Under the first each layer's call is written down and nothing is computed: that
tells the heads, the scale, the softcap and the visibility that the network applies, whatever its
config says. Under the second no mask is ever built, and our modules sit in the layers' places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.attention.lens import Lens
from attnscope.attention.multihead import MultiHeadAttention
from attnscope.attention.rotary import Rotation
from attnscope.attention.spec import AttentionSpec
from attnscope.errors import CheckpointError
from attnscope.models.layouts import Stored

READ, OURS = "attnscope_read", "attnscope"
_FAR = 1 << 40  # a query this far into a text sees every key that any window allows


@dataclass
class Pass:
    """What the layers need to know of the forward pass that is running."""

    valid: Tensor | None = None
    lens: Lens | None = None


class Seat(nn.Module):
    """Sits where transformers' attention module was, and answers its call with ours."""

    def __init__(self, attention: MultiHeadAttention, running: Pass) -> None:
        super().__init__()
        self.attention = attention
        self.running = running

    def forward(
        self,
        hidden_states: Tensor,
        *_: object,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **__: object,
    ) -> tuple[Tensor, None]:
        """Only hidden states and angles count: no cache, no mask, no dropout."""
        rotation = Rotation(*position_embeddings) if position_embeddings is not None else None
        output = self.attention(
            hidden_states, valid=self.running.valid, rotation=rotation, lens=self.running.lens
        )
        return output, None


def take_seats(stored: list[Stored], specs: list[AttentionSpec], running: Pass) -> list[Seat]:
    """Put our attention in place of each layer's own; the weights are shared, not copied."""
    seats = []
    for layer, (place, spec) in enumerate(zip(stored, specs, strict=True)):
        seat = Seat(MultiHeadAttention(spec, place.projections, layer), running)
        seat.train(place.module.training)
        setattr(place.owner, place.name, seat)
        if place.outer is not None:
            setattr(place.outer, place.outer_name, nn.Identity())
        seats.append(seat)
    return seats


class _Reading:
    """Writes down the calls of one forward pass made under the name READ."""

    def __init__(self) -> None:
        self.calls: list[tuple[nn.Module, AttentionSpec]] = []
        self.rotary: set[nn.Module] = set()
        self.d_model: dict[nn.Module, int] = {}

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A layer's attention module is called."""
        hidden = args[0] if args else kwargs["hidden_states"]
        self.d_model[module] = hidden.shape[-1]
        if kwargs.get("position_embeddings") is not None:
            self.rotary.add(module)

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
        """An open mask of the right shape, carrying what its function allows: (causal, window)."""
        mask = torch.zeros(batch_size, 1, q_length, kv_length, device=device)
        mask.attnscope_sees = _read_visibility(mask_function)  # type: ignore[attr-defined]
        return mask

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        softcap: float | None = None,
        **kwargs: object,
    ) -> tuple[Tensor, None]:
        """The layer's module asks for attention: note how, and answer with nothing."""
        kind, width = type(module).__name__, query.shape[-1]
        sees = getattr(attention_mask, "attnscope_sees", None)
        if sees is None:
            raise CheckpointError(f"{kind} builds a mask of its own, which attnscope cannot read.")
        if value.shape[-1] != width or kwargs.get("s_aux") is not None:
            raise CheckpointError(
                f"{kind} attends with parts that attnscope does not have "
                "(a learned sink, or values of another width)."
            )
        causal, window = sees
        spec = AttentionSpec(
            d_model=self.d_model[module],
            n_heads=query.shape[1],
            n_kv_heads=key.shape[1],
            d_head=width,
            scale=scaling,
            causal=causal,
            window=window,
            softcap=softcap,
            rotary=module in self.rotary,
        )
        self.calls.append((module, spec))
        return torch.zeros_like(query.transpose(1, 2)), None


def read_layers(
    network: nn.Module, stored: list[Stored]
) -> tuple[list[Stored], list[AttentionSpec]]:
    """The places and specs of all layers, from what the network does, in the order it runs them.

    Raises CheckpointError when a layer attends in a way that no layout or spec describes.
    """
    reading = _Reading()
    places = {place.module: place for place in stored}
    # Whoever calls attention without having been found must be noticed too, so hook every module.
    hooks = [
        module.register_forward_pre_hook(reading.enter, with_kwargs=True)
        for module in network.modules()
        if module in places or hasattr(module, "scaling")
    ]
    register(reading)
    device = next(network.parameters()).device
    two_tokens = torch.zeros(1, 2, dtype=torch.int64, device=device)
    try:
        with attention_named(network, READ), torch.inference_mode():
            network(input_ids=two_tokens, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    unknown = next((module for module, _ in reading.calls if module not in places), None)
    if unknown is not None:
        parts = ", ".join(name for name, _ in unknown.named_children())
        raise CheckpointError(
            f"{type(unknown).__name__} stores its attention in a way attnscope does not know "
            f"({parts}), so this checkpoint cannot be inspected."
        )
    if not stored or len(reading.calls) != len(stored):
        raise CheckpointError(
            f"{type(network).__name__}: {len(reading.calls)} layers asked for attention and "
            f"{len(stored)} are stored in a way attnscope knows, so it cannot be inspected."
        )
    return [places[module] for module, _ in reading.calls], [spec for _, spec in reading.calls]


def use_attention(network: nn.Module, name: str) -> None:
    """From now on the network looks its attention and its masks up under `name`."""
    config: Any = network.config
    config._attn_implementation = name


@contextmanager
def attention_named(network: nn.Module, name: str) -> Iterator[None]:
    """Within it, the network looks its attention and its masks up under `name`."""
    config: Any = network.config
    before = config._attn_implementation
    use_attention(network, name)
    try:
        yield
    finally:
        use_attention(network, before)


def register(reading: _Reading | None = None) -> None:
    """Make our names known to transformers; doing it again changes nothing."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(OURS, _never)
    AttentionMaskInterface.register(OURS, _no_mask)
    if reading is not None:
        AttentionInterface.register(READ, reading.attend)
        AttentionMaskInterface.register(READ, reading.mask)


def _no_mask(*_: object, **__: object) -> None:
    """Visibility is ours."""


def _never(module: nn.Module, *_: object, **__: object) -> tuple[Tensor, None]:
    raise CheckpointError(
        f"{type(module).__name__} was not replaced by attnscope's attention: this checkpoint "
        "cannot be inspected."
    )


def _read_visibility(allows: Callable[..., Tensor]) -> tuple[bool, int | None]:
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
