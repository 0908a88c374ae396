"""What attention takes: bytes of keys and values, arithmetic, what fits. Exact integers, no torch.

H query heads, G key/value heads of width D, L layers, T tokens, W a window. Formulas: keys and
values take 2·G·D numbers a token in each layer, min(T, W) tokens of them; MLA (arXiv 2405.04434)
keeps its latent instead. A multiply-add counts as 2 FLOPs; softmax and norms are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

from attnscope.models.shapes import AttentionShape

GROUPS = (32, 64)  # numbers that share a scale
_HALF = 2  # bytes of a scale or zero point, which are float16


@dataclass(frozen=True)
class NumberFormat:
    """How numbers are kept. A quantised one has scales (and zero points), one a group."""

    name: str
    bits: int
    group: int | None = None  # None: no scales
    zero_point: bool = False

    def bytes(self, width: int) -> int:
        """Bytes of one vector of so many numbers; groups do not reach into the next vector."""
        payload = -(-width * self.bits // 8)
        if self.group is None:
            return payload
        return payload + -(-width // self.group) * _HALF * (2 if self.zero_point else 1)

    @property
    def about(self) -> str:
        """What a quantised format keeps beside its numbers; empty for the others."""
        if self.group is None:
            return ""
        what = "scale and zero point" if self.zero_point else "scale"
        return f"{self.name}: with a float16 {what} for every {self.group} numbers"


FORMATS = MappingProxyType(
    {
        each.name: each
        for each in (
            NumberFormat("float32", 32),
            NumberFormat("bfloat16", 16),
            NumberFormat("float16", 16),
            NumberFormat("fp8", 8),  # one scale a tensor: a few bytes, left out
            NumberFormat("int8", 8, group=32),
            NumberFormat("int4", 4, group=64, zero_point=True),
        )
    }
)


@dataclass(frozen=True)
class Paging:
    """How an engine reserves the cache: whole pages of tokens; sliding layers like the others?"""

    page_size: int = 16
    full_windows: bool = True  # False: pages that have slid out of the window are given back

    def tokens(self, context: int, window: int | None) -> int:
        """Tokens that a layer has room for. A window may begin inside a page: one page more."""
        pages = -(-context // self.page_size)
        if window is not None and not self.full_windows:
            pages = min(pages, -(-(window - 1) // self.page_size) + 1)
        return pages * self.page_size


def layer_bytes(shape: AttentionShape, kept: NumberFormat) -> int:
    """Bytes that one token takes in one layer."""
    if not shape.causal:
        return 0  # an encoder reads its text once and keeps nothing
    if shape.latent is not None:
        return kept.bytes(shape.latent.kept)
    return 2 * shape.n_kv_heads * kept.bytes(shape.d_head)


def token_bytes(shape: AttentionShape, kept: NumberFormat) -> int:
    """Bytes of one token in all layers."""
    return shape.n_layers * layer_bytes(shape, kept)


def kv_bytes(shape: AttentionShape, context: int, batch: int, kept: NumberFormat) -> int:
    """The cache as it must be: a sliding layer keeps its window only."""
    return (
        batch * layer_bytes(shape, kept) * _layer_tokens(shape, lambda w: seen_tokens(context, w))
    )


def allocated_bytes(
    shape: AttentionShape, context: int, batch: int, kept: NumberFormat, paging: Paging
) -> int:
    """The cache as an engine reserves it."""
    tokens = _layer_tokens(shape, lambda window: paging.tokens(context, window))
    return batch * layer_bytes(shape, kept) * tokens


def token_flops(shape: AttentionShape, context: int) -> int:
    """FLOPs of attention for one new token that sees `context` tokens, itself among them.

    Projections: 2 for each of their weights. MLA scores the latents themselves (W_K and W_V
    absorbed into W_Q and W_O, which takes as many multiplications).
    """
    seen = _layer_tokens(shape, lambda window: seen_tokens(context, window))
    return 2 * shape.projection_weights + _seen_flops(shape) * seen


def prefill_flops(shape: AttentionShape, context: int, batch: int) -> int:
    """FLOPs of attention for reading a text of `context` tokens. MLA computes keys and values."""
    pairs = _layer_tokens(shape, lambda window: _pairs(shape.causal, context, window))
    if (latent := shape.latent) is not None:
        each = 2 * shape.n_heads * (latent.nope + latent.rope + latent.value)
    else:
        each = _seen_flops(shape)
    return batch * (context * 2 * shape.projection_weights + each * pairs)


def flops_per_byte(shape: AttentionShape, kept: NumberFormat) -> float | None:
    """Scores and values of a new token, for each byte of cache read: H/G at 16 bits."""
    taken = layer_bytes(shape, kept)
    return _seen_flops(shape) / taken if taken else None


def longest_context(
    shape: AttentionShape, room: int, batch: int, kept: NumberFormat, paging: Paging
) -> int | None:
    """The most tokens whose allocated cache takes at most `room` bytes; None: any number does."""

    def fits(context: int) -> bool:
        return allocated_bytes(shape, context, batch, kept, paging) <= room

    if not shape.causal:
        return None
    if not fits(1):
        return 0
    if not paging.full_windows and shape.window is not None:
        whole = shape.window + 2 * paging.page_size  # from here on sliding layers grow no more
        if shape.sliding_layers == shape.n_layers and fits(whole):
            return None
    high = 1
    while fits(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def seen_tokens(context: int, window: int | None) -> int:
    """Tokens that a new one sees, itself among them, and that a layer must keep."""
    return context if window is None else min(context, window)


def _pairs(causal: bool, context: int, window: int | None) -> int:
    """Query-key pairs of a text: row i sees min(i + 1, W) keys, in an encoder all of them."""
    if not causal:
        return context * context
    seen = seen_tokens(context, window)
    return seen * (seen + 1) // 2 + (context - seen) * seen


def _layer_tokens(shape: AttentionShape, of: Callable[[int | None], int]) -> int:
    """A count of tokens summed over the layers: those with the window, and those without."""
    full = shape.n_layers - shape.sliding_layers
    return full * of(None) + (
        shape.sliding_layers * of(shape.window) if shape.sliding_layers else 0
    )


def _seen_flops(shape: AttentionShape) -> int:
    """FLOPs for one query and one key in one layer, all heads: its score, and its value's share."""
    if shape.latent is not None:
        return 2 * shape.n_heads * (2 * shape.latent.kv_rank + shape.latent.rope)
    return 4 * shape.n_heads * shape.d_head
