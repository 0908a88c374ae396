"""compare: a model beside its twins with more or fewer key/value heads, in bytes and FLOPs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from attnscope.errors import UsageError, did_you_mean
from attnscope.experiments import amounts
from attnscope.experiments.compare_result import WINDOWS, CompareResult, CompareRow, Settings
from attnscope.experiments.memory import (
    FORMATS,
    NumberFormat,
    Paging,
    allocated_bytes,
    flops_per_byte,
    kv_bytes,
    longest_context,
    prefill_flops,
    token_bytes,
    token_flops,
)
from attnscope.models.find import find_shapes
from attnscope.models.shapes import AttentionShape, divisors, known_shape
from attnscope.plain import visible
from attnscope.types import Progress, no_progress

CLASSIC = "llama-3-8b"
DTYPES = tuple(FORMATS)
USUAL_CONTEXT = 8192


def compare(
    *names: str,
    shapes: Sequence[AttentionShape] = (),
    model: str | None = None,
    config: str | Path | None = None,
    revision: str | None = None,
    kv_heads: str | int | Sequence[int] | None = None,
    context: str | int | Sequence[str | int] | None = None,
    batch: int | str = 1,
    dtype: str = "bfloat16",
    weights_dtype: str | None = None,
    group_size: int | None = None,
    page_size: int | str = 16,
    sliding: str = "full",
    memory: str | int = "24GiB",
    progress: Progress = no_progress,
) -> CompareResult:
    """Memory and arithmetic of attention for a model and its MHA, GQA and MQA twins.

    `names` are rows of configs/models, `shapes` those that are at hand already, `model` a
    checkpoint as for `load` (only its config is read), `config` a config.json; without any, the
    shape of Llama-3-8B. Several models are shown as they are, without twins unless `kv_heads` asks.
    Nothing here imports torch, except where a config leaves things to its class. Raises UsageError
    for amounts that make no sense.
    """
    found = find_shapes(names, model, config, revision, progress)
    shapes = [*shapes, *found] or [known_shape(CLASSIC)]
    asked = None if kv_heads is None else amounts.heads(kv_heads, "8,4,1")
    usual = min(min(shape.positions or USUAL_CONTEXT for shape in shapes), USUAL_CONTEXT)
    kept = _number_format(dtype, group_size)
    if sliding not in WINDOWS:
        raise UsageError(f"Sliding layers are kept {' or '.join(WINDOWS)}, not {sliding!r}.")
    settings = Settings(
        contexts=amounts.counts(usual if context is None else context, "tokens"),
        batch=amounts.count(batch, "texts"),
        kept=kept,
        weights=_weights_format(weights_dtype, kept),
        paging=Paging(amounts.count(page_size, "tokens a page"), sliding == "full"),
        memory=amounts.memory(memory),
    )
    rows = [
        row
        for shape in shapes
        for context_ in settings.contexts
        for row in _rows(shape, _variants(shape, asked, len(shapes) > 1), context_, settings)
    ]
    return CompareResult(tuple(shapes), settings, tuple(rows))


def _variants(
    shape: AttentionShape, asked: tuple[int, ...] | None, many: bool
) -> list[AttentionShape]:
    """The model among its twins, the most key/value heads first."""
    if asked is None:
        asked = () if many else (*_usual_groups(shape), 1)
    everyone = () if many and not asked else (shape.n_heads,)
    twins = {n: shape.twin(n) for n in sorted({*everyone, *asked}, reverse=True)}
    if shape.latent is None:
        twins[shape.n_kv_heads] = shape
        return [twins[n] for n in sorted(twins, reverse=True)]
    return [*twins.values(), shape]


def _usual_groups(shape: AttentionShape) -> tuple[int, ...]:
    """For a model that has no groups: those of four heads, or the nearest to it that divide."""
    if shape.kind == "GQA":
        return ()
    between = divisors(shape.n_heads)[1:-1]
    return tuple(sorted(between, key=lambda n: abs(n - shape.n_heads / 4))[:1])


def _rows(
    shape: AttentionShape, variants: list[AttentionShape], context: int, settings: Settings
) -> Iterator[CompareRow]:
    mha = kv_bytes(shape.twin(shape.n_heads), context, settings.batch, settings.kept)
    for variant in variants:
        yield _row(shape, variant, context, settings, mha)


def _row(
    shape: AttentionShape, variant: AttentionShape, context: int, settings: Settings, mha: int
) -> CompareRow:
    batch, kept, paging = settings.batch, settings.kept, settings.paging
    taken = kv_bytes(variant, context, batch, kept)
    weights = None if variant.parameters is None else settings.weights.bytes(variant.parameters)
    room = settings.memory - (weights or 0)
    one = allocated_bytes(variant, context, 1, kept, paging)
    return CompareRow(
        model=shape.name,
        variant=variant.kind,
        as_is=variant is shape,
        n_layers=variant.n_layers,
        n_heads=variant.n_heads,
        n_kv_heads=None if variant.latent is not None else variant.n_kv_heads,
        d_head=variant.d_head,
        dtype=kept.name,
        batch=batch,
        context=context,
        kv_bytes_per_token=token_bytes(variant, kept),
        kv_bytes=taken,
        kv_bytes_allocated=allocated_bytes(variant, context, batch, kept, paging),
        ratio_to_mha=taken / mha if mha else None,
        attention_parameters=variant.attention_parameters,
        attention_bytes=settings.weights.bytes(variant.attention_parameters),
        weights_bytes=weights,
        attention_flops_per_token=token_flops(variant, context),
        prefill_flops=prefill_flops(variant, context, batch),
        decode_flops_per_byte=flops_per_byte(variant, kept),
        longest_context=longest_context(variant, room, batch, kept, paging),
        largest_batch=max(room, 0) // one if one else None,
    )


def _number_format(name: str, group_size: int | None) -> NumberFormat:
    if name not in FORMATS:
        raise UsageError(
            f"Unknown dtype {visible(name)!r}: choose from {', '.join(FORMATS)}."
            f"{did_you_mean(name, FORMATS)}"
        )
    kept = FORMATS[name]
    if group_size is None:
        return kept
    if kept.group is None:
        raise UsageError(f"{name} has no scales: a group size belongs to int8 or int4.")
    size = amounts.count(group_size, "numbers a group")
    return NumberFormat(kept.name, kept.bits, size, kept.zero_point)


def _weights_format(name: str | None, kept: NumberFormat) -> NumberFormat:
    """The weights are like the cache, unless that is quantised: few models are, in the same way."""
    if name is not None:
        return _number_format(name, None)
    return kept if kept.bits >= 16 else FORMATS["bfloat16"]
