"""What `attnscope compare` prints: bytes first, then arithmetic and what fits, then who shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.text import Text

from attnscope.experiments.amounts import binary, binary_unit, flops, grouped
from attnscope.experiments.compare_result import CompareResult, CompareRow
from attnscope.experiments.known import KnownShapes
from attnscope.plain import visible
from attnscope.render.compare_notes import heading, label, legend, marked, published, sharing
from attnscope.render.conversion import conversion_lines
from attnscope.render.measured import measured_lines
from attnscope.render.similarity import similarity_lines
from attnscope.render.table import Column, joined, lay_out

_Cell = Callable[[CompareRow], str]
_NONE = "–"


def compare_table(result: CompareResult, width: int, *, every: bool = False) -> Text:
    """One row for each variant; a second table has the rest, so that both fit 80 columns.

    What was measured on a loaded model follows the first; `every` shows all of its heads.
    """
    if result.parts:
        return joined(_measured(result, width, every))
    one = len(result.shapes) == 1
    lines = [*heading(result, width), Text()]
    lines += [*_table(result, _memory_columns(result), width), Text()]
    lines += [*_table(result, _work_columns(result), width), Text()]
    if one:
        lines += [*sharing(result, width), Text()]
    lines += legend(result, width)
    if one:
        lines += [Text(), *published(width)]
    return joined(lines)


def _measured(result: CompareResult, width: int, every: bool) -> list[Text]:
    lines = heading(result, width)
    if any(row.kv_bytes for row in result.rows):
        lines += [Text(), *_table(result, _memory_columns(result), width)]
    if result.measured is not None:
        lines += [Text(), *measured_lines(result.measured, result.settings, width)]
    if result.conversion is not None:
        lines += [Text(), *conversion_lines(result.conversion, width, every=every)]
    if result.similarity is not None:
        lines += [Text(), *similarity_lines(result.similarity, width)]
    return lines


def shapes_table(result: KnownShapes, width: int) -> Text:
    """The known models: what `--list` prints."""
    columns = (
        Column("model"),
        Column("kind"),
        Column("layers", right=True, keep=1),
        Column("heads", right=True, keep=2),
        Column("kv heads", right=True),
        Column("width", right=True, keep=3),
        Column("window", right=True, keep=4),
        Column("positions", right=True, keep=5),
    )
    rows = []
    for shape in result.shapes:
        kv_heads = _NONE if shape.latent is not None else str(shape.n_kv_heads)
        kind = shape.kind if shape.causal else "encoder"
        sizes = [str(shape.n_layers), str(shape.n_heads), kv_heads, str(shape.d_head)]
        more = [_number(shape.window), _number(shape.positions)]
        rows.append([Text(cell) for cell in (shape.name, kind, *sizes, *more)])
    return joined(lay_out(columns, rows, width))


def _table(
    result: CompareResult, columns: Sequence[tuple[Column, _Cell]], width: int
) -> list[Text]:
    leading: list[tuple[Column, _Cell]] = []
    if len(result.shapes) > 1:
        leading.append((Column("model"), lambda row: visible(row.model)))
    leading.append(
        (Column("variant"), lambda row: f"{label(row)} *" if marked(result, row) else label(row))
    )
    if len(result.settings.contexts) > 1:
        leading.append((Column("context", right=True), lambda row: grouped(row.context)))
    every = [*leading, *columns]
    rows = [
        [Text(cell(row), style="bold" if marked(result, row) else "") for _, cell in every]
        for row in result.rows
    ]
    return lay_out([column for column, _ in every], rows, width)


def _memory_columns(result: CompareResult) -> list[tuple[Column, _Cell]]:
    kept, paged = (
        _in_one_unit([getattr(row, name) for row in result.rows])
        for name in ("kv_bytes", "kv_bytes_allocated")
    )
    return [
        (Column("kv heads", right=True, keep=2), lambda row: _number(row.n_kv_heads)),
        (Column("per token", right=True, keep=3), lambda row: _cache(row.kv_bytes_per_token)),
        (Column("KV cache", right=True), lambda row: _cache(row.kv_bytes, kept)),
        (Column("in pages", right=True, keep=4), lambda row: _cache(row.kv_bytes_allocated, paged)),
        (Column("of MHA", right=True, keep=1), lambda row: _share(row.ratio_to_mha)),
        (Column("FLOP/byte", right=True, keep=5), lambda row: _ratio(row.decode_flops_per_byte)),
    ]


def _work_columns(result: CompareResult) -> list[tuple[Column, _Cell]]:
    attention = _in_one_unit([row.attention_bytes for row in result.rows])
    weights = _in_one_unit([row.weights_bytes or 0 for row in result.rows])
    return [
        (
            Column("attention", right=True, keep=2),
            lambda row: binary(row.attention_bytes, attention),
        ),
        (Column("weights", right=True, keep=4), lambda row: _size(row.weights_bytes, weights)),
        (Column("new token", right=True, keep=5), lambda row: flops(row.attention_flops_per_token)),
        (Column("prefill", right=True, keep=6), lambda row: flops(row.prefill_flops)),
        (Column("tokens fit", right=True, keep=1), lambda row: _most(row, row.longest_context)),
        (Column("texts fit", right=True, keep=3), lambda row: _most(row, row.largest_batch)),
    ]


def _in_one_unit(sizes: Sequence[int]) -> int | None:
    """The unit of the largest, if the smallest still shows in it: a column is read downwards."""
    held = [size for size in sizes if size]
    unit = binary_unit(max(held, default=0))
    return unit if held and 20 * min(held) >= 1024**unit else None


def _cache(n_bytes: int, unit: int | None = None) -> str:
    return binary(n_bytes, unit) if n_bytes else "no cache"


def _most(row: CompareRow, number: int | None) -> str:
    """What fits. Without a cache nothing limits it but activations; windows may not either."""
    if number is not None:
        return grouped(number)
    return "any" if row.kv_bytes else _NONE


def _number(number: int | None) -> str:
    return _NONE if number is None else grouped(number)


def _size(n_bytes: int | None, unit: int | None) -> str:
    return _NONE if n_bytes is None else binary(n_bytes, unit)


def _share(ratio: float | None) -> str:
    return _NONE if ratio is None else f"{_ratio(100 * ratio)} %"


def _ratio(number: float | None) -> str:
    if number is None:
        return _NONE
    return f"{number:.1f}".removesuffix(".0") if number >= 1 else f"{number:.2g}"
