"""Where our attention meets transformers: taking the layers' places, and the names looked up there.

transformers looks up the function that computes attention, and the one that builds masks, by name.
Under ours no mask is ever built, and our modules sit in the layers' places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from attnscope.attention.lens import Lens
from attnscope.attention.multihead import MultiHeadAttention
from attnscope.attention.rotary import Rotation
from attnscope.errors import CheckpointError
from attnscope.models.forms import Form, Tables, angles_in
from attnscope.models.layouts import Stored

OURS = "attnscope"


@dataclass
class Pass:
    """What the layers need to know of the forward pass that is running."""

    valid: Tensor | None = None
    lens: Lens | None = None


class Seat(nn.Module):
    """Sits where transformers' attention module was, and answers its call with ours."""

    def __init__(self, attention: MultiHeadAttention, running: Pass, tables: Tables) -> None:
        super().__init__()
        self.attention = attention
        self.running = running
        self.tables = tables

    def forward(self, *args: object, **kwargs: object) -> tuple[Tensor, None]:
        """Only hidden states and angles count: no cache, no mask, no dropout."""
        output = self.attention(
            hidden_states_in(args, kwargs),
            valid=self.running.valid,
            rotation=self._rotation((*args, *kwargs.values())),
            lens=self.running.lens,
        )
        return output, None

    def _rotation(self, arguments: tuple[object, ...]) -> Rotation | None:
        spec = self.attention.spec
        angles = angles_in(arguments) if spec.rotary else None
        return None if angles is None else self.tables.rotation(angles, spec.rotary_pairs)


def take_seats(stored: list[Stored], forms: list[Form], running: Pass) -> list[Seat]:
    """Put our attention in place of each layer's own; the weights are shared, not copied."""
    register(OURS, _never, _no_mask)
    seats = []
    for layer, (place, form) in enumerate(zip(stored, forms, strict=True)):
        attention = MultiHeadAttention(form.settled, form.projections, layer)
        seat = Seat(attention, running, form.tables)
        seat.train(place.module.training)
        setattr(place.owner, place.name, seat)
        if place.outer is not None:
            setattr(place.outer, place.outer_name, nn.Identity())
        seats.append(seat)
    return seats


def hidden_states_in(args: tuple[object, ...], kwargs: Mapping[str, object]) -> Tensor:
    """The hidden states (B, T, C) among an attention module's arguments."""
    found = args[0] if args else kwargs["hidden_states"]
    assert isinstance(found, Tensor)
    return found


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


def register(name: str, attend: Callable[..., Any], mask: Callable[..., Any]) -> None:
    """Make a name known to transformers; doing it again replaces what it stood for."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, mask)


def _no_mask(*_: object, **__: object) -> None:
    """Visibility is ours."""


def _never(module: nn.Module, *_: object, **__: object) -> tuple[Tensor, None]:
    raise CheckpointError(
        f"{type(module).__name__} was not replaced by attnscope's attention: this checkpoint "
        "cannot be inspected."
    )
