"""Hidden states of every layer, and the loss of each next token that the last one gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.attention.lens import Lens
from attnscope.attention.multihead import MultiHeadAttention
from attnscope.errors import CheckpointError
from attnscope.models.angles import forget_lengths
from attnscope.models.load import Model
from attnscope.plain import visible
from attnscope.types import TokenBatch

LOGITS_BYTES = 2**26  # logits are made for so many positions at a time


def hidden_states(model: Model, batch: TokenBatch, lens: Lens | None = None) -> list[Tensor]:
    """One forward pass: what enters the first layer, then what leaves each, (B, T, C).

    The last one is behind the final norm. Raises CheckpointError when it is not finite.
    """
    forget_lengths(model.network)
    body: Any = model.network.base_model
    arguments: dict[str, Any] = {"input_ids": batch.ids.to(model.device)}
    if batch.segments is not None:
        arguments["token_type_ids"] = batch.segments.to(model.device)
    model.running.valid, model.running.lens = batch.valid.to(model.device), lens
    try:
        with torch.inference_mode():
            output = body(**arguments, use_cache=False, output_hidden_states=True)
    finally:
        model.running.valid = model.running.lens = None
    states = list(output.hidden_states)
    if not bool(states[-1][batch.valid.to(states[-1].device)].isfinite().all()):
        raise CheckpointError(f"{visible(model.id)} computes numbers that are not finite.")
    return states


def next_token_losses(model: Model, batch: TokenBatch, hidden: Tensor) -> Tensor:
    """-ln of the probability given to each next token, in nats: hidden (B, T, C) to (B, T - 1).

    The logits of a slice of the positions are all that is ever held. Needs a model that was loaded
    with its logits.
    """
    network: Any = model.network
    rows = len(batch) * model.shape.vocab_size * 4
    step = max(1, LOGITS_BYTES // rows)
    ids = batch.ids.to(model.device)
    losses = []
    with _saying(network) as say, torch.inference_mode():
        for start in range(0, ids.shape[1] - 1, step):
            span = slice(start, min(start + step, ids.shape[1] - 1))
            say.hidden = hidden[:, span]
            logits = network(input_ids=ids[:, span], use_cache=False).logits.float()  # (B, t, V)
            wanted = ids[:, span.start + 1 : span.stop + 1].to(logits.device)
            found = nn.functional.cross_entropy(
                logits.flatten(0, 1), wanted.flatten(), reduction="none"
            )
            losses.append(found.view(wanted.shape))  # (B, t)
    if not losses:
        return hidden.new_zeros(len(batch), 0)
    return torch.cat(losses, dim=1)  # (B, T - 1)


class _Saying(nn.Module):
    """Stands where the network's body was, and answers with the hidden states it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.empty(0)

    @property
    def decoder(self) -> _Saying:
        """Some heads call this part of their body."""
        return self

    def forward(self, *_: object, **__: object) -> _Answer:
        """Whatever is asked."""
        return _Answer(self.hidden)


class _Answer:
    """What a body answers: the hidden states, and None for all else that heads look for."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, at: object) -> Tensor | None:
        return self.last_hidden_state if at == 0 else None

    def __getattr__(self, name: str) -> None:
        return None


@contextmanager
def _saying(network: Any) -> Iterator[_Saying]:
    name = network.base_model_prefix
    body, stand_in = getattr(network, name), _Saying()
    setattr(network, name, stand_in)
    try:
        yield stand_in
    finally:
        setattr(network, name, body)


@contextmanager
def seated(model: Model, layers: Sequence[MultiHeadAttention]) -> Iterator[None]:
    """Within it, the model runs with other attention layers."""
    before = [seat.attention for seat in model.seats]
    try:
        for seat, attention in zip(model.seats, layers, strict=True):
            seat.attention = attention
        yield
    finally:
        for seat, attention in zip(model.seats, before, strict=True):
            seat.attention = attention
