"""The plain data every floor speaks: heads, tokens, the shape of a model. No maths."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscope.errors import UsageError
from attnscope.plain import visible

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_HEAD = re.compile(r"^\s*[Ll]?(\d+)\s*[.:Hh]\s*(\d+)\s*$")


@dataclass(frozen=True, order=True)
class Head:
    """One attention head, zero-based: `Head(5, 3)` prints as `5.3`."""

    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.layer}.{self.head}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read `5.3`, `5:3` or `L5H3`. Raises UsageError for anything else."""
        match = _HEAD.match(text)
        if match is None:
            raise UsageError(
                f"Cannot read '{visible(text)}' as a head: write layer.head, as in 5.3 or L5H3."
            )
        return cls(int(match[1]), int(match[2]))


def parse_heads(text: str) -> list[Head]:
    """`5.5,L6H9` as heads, in order and once each. Raises UsageError for anything else."""
    return sorted({Head.parse(part) for part in text.split(",")})


@dataclass(frozen=True)
class Token:
    """One token of a text, as a person reads it and as the model counts it."""

    index: int
    id: int
    text: str
    special: bool

    @property
    def word(self) -> str:
        """The text without the mark for a leading space, for use in prose."""
        return self.text.lstrip("·") or self.text


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model's attention, and how it reads."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_model: int
    vocab_size: int
    max_positions: int | None
    causal: bool
    sink: bool = False  # has any layer a learned sink?

    @property
    def grid(self) -> tuple[int, int]:
        """Layers and heads."""
        return self.n_layers, self.n_heads

    @property
    def kind(self) -> str:
        """MHA, GQA or MQA, by how many query heads share one key/value head."""
        if self.n_kv_heads == self.n_heads:
            return "MHA"
        return "MQA" if self.n_kv_heads == 1 else "GQA"

    def check_head(self, head: Head, model_id: str) -> None:
        """Raise UsageError when this model has no such head."""
        if not (0 <= head.layer < self.n_layers and 0 <= head.head < self.n_heads):
            raise UsageError(
                f"Unknown head '{head}': {model_id} has layers 0-{self.n_layers - 1} "
                f"and heads 0-{self.n_heads - 1}."
            )


@dataclass(frozen=True)
class TokenBatch:
    """Texts of unequal length, padded on the right to the longest. All (B, T)."""

    ids: Tensor  # int64
    valid: Tensor  # bool: a token of the text, not padding
    special: Tensor  # bool: [CLS], <s>, ...
    punctuation: Tensor  # bool: text is punctuation only
    segments: Tensor | None = None  # int64: 1 in the second text of a pair

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    def rows(self, start: int, stop: int) -> TokenBatch:
        """Some of the texts."""
        segments = None if self.segments is None else self.segments[start:stop]
        return TokenBatch(
            self.ids[start:stop],
            self.valid[start:stop],
            self.special[start:stop],
            self.punctuation[start:stop],
            segments,
        )

    def to(self, device: torch.device) -> TokenBatch:
        """The same texts on another device."""
        segments = None if self.segments is None else self.segments.to(device)
        return TokenBatch(
            self.ids.to(device),
            self.valid.to(device),
            self.special.to(device),
            self.punctuation.to(device),
            segments,
        )


# What a slow function reports: what it is doing, how many steps are done, how many there are
# (0 when that is not known).
Progress = Callable[[str, int, int], None]


def no_progress(what: str, done: int, total: int) -> None:
    """Report to nobody."""
