"""Selecting heads: `--layers 0-3,7` and `--heads 5.5,L6H9` against a model's shape."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from attnscope.errors import UsageError
from attnscope.models.load import Model
from attnscope.plain import visible
from attnscope.types import Head, parse_heads

_RANGE = re.compile(r"^(\d+)(?:-(\d+))?$")


@dataclass(frozen=True)
class Selection:
    """Which heads are wanted: layer to the heads of it, in order."""

    heads: Mapping[int, tuple[int, ...]]
    n_heads: int

    @property
    def whole(self) -> bool:
        """Is every head of every selected layer wanted?"""
        return all(len(chosen) == self.n_heads for chosen in self.heads.values())

    def __iter__(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        return iter(self.heads.items())

    def count(self) -> int:
        """How many heads."""
        return sum(len(chosen) for chosen in self.heads.values())


def select(model: Model, layers: str | None, heads: str | None) -> Selection:
    """The heads that both options leave; every head when neither is given.

    Raises UsageError for a layer or head the model does not have, or when none is left.
    """
    chosen_layers = _layers(model, layers)
    if heads is None:
        every = tuple(range(model.shape.n_heads))
        return Selection(dict.fromkeys(chosen_layers, every), model.shape.n_heads)
    wanted = known_heads(model, heads)
    found: dict[int, tuple[int, ...]] = {}
    for head in wanted:
        if head.layer in chosen_layers:
            found[head.layer] = (*found.get(head.layer, ()), head.head)
    if not found:
        raise UsageError("--layers and --heads leave no head: drop one of the two.")
    return Selection(found, model.shape.n_heads)


def known_heads(model: Model, text: str) -> list[Head]:
    """`5.5,L6H9` as heads of this model, in order and once each."""
    found = parse_heads(text)
    for head in found:
        model.shape.check_head(head, visible(model.id))
    return found


def _layers(model: Model, text: str | None) -> list[int]:
    n_layers = model.shape.n_layers
    if text is None:
        return list(range(n_layers))
    found: set[int] = set()
    for part in text.split(","):
        match = _RANGE.match(part.strip())
        if match is None:
            raise UsageError(
                f"Cannot read {visible(part)!r} as layers: write numbers and ranges, as in 0-3,7."
            )
        first = int(match[1])
        last = int(match[2] or first)
        if last < first:
            raise UsageError(f"'{part.strip()}' runs backwards: write {last}-{first}.")
        if last >= n_layers:
            raise UsageError(
                f"Unknown layer in '{part.strip()}': {visible(model.id)} has layers "
                f"0-{n_layers - 1}."
            )
        found |= set(range(first, last + 1))
    return sorted(found)
