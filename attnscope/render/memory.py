"""Memory as figures: the cache against the context for twins, bars for several models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from attnscope.errors import UsageError
from attnscope.experiments.amounts import binary, binary_unit, grouped
from attnscope.experiments.compare_result import CompareResult, CompareRow
from attnscope.experiments.memory import allocated_bytes, kv_bytes
from attnscope.models.shapes import AttentionShape
from attnscope.render.compare_notes import label, marked
from attnscope.render.sheet import LABEL_SIZE, Sheet, fitted, style, text_width

# Hues of label colours, of which any two can be told apart by colour-blind readers.
_HUES = {"MHA": "#1D559F", "GQA": "#289149", "MQA": "#F93213", "MLA": "#9E25D3"}
_GREENS = ("#289149", "#8EBB7F", "#5B6E54", "#A8A23C")
_GRID = "#E4E4E4"
_LINE = 0.15  # at least this from one name to the next
_SHORTEST = 1024  # tokens at the left edge, where the context asked for is longer


@dataclass(frozen=True)
class _Curve:
    name: str
    hue: str
    kept: list[int]
    reserved: list[int]

    @property
    def apart(self) -> bool:
        """Whether more is reserved than the eye can take for the same."""
        pairs = zip(self.kept, self.reserved, strict=True)
        return any(reserved > 1.05 * kept for kept, reserved in pairs)


def draw_compare(path: Path, result: CompareResult) -> None:
    """The figure of a result, as .png, .svg or .pdf. Errors as those of `draw_head`."""
    if not any(row.kv_bytes for row in result.rows):
        raise UsageError("There is nothing to draw: an encoder keeps no cache.")
    if len(result.shapes) == 1:
        _draw_curves(path, result)
    else:
        _draw_bars(path, result)


def _draw_curves(path: Path, result: CompareResult) -> None:
    """Bytes against context, both in powers of two; dashed where an engine reserves more."""
    shape = result.shapes[0]
    contexts = _contexts(max(result.settings.contexts))
    curves = _curves(result, contexts)
    with style(path):
        left, bottom, width, height = 0.95, 0.75, 5.2, 3.4
        named = 0.1 + max(text_width(curve.name, 8) for curve in curves)
        sheet = Sheet(left + width + named + 0.12, bottom + height + 0.5)
        axes = sheet.axes(left, bottom, width, height)
        x = _logs(contexts)
        for curve in curves:
            dot: dict[str, Any] = {"marker": "o", "markersize": 4, "clip_on": False}
            dot = dot if len(x) == 1 else {}
            axes.plot(x, _logs(curve.kept), color=curve.hue, linewidth=1.6, **dot)
            if curve.apart:
                look: dict[str, Any] = {"linewidth": 1, "linestyle": (0, (4, 2))}
                look |= {**dot, "markerfacecolor": "white"} if dot else {}
                axes.plot(x, _logs(curve.reserved), color=curve.hue, **look)
        _scale(axes, contexts, [size for c in curves for size in (*c.kept, *c.reserved)])
        low, high = axes.get_ylim()
        ends = [
            bottom + height * (math.log2(curve.kept[-1]) - low) / (high - low) for curve in curves
        ]
        for curve, y in zip(curves, _spread(ends, bottom + height), strict=True):
            at = left + width + 0.08
            sheet.write(at, y, curve.name, fontsize=8, color=curve.hue, va="center")
        names = ("tokens, log scale", "KV cache, log scale")
        sheet.name_axes(names, left + width / 2, 0.36, bottom + height / 2)
        page = grouped(result.settings.paging.page_size)
        drawn = "dashed" if len(x) > 1 else "open"
        notes = []
        if any(curve.name.endswith("*") for curve in curves):
            notes.append("*: the model as it is")
        if any(curve.apart for curve in curves):
            notes.append(f"{drawn}: what an engine reserves, in whole pages of {page} tokens")
        title = sheet.titled(shape.name, f", {_settings(result)}")
        sheet.write_ends(title, ["; ".join(notes)] if notes else [])
        sheet.save(path)


def _draw_bars(path: Path, result: CompareResult) -> None:
    """One bar a model at the longest context: what must be kept, and pale what is reserved."""
    context = max(result.settings.contexts)
    rows = [row for row in result.rows if row.context == context]
    with style(path):
        names = [_bar_name(row) for row in rows]
        left = 0.2 + max(text_width(name, 8) for name in names)
        pitch, width, bottom = 0.27, 4.6, 0.42
        height = pitch * len(rows)
        values = [_value(row) for row in rows]
        right = 0.15 + max(text_width(value, LABEL_SIZE) for value in values)
        sheet = Sheet(left + width + right, bottom + height + 0.45)
        axes = sheet.axes(left, bottom, width, height)
        top = max(row.kv_bytes_allocated for row in rows)
        for place, (row, name, value) in enumerate(zip(rows, names, values, strict=True)):
            y = len(rows) - 1 - place
            hue = _HUES[row.variant]
            axes.barh(y, row.kv_bytes_allocated / top, 0.62, color=hue, alpha=0.28, lw=0)
            axes.barh(y, row.kv_bytes / top, 0.62, color=hue, lw=0)
            up = bottom + pitch * (y + 0.5)
            sheet.write(left - 0.08, up, name, ha="right", va="center", fontsize=8)
            end = left + width * row.kv_bytes_allocated / top
            sheet.write(end + 0.06, up, value, va="center")
        axes.set(xlim=(0, 1), ylim=(-0.5, len(rows) - 0.5), xticks=[], yticks=[], frame_on=False)
        paler = any(row.kv_bytes_allocated > 1.05 * row.kv_bytes for row in rows)
        notes = ["pale: what an engine reserves beyond what must be kept"] if paler else []
        longest = " (the longest asked for)" if len(result.settings.contexts) > 1 else ""
        title = f"KV cache at {grouped(context)} tokens{longest}, {_settings(result)}"
        sheet.write_ends(title, notes)
        sheet.save(path)


def _bar_name(row: CompareRow) -> str:
    """The model, cut where it is long, and its kind, which never is."""
    return f"{fitted(row.model, 1.7, 8)}  {label(row)}"


def _value(row: CompareRow) -> str:
    if not row.kv_bytes:
        return "no cache"
    more = row.kv_bytes_allocated
    kept = binary(row.kv_bytes)
    return kept if more <= 1.05 * row.kv_bytes else f"{kept}, {binary(more)} reserved"


def _curves(result: CompareResult, contexts: Sequence[int]) -> list[_Curve]:
    shape, settings = result.shapes[0], result.settings
    curves: dict[str, _Curve] = {}
    greens = iter(_GREENS * 8)
    for row in result.rows:
        name = f"{label(row)} *" if marked(result, row) else label(row)
        if name in curves:
            continue
        variant: AttentionShape = shape if row.as_is else shape.twin(row.n_kv_heads or 1)
        hue = next(greens) if row.variant == "GQA" else _HUES[row.variant]
        asked = (settings.batch, settings.kept)
        kept = [kv_bytes(variant, context, *asked) for context in contexts]
        held = [allocated_bytes(variant, c, *asked, settings.paging) for c in contexts]
        curves[name] = _Curve(name, hue, kept, held)
    return [*curves.values()]


def _logs(numbers: Sequence[int]) -> list[float]:
    return [math.log2(number) for number in numbers]


def _contexts(longest: int) -> list[int]:
    """Powers of two up to the longest, and the longest."""
    first = min(_SHORTEST, longest)
    powers = [2**n for n in range(64) if first <= 2**n < longest]
    return sorted({first, *powers, longest})


def _scale(axes: Axes, contexts: Sequence[int], sizes: Sequence[int]) -> None:
    """Both axes in powers of two, with ticks that are round in binary units."""
    across = (math.log2(contexts[0]), math.log2(contexts[-1]))
    if len(contexts) == 1:
        across = (across[0] - 0.5, across[0] + 0.5)
    low, high = math.floor(math.log2(min(sizes))), math.ceil(math.log2(max(sizes)) + 0.1)
    axes.set(xlim=across, ylim=(low, max(high, low + 2)))
    ticks = _ticks(across[0], across[1], 8)
    axes.set_xticks(ticks, [_tokens(2**n) for n in ticks], fontsize=LABEL_SIZE)
    if len(contexts) == 1:
        axes.set_xticks([sum(across) / 2], [grouped(contexts[0])], fontsize=LABEL_SIZE)
    ticks = _ticks(low, max(high, low + 2), 9)
    axes.set_yticks(ticks, [_round(2**n) for n in ticks], fontsize=LABEL_SIZE)
    axes.tick_params(pad=4)
    axes.grid(color=_GRID, linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _ticks(low: float, high: float, most: int) -> list[int]:
    first, last = math.ceil(low - 1e-9), math.floor(high + 1e-9)
    step = max(-(-(last - first + 1) // most), 1)
    return list(range(first, last + 1, step))


def _tokens(context: int) -> str:
    """`32k`, `1M`, as they are typed."""
    for size, letter in ((1024**3, "G"), (1024**2, "M"), (1024, "k")):
        if context >= size:
            number = context // size
            return f"{number}{letter}" if number < 1024 else f"2^{number.bit_length() - 1} {letter}"
    return str(context)


def _round(n_bytes: int) -> str:
    """A power of two in its unit, without decimals."""
    unit = binary_unit(n_bytes)
    if not unit:
        return f"{n_bytes} B"
    number, name = n_bytes // 1024**unit, binary(1024**unit).split()[1]
    return f"{number} {name}" if number < 1024 else f"2^{number.bit_length() - 1} {name}"


def _spread(ends: Sequence[float], top: float) -> list[float]:
    """Heights for names: as near to their lines as leaves each a line of its own."""
    order = sorted(range(len(ends)), key=lambda at: -ends[at])
    placed: dict[int, float] = {}
    ceiling = top + _LINE / 2
    for at in order:
        placed[at] = min(ends[at], ceiling)
        ceiling = placed[at] - _LINE
    return [placed[at] for at in range(len(ends))]


def _settings(result: CompareResult) -> str:
    settings = result.settings
    return f"batch {grouped(settings.batch)}, {settings.kept.name}"
