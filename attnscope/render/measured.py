"""Caches and decode steps as measured, as tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from attnscope.experiments.amounts import binary, grouped
from attnscope.experiments.compare_result import Settings
from attnscope.experiments.measured_result import QUANTISED, CacheCheck, LayerCache, MeasuredResult
from attnscope.plain import number, visible
from attnscope.render.table import Column, lay_out, wrapped

_CACHES = (
    Column("cache"),
    Column("tokens", right=True),
    Column("layers"),
    Column("window", right=True, keep=5),
    Column("formula", right=True, keep=1),
    Column("measured", right=True),
    Column("difference", right=True, keep=2),
    Column("kept", right=True, keep=3),
    Column("allocated", right=True, keep=4),
)
_DECODE = (
    Column("context", right=True),
    Column("variant"),
    Column("kv heads", right=True, keep=2),
    Column("cache", right=True, keep=3),
    Column("one step", right=True),
    Column("of MHA", right=True),
    Column("quartiles", keep=1),
)


def measured_lines(result: MeasuredResult, settings: Settings, width: int) -> list[Text]:
    """Bytes of each layer against the formula, then the time of a decode step.

    `settings` are those of the table above.
    """
    about = result.settings
    contexts = " and ".join(map(grouped, about["cache_contexts"]))
    title = "transformers' own caches"
    words = (
        f"{title}  {contexts} tokens, batch {grouped(about['cache_batch'])}, "
        f"{about['cache_dtype']}, bytes a layer"
    )
    lines = [Text(line) for line in wrapped(words, width)]
    lines[0].stylize("bold", 0, len(title))
    rows = [
        [Text(cell) for cell in cells] for check in result.caches for cells in _cache_rows(check)
    ]
    several = len(about["cache_contexts"]) > 1
    columns = [at for at, one in enumerate(_CACHES) if several or one.title != "tokens"]
    lines += lay_out(
        [_CACHES[at] for at in columns], [[row[at] for at in columns] for row in rows], width
    )
    skipped = {check.cache: check.skipped for check in result.caches if check.skipped is not None}
    for cache, reason in skipped.items():
        lines += _dim(f"quantised, {cache}: {visible(reason)}.", width)
    lines += [*_cache_notes(result, settings, width), Text()]
    title = "one decode step"
    words = (
        f"{title}  one layer of our attention, random weights, {about['decode_dtype']}, one text, "
        f"{about['rounds']} paired rounds, "
        f"{about['threads']} thread{'s' * (about['threads'] != 1)}"
    )
    heading = [Text(line) for line in wrapped(words, width)]
    heading[0].stylize("bold", 0, len(title))
    timed = [
        [
            Text(grouped(row.context)),
            Text(row.variant),
            Text(str(row.n_kv_heads)),
            Text(binary(row.cache_bytes)),
            Text(f"{1000 * row.seconds:.2f} ms"),
            Text(number(row.ratio)),
            Text(f"{number(row.low)} – {number(row.high)}"),
        ]
        for row in result.decode
    ]
    lines += [*heading, *lay_out(_DECODE, timed, width)]
    return lines + _dim(
        "of MHA: median of each round's own ratio. Time depends on this machine, and on what else "
        "it was doing.",
        width,
    )


def _cache_rows(check: CacheCheck) -> list[list[str]]:
    """Layers that are alike stand in one row."""
    alike: dict[LayerCache, list[int]] = {}
    for layer in check.layers:
        key = LayerCache(
            0, layer.window, layer.formula, layer.measured, layer.kept, layer.allocated
        )
        alike.setdefault(key, []).append(layer.layer)
    rows = []
    for one, layers in alike.items():
        sizes = (one.formula, one.measured, one.difference, one.kept, one.allocated)
        window = "–" if one.window is None else grouped(one.window)
        rows.append(
            [check.cache, grouped(check.context), _ranges(layers), window, *map(grouped, sizes)]
        )
    return rows


def _ranges(layers: list[int]) -> str:
    """`0-3,5`; many of them by their number."""
    parts: list[list[int]] = []
    for layer in layers:
        if parts and parts[-1][-1] == layer - 1:
            parts[-1].append(layer)
        else:
            parts.append([layer])
    if len(parts) > 4:
        return f"{len(layers)} of them"
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def _cache_notes(result: MeasuredResult, settings: Settings, width: int) -> list[Text]:
    notes = [*_apart_from_above(result, settings)]
    notes.append(
        "measured: keys and values that the newest token's attention is given; of a quantised "
        "cache, all that it keeps. kept: what it has for the next token. allocated: the memory in "
        "which that lies."
    )
    whole = [check for check in result.caches if check.cache not in QUANTISED]
    if any(layer.kept < layer.formula for check in whole for layer in check.layers):
        notes.append(
            "A layer that sees W tokens keeps W - 1 of them between steps in a dynamic cache: the "
            "newest comes on top, and the oldest is not seen again. So there kept is one token "
            "less than the formula, min(tokens, W), and measured is the formula."
        )
    filled = {check.cache for check in result.caches if check.layers}
    if "fp8" in filled:
        notes.append("fp8 has one float32 scale more for all keys, and one for all values.")
    if "int4" in filled:
        notes.append(
            "int4 has its scales in the model's number format where the formula has float16, and "
            "the newest tokens, up to 128, as they came."
        )
    return [line for note in notes for line in _dim(note, width)]


def _apart_from_above(result: MeasuredResult, settings: Settings) -> Iterator[str]:
    """Where what is weighed is not what the table above is about."""
    about = result.settings
    if about["cache_dtype"] != settings.kept.name:
        yield (
            f"Keys and values are {about['cache_dtype']} here, as the model was loaded; --dtype "
            "changes the table above, not what is measured."
        )
    weighed, above = set(about["cache_contexts"]), set(settings.contexts)
    if not weighed & above:
        yield f"Weighed at {_list(weighed)} tokens; the table above is for {_list(above)}."
    elif above - weighed:
        yield f"Not weighed, as too long: {_list(above - weighed)} tokens."


def _list(contexts: set[int]) -> str:
    return " and ".join(map(grouped, sorted(contexts)))


def _dim(words: str, width: int) -> list[Text]:
    return [Text(line, style="dim") for line in wrapped(words, width)]
