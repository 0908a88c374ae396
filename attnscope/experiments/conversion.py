"""conversion: fewer key/value heads in a checkpoint, in memory, and what that costs untrained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attnscope.attention.alignment import Moments
from attnscope.attention.multihead import MultiHeadAttention
from attnscope.attention.pooling import METHODS, Grouping, pool
from attnscope.errors import UsageError, did_you_mean
from attnscope.experiments import amounts
from attnscope.experiments.compare_result import Settings
from attnscope.experiments.conversion_result import (
    AS_IS,
    REPEATED,
    Conversion,
    ConversionResult,
    ConvertedHead,
)
from attnscope.experiments.damage import Outcome, Variant, measure
from attnscope.experiments.grouping import alike
from attnscope.experiments.held_out import TEXTS, pick_texts, read_moments
from attnscope.experiments.memory import kv_bytes, token_bytes
from attnscope.experiments.room import check_room
from attnscope.models.load import Model
from attnscope.models.saving import check_saving, save_converted
from attnscope.models.shapes import AttentionShape
from attnscope.plain import visible
from attnscope.scoring.sums import Floats
from attnscope.types import Progress, no_progress

GROUPINGS = ("neighbours", "alike")
RESAMPLES = 2000


def sizes_of(asked: str | int | Sequence[int], shape: AttentionShape) -> tuple[int, ...]:
    """Numbers of key/value heads: `9,3,1`, or `all` that tell something, the most first.

    All are the MHA twin, the model as it is, and every fewer. Raises UsageError for numbers that
    do not divide the query heads.
    """
    n_heads = shape.n_heads
    if asked == "all":
        fewer = [n for n in range(1, shape.n_kv_heads) if n_heads % n == 0]
        return tuple(sorted({n_heads, shape.n_kv_heads, *fewer}, reverse=True))
    sizes = set(amounts.heads(asked, "9,3,1, or all"))
    for size in sizes:
        Grouping.neighbours(n_heads, size)
    return tuple(sorted(sizes, reverse=True))


def methods_of(asked: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names of methods, `mean,first`; all of them where none is named."""
    if asked is None:
        return METHODS
    names = asked.split(",") if isinstance(asked, str) else asked
    for name in names:
        if name not in METHODS:
            raise UsageError(
                f"Unknown method {visible(name)!r}: choose from {', '.join(METHODS)}."
                f"{did_you_mean(name, METHODS)}"
            )
    return tuple(dict.fromkeys(names))


def no_cache(name: str) -> UsageError:
    """The refusal of an encoder."""
    return UsageError(
        f"{visible(name)} is an encoder: it keeps no cache that sharing keys and values would make "
        "smaller."
    )


def check_one(count: int) -> None:
    """Raise UsageError where what is to be saved is not one model."""
    if count != 1:
        raise UsageError(
            "--save writes one model: name one number of key/value heads and one method, as in "
            "--convert 1 --methods best-aligned."
        )


def check_convertible(model: Model) -> None:
    """Raise UsageError where there is nothing to convert, or nothing to measure it by."""
    if not model.shape.causal:
        raise no_cache(model.id)
    if not model.has_logits:
        raise UsageError("Losses need the language-model head: load the model with logits=True.")


def build(
    model: Model,
    size: int,
    method: str,
    grouping: str = "neighbours",
    moments: Sequence[Moments] | None = None,
) -> Variant:
    """The layers of a model with so many key/value heads.

    `moments` are needed for best-aligned, and to group what is alike. Raises UsageError where
    heads cannot be shared so.
    """
    layers: list[MultiHeadAttention] = []
    orders = []
    pooled = method if method in METHODS else "mean"  # of heads that are the same already
    for number, seat in enumerate(model.seats):
        attention, seen = seat.attention, None if moments is None else moments[number]
        chosen = Grouping.neighbours(attention.spec.n_heads, size)
        if grouping == "alike" and seen is not None and not chosen.is_exact(attention.spec):
            chosen = alike(attention.spec, seen, size)
        layers.append(pool(attention, chosen, pooled, seen))
        orders.append(chosen.order)
    return Variant(f"{size} key/value head{'s' * (size != 1)}, {method}", layers, orders)


def plan(model: Model, sizes: Sequence[int], methods: Sequence[str]) -> list[tuple[int, str]]:
    """Which conversions there are: one is enough where every method gives the same."""
    found = []
    for size in sizes:
        chosen = Grouping.neighbours(model.shape.n_heads, size)
        if all(chosen.is_exact(spec) for spec in model.specs):
            found.append((size, AS_IS if size == model.shape.n_kv_heads else REPEATED))
        else:
            found += [(size, method) for method in methods]
    return found


def convert(
    model: Model,
    shape: AttentionShape,
    settings: Settings,
    asked: str | int | Sequence[int] = "all",
    *,
    methods: str | Sequence[str] | None = None,
    grouping: str = "neighbours",
    texts: int = TEXTS,
    save: Path | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> ConversionResult:
    """Convert a model to each number of key/value heads by each method, and measure the damage.

    Nothing is trained, and the model is as before afterwards. `save` is a directory for the only
    one converted to. Raises UsageError for numbers that do not fit, for an encoder, and for a model
    loaded without its logits.
    """
    check_convertible(model)
    if grouping not in GROUPINGS:
        raise UsageError(f"Unknown grouping {visible(grouping)!r}: neighbours or alike.")
    wanted = plan(model, sizes_of(asked, shape), methods_of(methods))
    if save is not None:
        check_one(len(wanted))
        check_saving(model, save)
    read = pick_texts(model, texts, seed)
    _check_room(model, len(wanted))
    needed = grouping == "alike" or any(method == "best-aligned" for _, method in wanted)
    moments = read_moments(model, read.aligned, progress) if needed else None
    variants = []
    for number, (size, method) in enumerate(wanted):
        progress("converting", number, len(wanted))
        variants.append(build(model, size, method, grouping, moments))
    clean, *outcomes = measure(
        model, variants, read.measured, read.stimulus, seed=seed, progress=progress
    )
    found = [
        _conversion(shape, settings, size, method, grouping, variant, clean, outcome, seed)
        for (size, method), variant, outcome in zip(wanted, variants, outcomes, strict=True)
    ]
    about = {**read.to_json(), "seed": seed, "grouping": grouping}
    if save is not None:
        progress("saving", 0, 0)
        dtype = save_converted(model, variants[0].layers, save)
        about["saved_dtype"] = str(dtype).removeprefix("torch.")
    return ConversionResult(
        n_kv_heads=model.shape.n_kv_heads,
        vocab_size=model.shape.vocab_size,
        loss=clean.loss,
        repeated=_repeated(clean),
        settings=about,
        conversions=tuple(found),
        notes=read.notes,
        saved=None if save is None else str(save),
    )


def _check_room(model: Model, count: int) -> None:
    weights = sum(
        2 * spec.d_model * spec.head_width * (spec.n_heads + spec.kv_heads) for spec in model.specs
    )
    check_room(
        count * weights * model.dtype.itemsize,
        f"The attention weights of {count} conversions",
        "Convert to fewer numbers of heads, or by fewer methods, at a time.",
    )


def _conversion(
    shape: AttentionShape,
    settings: Settings,
    size: int,
    method: str,
    grouping: str,
    variant: Variant,
    clean: Outcome,
    outcome: Outcome,
    seed: int,
) -> Conversion:
    twin, context = shape.twin(size), max(settings.contexts)
    taken = kv_bytes(twin, context, settings.batch, settings.kept)
    full = kv_bytes(shape.twin(shape.n_heads), context, settings.batch, settings.kept)
    low, high = _interval(outcome.losses - clean.losses, clean.losses[:, 1], seed)
    exact = method in (AS_IS, REPEATED)
    return Conversion(
        n_kv_heads=size,
        method=method,
        grouping="neighbours" if exact else grouping,
        exact=exact,
        kv_bytes_per_token=token_bytes(twin, settings.kept),
        kv_bytes=taken,
        ratio_to_mha=taken / full if full else None,
        loss=outcome.loss,
        loss_delta=outcome.loss - clean.loss,
        low=low,
        high=high,
        repeated=_repeated(outcome),
        attention_kl=float(outcome.divergence.mean()),
        hidden_error=tuple(map(float, outcome.apart)),
        heads=tuple(_heads(variant, clean, outcome)),
    )


def _heads(variant: Variant, clean: Outcome, outcome: Outcome) -> list[ConvertedHead]:
    found = []
    for layer, attention in enumerate(variant.layers):
        for head, place in enumerate(variant.places(layer)):
            found.append(
                ConvertedHead(
                    layer=layer,
                    head=head,
                    kv_head=attention.spec.kv_head(int(place)),
                    attention_kl=float(outcome.divergence[layer, head]),
                    labels_before=clean.labels[layer][head].labels,
                    labels=outcome.labels[layer][head].labels,
                    reached=outcome.reached[layer][head].labels,
                )
            )
    return found


def _repeated(outcome: Outcome) -> tuple[float, float] | None:
    if not len(outcome.repeated):
        return None
    first, again = outcome.repeated.mean(0)
    return float(first), float(again)


def _interval(more: Floats, counts: Floats, seed: int) -> tuple[float | None, float | None]:
    """The 95 % interval of the mean difference a token, from resampling texts."""
    if len(more) < 2:
        return None, None
    drawn = np.random.default_rng(seed).multinomial(
        len(more), np.full(len(more), 1 / len(more)), size=RESAMPLES
    )
    means = drawn @ more[:, 0] / np.maximum(drawn @ counts, 1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)
