"""compare, for a model that is loaded: the same rows, and what is measured on the model itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnscope.errors import CheckpointError, UsageError
from attnscope.experiments import amounts
from attnscope.experiments.caches import contexts_to_weigh, measure_caches
from attnscope.experiments.compare import compare
from attnscope.experiments.compare_result import CompareResult
from attnscope.experiments.conversion import convert as convert_model
from attnscope.experiments.conversion import sizes_of
from attnscope.experiments.decoding import CONTEXTS, ROUNDS, time_decoding
from attnscope.experiments.held_out import TEXTS
from attnscope.experiments.measured_result import MeasuredResult
from attnscope.experiments.similarity import similarity as compare_heads
from attnscope.models.load import Model
from attnscope.models.shape_config import shape_from_config
from attnscope.models.shapes import AttentionShape
from attnscope.plain import visible
from attnscope.types import Progress, no_progress


def compare_model(
    model: Model,
    *,
    convert: str | int | Sequence[int] | None = None,
    methods: str | Sequence[str] | None = None,
    grouping: str = "neighbours",
    save: str | Path | None = None,
    similarity: bool = False,
    measure: bool = False,
    passages: int = TEXTS,
    kv_heads: str | int | Sequence[int] | None = None,
    context: str | int | Sequence[str | int] | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
    **sizes: Any,
) -> CompareResult:
    """A loaded model beside its twins; converted to them, its heads compared, its cache measured.

    `convert`, `methods`, `grouping` and `save` as in `conversion.convert`, `similarity` compares
    heads, `measure` allocates caches and times decoding; `sizes` as in `compare.compare`. Raises
    UsageError for what does not fit the model.
    """
    shape = shape_of(model)
    if save is not None and convert is None:
        raise UsageError("--save writes a converted model: say which with --convert.")
    if convert is not None and kv_heads is None:
        kv_heads = sizes_of(convert, shape)
    result = compare(shapes=[shape], kv_heads=kv_heads, context=context, **sizes)
    asked = None if context is None else amounts.counts(context, "tokens")
    reading: dict[str, Any] = {"texts": passages, "seed": seed, "progress": progress}
    if measure:
        result = replace(
            result, measured=_measure(model, shape, asked, result.settings.batch, progress)
        )
    if convert is not None:
        result = replace(
            result,
            conversion=convert_model(
                model,
                shape,
                result.settings,
                convert,
                methods=methods,
                grouping=grouping,
                save=None if save is None else Path(save),
                **reading,
            ),
        )
    if similarity:
        result = replace(result, similarity=compare_heads(model, shape, result.settings, **reading))
    return replace(result, loaded=model.describe())


def shape_of(model: Model) -> AttentionShape:
    """The shape that a model's config tells, or what its layers do where the type is not known.

    Raises CheckpointError where one shape cannot say it.
    """
    try:
        return shape_from_config(model.source.directory / "config.json", model.id)
    except CheckpointError:
        specs, windows = model.specs, {spec.window for spec in model.specs} - {None}
        if len({spec.kv_heads for spec in specs}) > 1 or len(windows) > 1:
            raise
    return AttentionShape(
        name=model.id,
        n_layers=len(specs),
        n_heads=model.shape.n_heads,
        n_kv_heads=model.shape.n_kv_heads,
        d_head=model.shape.d_head,
        d_model=model.shape.d_model,
        causal=model.shape.causal,
        window=next(iter(windows), None),
        sliding_layers=sum(spec.window is not None for spec in specs),
        positions=model.shape.max_positions,
        family=model.family,
        source=f"the layers of {model.id}",
    )


def _measure(
    model: Model,
    shape: AttentionShape,
    asked: tuple[int, ...] | None,
    batch: int,
    progress: Progress,
) -> MeasuredResult:
    if not model.shape.causal:
        raise UsageError(f"{visible(model.id)} is an encoder: it keeps no cache to measure.")
    widest = max(model.specs, key=lambda spec: (spec.window is None, spec.window or 0))
    contexts = asked or CONTEXTS
    progress("filling caches", 0, 0)
    caches = [
        check
        for context in contexts_to_weigh(asked)
        for check in measure_caches(model, shape, context, batch)
    ]
    decode = time_decoding(
        widest.with_changes(qk_norm=None, sink=False),
        contexts,
        device=str(model.device),
        progress=progress,
    )
    import torch

    settings = {
        "cache_contexts": sorted({check.context for check in caches}),
        "cache_batch": batch,
        "cache_dtype": str(model.dtype).removeprefix("torch."),
        "decode_contexts": list(contexts),
        "decode_batch": 1,
        "rounds": ROUNDS,
        "threads": torch.get_num_threads(),
        "device": str(model.device),
        "decode_dtype": "float32",
    }
    return MeasuredResult(tuple(caches), decode, settings)
