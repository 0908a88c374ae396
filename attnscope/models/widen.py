"""Runs that part ways in a middle layer: below it they are computed once, not once for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.attention.lens import Lens
from attnscope.models.load import Model
from attnscope.types import TokenBatch

_TOLERANCE = 1e-4  # of the largest number: more than rounding between batches of two sizes


def find_blocks(model: Model) -> list[nn.Module] | None:
    """The network's layers: the members of a list, each with one of our attentions in it."""
    for module in model.network.modules():
        if isinstance(module, nn.ModuleList) and len(module) == len(model.seats):
            pairs = zip(module, model.seats, strict=True)
            if all(any(part is seat for part in block.modules()) for block, seat in pairs):
                return list(module)
    return None


def run_widened(
    model: Model, batch: TokenBatch, rows: Sequence[int], layer: int, lens: Lens
) -> Tensor:
    """Hidden states (rows, T, C) of a batch that from `layer` on consists of these of its rows.

    Texts must fill the batch, without padding. A network that does not let its batch grow on the
    way, which is tried out, gets all rows from the start.
    """
    block = _widening_block(model, batch, layer)
    if block is None:
        return model.run(_chosen(batch, rows), lens)
    with _widening(model, block, rows):
        return model.run(batch, lens)


def _widening_block(model: Model, batch: TokenBatch, layer: int) -> nn.Module | None:
    """The layer's block, where taking its rows twice gives each row as it is without."""
    name = f"block {layer} widens"
    if name not in model.memory:
        blocks = find_blocks(model)
        model.memory[name] = None if blocks is None else blocks[layer]
        if blocks is not None and not _widens(model, batch.rows(0, 1), blocks[layer]):
            model.memory[name] = None
    block: nn.Module | None = model.memory[name]
    return block


def _widens(model: Model, batch: TokenBatch, block: nn.Module) -> bool:
    plain = model.run(batch)  # (1, T, C)
    try:
        with _widening(model, block, [0, 0, 0]):
            wide = model.run(batch)  # (3, T, C)
    except Exception:  # whatever the network makes of a batch that grew
        return False
    apart = float((wide.float() - plain.float()).abs().max()) if len(wide) == 3 else float("inf")
    eps = 100 * torch.finfo(plain.dtype).eps
    return apart <= max(_TOLERANCE, eps) * float(plain.float().abs().max())


@contextmanager
def _widening(model: Model, block: nn.Module, rows: Sequence[int]) -> Iterator[None]:
    def widen(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert model.running.valid is not None
        model.running.valid = model.running.valid[list(rows)]
        if args:
            return (args[0][list(rows)], *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": kwargs["hidden_states"][list(rows)]}

    hook = block.register_forward_pre_hook(widen, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def _chosen(batch: TokenBatch, rows: Sequence[int]) -> TokenBatch:
    at = list(rows)
    segments = None if batch.segments is None else batch.segments[at]
    return TokenBatch(
        batch.ids[at], batch.valid[at], batch.special[at], batch.punctuation[at], segments
    )
