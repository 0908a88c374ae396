"""circuits: what the weights alone say of heads, and which head reads what another one writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import Any

from attnscope.errors import UsageError
from attnscope.experiments.circuits_result import CircuitsResult
from attnscope.experiments.composition import KINDS, HeadWeights, compositions, head_weights
from attnscope.experiments.own_weights import OwnMeasures
from attnscope.experiments.room import check_room
from attnscope.models.load import Model
from attnscope.models.stream import Stream, read_stream, rotations_at
from attnscope.plain import visible
from attnscope.scoring.battery import run_battery
from attnscope.scoring.estimate import FAMILY_ERROR
from attnscope.scoring.labels import HeadLabels, judge, labels_of
from attnscope.scoring.rules import read_rules
from attnscope.scoring.store import NotKept
from attnscope.types import Head, Progress, no_progress

TOP_K = 20


def circuits(
    model: Model,
    *,
    top_k: int = TOP_K,
    source: Sequence[Head] = (),
    target: Sequence[Head] = (),
    kinds: Sequence[str] = KINDS,
    offset: int = 0,
    heads_from_battery: bool | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> CircuitsResult:
    """Norms and copying of every head, and the composition of all pairs, from weights alone.

    The `top_k` strongest pairs are listed, from `source` and to `target` heads where some are
    named. Rotary layers score the key at query + `offset`. Heads are named by the battery's labels
    if they are kept, or by running it (`heads_from_battery` True), or not at all (False).
    Raises UsageError when no pair is left, CheckpointError where the stream cannot be followed.
    """
    _check(model, top_k, source, target, kinds, offset)
    _check_room(model)
    progress("following the residual stream", 0, 0)
    stream = read_stream(model)
    measures = OwnMeasures(model, stream)
    found = compositions(model, stream, _layers(model, stream, offset, measures, progress))
    labels, said = _labels(model, heads_from_battery, seed, progress)
    n_pairs = len(KINDS) * int(found.score[0].isfinite().sum()) or 1
    return CircuitsResult(
        model=model.describe(),
        settings={
            **model.settings(seed),
            "offset": offset,
            "top_k": top_k,
            "from": [str(head) for head in source],
            "to": [str(head) for head in target],
            "kinds": list(kinds),
            "folded": _folded(model, stream),
        },
        own=measures.found,
        compositions=found,
        family_z=NormalDist().inv_cdf(1 - FAMILY_ERROR / n_pairs),
        labels=labels,
        source=tuple(source),
        target=tuple(target),
        kinds=tuple(kind for kind in KINDS if kind in kinds),
        top_k=top_k,
        notes=(*_notes(model, measures, offset), *said),
    )


def _layers(
    model: Model, stream: Stream, offset: int, measures: OwnMeasures, progress: Progress
) -> Iterator[HeadWeights]:
    """The weights of each layer, measured by themselves on the way."""
    turns = rotations_at(model, abs(offset))
    for layer, turn in enumerate(turns):
        progress("comparing the heads of layer", layer, len(turns))
        weights = head_weights(model, stream, layer, turn and (turn[::-1] if offset < 0 else turn))
        measures.measure(layer, weights)
        yield weights


def _labels(
    model: Model, wanted: bool | None, seed: int, progress: Progress
) -> tuple[list[list[HeadLabels]] | None, tuple[str, ...]]:
    """The battery's labels [layer][head]; where there are none, a note that says why."""
    if wanted is False:
        return None, ()
    try:
        refresh = False if wanted else None
        battery = run_battery(model, seed=seed, refresh=refresh, progress=progress)
    except NotKept:
        return None, ("Heads go without labels: --heads-from-battery runs the battery once.",)
    if battery.text is None or battery.random is None:
        why = " ".join(battery.notes).partition(": ")[2]
        return None, (f"Heads go without labels: {why}",)
    evidence = {"text": battery.text.evidence, "random": battery.random.evidence}
    return labels_of(
        judge(read_rules(), evidence, model.shape.causal), model.shape.grid
    ), battery.notes


def _folded(model: Model, stream: Stream) -> dict[str, Any]:
    """How many norms were folded into the weights, for the settings of a document."""
    parts = (*stream.reads, *stream.writes, *stream.passes)
    return {
        "before_attention": sum(map(len, stream.reads)),
        "after_attention": sum(map(len, stream.writes)),
        "in_the_stream": sum(map(len, stream.passes)),
        "centred": any(fold.centred for part in parts for fold in part),
        "query_and_key": any(spec.qk_norm is not None for spec in model.specs),
        "biases": False,
    }


def _notes(model: Model, measures: OwnMeasures, offset: int) -> Iterator[str]:
    if model.shape.n_layers == 1:
        yield "One layer: no head can read what another one writes."
    if any(spec.qk_norm is not None for spec in model.specs):
        yield (
            "This model norms its queries and keys: a QK norm says nothing then, and Q and K hold "
            "up to a factor for each token and head."
        )
    if not model.shape.causal:
        yield "No copying score: an encoder predicts through more than an unembedding."
    elif not measures.stream.plain:
        yield "No copying score: norms stand in the residual stream."
    elif measures.vocabulary is None:
        yield "No copying score: there is no unembedding that takes the last hidden state."
    if any(spec.rotary for spec in model.specs):
        where = "as if query and key stood at one place" if not offset else f"at offset {offset}"
        yield f"Rotary turns queries and keys by their distance: Q, K and QK norms are {where}."
    elif offset:
        yield f"No layer is rotary: offset {offset} changes nothing."


def _check(
    model: Model,
    top_k: int,
    source: Sequence[Head],
    target: Sequence[Head],
    kinds: Sequence[str],
    offset: int,
) -> None:
    if top_k < 1:
        raise UsageError(f"--top-k is {top_k}: list at least one pair.")
    unknown = next((kind for kind in kinds if kind not in KINDS), None)
    if unknown is not None or not kinds:
        raise UsageError(f"Unknown kind '{visible(str(unknown))}': choose from {', '.join(KINDS)}.")
    for head in (*source, *target):
        model.shape.check_head(head, visible(model.id))
    first = min((head.layer for head in source), default=0)
    last = max((head.layer for head in target), default=model.shape.n_layers - 1)
    if (source or target) and first >= last:
        raise UsageError(
            "No pair is left: a head reads what heads of earlier layers write, so --from must lie "
            "below --to."
        )
    if offset > 0 and model.shape.causal:
        raise UsageError(f"Offset {offset} is a later token, which a causal model never reads.")
    longest = model.shape.max_positions
    if longest is not None and abs(offset) >= longest:
        raise UsageError(f"Offset {offset} is further than the {longest} positions of the model.")


def _check_room(model: Model) -> None:
    shape = model.shape
    n_heads = shape.n_layers * shape.n_heads
    pairs = 4 * 2 * len(KINDS) * n_heads**2
    layer = shape.n_heads * shape.d_head
    written = 4 * n_heads * shape.d_head * shape.d_model
    at_once = 4 * len(KINDS) * layer**2 + 4 * 6 * layer * shape.d_model
    what = f"Comparing {n_heads} heads with each other"
    check_room(pairs + written + at_once, what, "Use a machine with more, or a smaller model.")
