"""ROLES: what a head can be looking at, one row per role.

A role names, for each query, a set of target keys; a head's score is the share of attention that
its queries put there. Adding a role is adding a row; tables, JSON and help follow from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.attention.probes import Breadth, Columns, Offset, Pairs, Probe, Sink
from attnscope.types import ModelShape, TokenBatch

Ask = Callable[[TokenBatch, ModelShape], Probe | None]  # None: does not apply


@dataclass(frozen=True)
class Role:
    """One thing a head can do.

    `phrase` names the targets in a sentence about one text; `absent` is said where a text has none.
    For a role of the user's: `definition` says all that it is, None where code does; `general` is
    False for one that only makes sense in the texts given.
    """

    name: str
    phrase: str
    ask: Ask
    absent: str = "none here"
    home: str = "text"  # the kind of text that decides it: text, or random tokens
    definition: str | None = None
    general: bool = True


def _first(batch: TokenBatch) -> Tensor:
    first = torch.zeros_like(batch.valid)
    first[:, 0] = True
    return first


def resting_places(batch: TokenBatch) -> Tensor:
    """The keys where attention rests: the first token and special tokens, (B, T) bool."""
    return batch.special | _first(batch)


def rows_from(batch: TokenBatch, first: int) -> Tensor:
    """The rows from `first` on, (B, T) bool."""
    index = torch.arange(batch.ids.shape[1], device=batch.ids.device)
    return batch.valid & (index >= first)


def offset(batch: TokenBatch, steps: int) -> Probe:
    """The key `steps` after the query (before it, where negative)."""
    # Row -steps looks back at position 0, which is a resting place: that row cannot tell.
    rows = rows_from(batch, 1 - steps) if steps < 0 else batch.valid
    return Offset(rows, (steps,))


def _back(steps: int) -> Ask:
    return lambda batch, shape: offset(batch, -steps)


def _next(batch: TokenBatch, shape: ModelShape) -> Probe | None:
    return None if shape.causal else offset(batch, 1)


def _local(batch: TokenBatch, shape: ModelShape) -> Probe:
    # Rows 1 and 2 have the first token, a resting place, among their targets: they cannot tell.
    clear = batch.valid & ~(rows_from(batch, 1) & ~rows_from(batch, 3))
    return Offset(clear, (-1, -2) if shape.causal else (-1, -2, 1, 2))


def _current(batch: TokenBatch, shape: ModelShape) -> Probe:
    return offset(batch, 0)


def _first_token(batch: TokenBatch, shape: ModelShape) -> Probe:
    return Columns(rows_from(batch, 1), _first(batch))


def _special_token(batch: TokenBatch, shape: ModelShape) -> Probe:
    return Columns(batch.valid & ~batch.special, batch.special & ~_first(batch))


def _punctuation(batch: TokenBatch, shape: ModelShape) -> Probe:
    return Columns(batch.valid & ~batch.punctuation, batch.punctuation)


def _earlier_copies(batch: TokenBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs (text, query, key) of equal ids, key < query; special tokens have no copies."""
    found = []
    for text in range(len(batch)):
        usable = (batch.valid[text] & ~batch.special[text]).nonzero().squeeze(-1)  # positions
        ids, place = batch.ids[text, usable].sort(stable=True)
        _, counts = torch.unique_consecutive(ids, return_counts=True)
        for group in torch.split(usable[place], counts.tolist()):
            if len(group) > 1:
                later, earlier = torch.tril_indices(len(group), len(group), -1, device=ids.device)
                pairs = torch.stack([group[later], group[earlier]], dim=-1)
                found.append(torch.nn.functional.pad(pairs, (1, 0), value=text))
    pairs = torch.cat(found) if found else batch.ids.new_zeros(0, 3)
    return pairs[:, 0], pairs[:, 1], pairs[:, 2]


def _sink(batch: TokenBatch, shape: ModelShape) -> Probe | None:
    return Sink(batch.valid & ~batch.special) if shape.sink else None


def _duplicate(batch: TokenBatch, shape: ModelShape) -> Probe:
    text, query, copy = _earlier_copies(batch)
    if not shape.causal:  # copies on either side
        text, query, copy = text.repeat(2), torch.cat([query, copy]), torch.cat([copy, query])
    return Pairs(batch.valid, text, query, copy)


def _induction(batch: TokenBatch, shape: ModelShape) -> Probe:
    """The token after each earlier copy: [A][B] … [A], from the second A to B."""
    text, query, copy = _earlier_copies(batch)
    return Pairs(batch.valid, text, query, copy + 1)


def _broad(batch: TokenBatch, shape: ModelShape) -> Probe:
    return Breadth(batch.valid)


def _no_pairs(batch: TokenBatch, shape: ModelShape) -> None:
    """Needs marked pronouns, which a plain text does not have."""


ROLES: dict[str, Role] = {
    role.name: role
    for role in (
        Role("previous_token", "previous", _back(1)),
        Role("next_token", "next", _next),
        Role("second_previous", "second previous", _back(2)),
        Role("current_token", "itself", _current),
        Role("local", "within two", _local),
        Role("first_token", "first", _first_token),
        Role("special_token", "special", _special_token),
        Role("punctuation", "punctuation", _punctuation),
        Role("sink", "learned sink", _sink),
        Role("duplicate_token", "copies", _duplicate, "no repeats", "random"),
        Role("induction", "after copy", _induction, "no repeats", "random"),
        Role("coreference", "antecedent", _no_pairs, ""),
        Role("broad", "evenly", _broad, "too short"),
    )
}
