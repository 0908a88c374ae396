"""caches: transformers' own key/value caches, allocated and weighed, against the formula.

A cache is filled as a model fills it: with keys and values of all tokens but one, then with those
of the newest, whose attention it answers. Of a layer that sees W keys a dynamic cache keeps W - 1
between steps (the oldest would not be seen again), hands out W in a step, the newest among them,
and its W - 1 are a view of the memory of these W; a static one has room for W all the time. The
formula, min(T, W) tokens, is what a step needs: it is met to the byte by what a step gets, and by
the memory that stays allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attnscope.attention.spec import AttentionSpec
from attnscope.experiments.measured_result import QUANTISED, CacheCheck, LayerCache
from attnscope.experiments.memory import FORMATS, NumberFormat, layer_bytes, seen_tokens
from attnscope.experiments.room import check_room
from attnscope.models.load import Model
from attnscope.models.shapes import AttentionShape

CONTEXT = 256  # tokens, or one more than the longest window, as far as positions go
SMALL = 4096  # tokens: longer caches are weighed only where nothing shorter was asked for


def contexts_to_weigh(asked: Sequence[int] | None) -> tuple[int | None, ...]:
    """Those that are small enough, or the smallest; None is the one that is usual for the model."""
    if asked is None:
        return (None,)
    return tuple(context for context in asked if context <= SMALL) or (min(asked),)


def measure_caches(
    model: Model, shape: AttentionShape, context: int | None = None, batch: int = 1
) -> tuple[CacheCheck, ...]:
    """Every kind of cache for `context` tokens, in the model's own number format.

    Raises RunError when they would not fit in memory.
    """
    windows = [spec.window for spec in model.specs if spec.window is not None]
    tokens = context or max([CONTEXT, *(window + 1 for window in windows)])
    if context is None and model.shape.max_positions is not None:
        tokens = min(tokens, model.shape.max_positions)
    kept = FORMATS[str(model.dtype).removeprefix("torch.")]
    per_token = sum(2 * spec.kv_heads * spec.head_width for spec in model.specs)
    check_room(
        6 * batch * tokens * per_token * model.dtype.itemsize,
        f"A cache of {tokens} tokens, and those who copy it,",
        "Ask for fewer tokens.",
    )
    return tuple(
        _check(kind, model, shape, kept, tokens, batch)
        for kind in ("dynamic", "static", *QUANTISED)
    )


def _check(
    kind: str,
    model: Model,
    shape: AttentionShape,
    kept: NumberFormat,
    tokens: int,
    batch: int,
) -> CacheCheck:
    stored = FORMATS[kind] if kind in QUANTISED else kept
    config: Any = model.network.config
    if kind in QUANTISED and any(spec.window is not None for spec in model.specs):
        return CacheCheck(kind, tokens, stored.name, (), "transformers has none with windows")
    try:
        return CacheCheck(
            kind, tokens, stored.name, _weigh(kind, config, model, shape, stored, tokens, batch)
        )
    except ImportError:
        reason = "needs optimum-quanto, which is not installed"
    except (ValueError, TypeError) as error:  # of this transformers, or for heads of this width
        reason = (str(error).splitlines() or [type(error).__name__])[0][:100]
    return CacheCheck(kind, tokens, stored.name, (), reason)


def _weigh(
    kind: str,
    config: Any,
    model: Model,
    shape: AttentionShape,
    stored: NumberFormat,
    tokens: int,
    batch: int,
) -> tuple[LayerCache, ...]:
    cache, layers = _make(kind, config, tokens), []
    for layer, spec in enumerate(model.specs):
        handed = _fill(cache, layer, spec, model.dtype, tokens, batch)
        held, allocated = _held(cache.layers[layer], _size), _held(cache.layers[layer], _storage)
        taken = layer_bytes(shape, stored) * seen_tokens(tokens, spec.window)
        measured = held if kind in QUANTISED else handed
        layers.append(LayerCache(layer, spec.window, batch * taken, measured, held, allocated))
    return tuple(layers)


def _make(kind: str, config: Any, tokens: int) -> Any:
    from transformers import DynamicCache, QuantizedCache, StaticCache

    if kind == "dynamic":
        return DynamicCache(config=config)
    if kind == "static":
        return StaticCache(config=config, max_cache_len=tokens)
    if kind == "fp8":
        return QuantizedCache(backend="fp8", config=config)
    return QuantizedCache(backend="quanto", config=config, nbits=4, q_group_size=64)


def _fill(
    cache: Any, layer: int, spec: AttentionSpec, dtype: torch.dtype, tokens: int, batch: int
) -> int:
    """All tokens but one, then the newest; the bytes that its attention is given."""
    handed: Sequence[Tensor] = ()
    generator = torch.Generator().manual_seed(layer)
    for count in (tokens - 1, 1):
        if count:
            size = (batch, spec.kv_heads, count, spec.head_width)
            key, value = (torch.randn(size, generator=generator).to(dtype) for _ in range(2))
            handed = cache.update(key, value, layer)
    return sum(one.nbytes for one in handed)


def _held(layer: Any, of: Callable[[Tensor], int]) -> int:
    """Bytes that a layer of a cache keeps, its scales included."""
    found = [getattr(layer, name, None) for name in ("keys", "values")]
    found += [getattr(layer, f"_quantized_{name}", None) for name in ("keys", "values")]
    return sum(_bytes(one, of) for one in found)


def _bytes(held: Any, of: Callable[[Tensor], int]) -> int:
    if isinstance(held, (tuple, list)):
        return sum(_bytes(one, of) for one in held)
    if not isinstance(held, Tensor):
        return 0
    inner = [getattr(held, name, None) for name in ("_data", "_scale", "_shift")]
    if isinstance(inner[0], Tensor):  # optimum-quanto's: numbers, scales, zero points
        return sum(_bytes(one, of) for one in inner)
    return of(held)


def _size(tensor: Tensor) -> int:
    return tensor.nbytes


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()
