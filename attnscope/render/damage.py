"""Damage against memory as a figure: one line a method, from the model as it is to fewer heads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from attnscope.experiments.amounts import binary
from attnscope.experiments.compare_result import CompareResult
from attnscope.experiments.conversion_result import Conversion, ConversionResult
from attnscope.render.conversion import texts_read
from attnscope.render.sheet import LABEL_SIZE, Sheet, style, text_width

# Hues of label colours, of which any two can be told apart by colour-blind readers.
_HUES = {"mean": "#1D559F", "first": "#FC9107", "best-aligned": "#289149"}
_MARKS = {"mean": "o", "first": "s", "best-aligned": "D"}
_GREY, _GRID = "#606060", "#E4E4E4"
_LINE = 0.15  # at least this from one name to the next


def draw_damage(path: Path, result: CompareResult) -> None:
    """The loss of each converted model against its cache. Errors as those of `draw_head`."""
    found = result.conversion
    assert found is not None
    changed = [one for one in found.conversions if not one.exact]
    with style(path):
        left, bottom, width, height = 0.72, 0.92, 4.9, 3.1
        named = 0.14 + max(text_width(name, 8) for name in (*_HUES, "knows nothing"))
        sheet = Sheet(left + width + named + 0.1, bottom + height + 0.5)
        axes = sheet.axes(left, bottom, width, height)
        unchanged = [one for one in found.conversions if one.exact]
        chance = math.log(found.vocab_size)
        ends: list[tuple[float, str, str]] = []
        for method in dict.fromkeys(one.method for one in changed):
            line = _line(found, changed, method)
            look: dict[str, Any] = {"color": _HUES[method], "linewidth": 1.6, "markersize": 4}
            x = [math.log2(size) for size, _ in line]
            axes.plot(x, [loss for _, loss in line], marker=_MARKS[method], **look)
            _whiskers(axes, [one for one in changed if one.method == method], found.loss)
            ends.append((line[-1][1], method, _HUES[method]))
        if unchanged:
            x = [math.log2(one.kv_bytes_per_token) for one in unchanged]
            axes.plot(x, [one.loss for one in unchanged], "o-", color=_GREY, markersize=4)
        ends.append((found.loss, "as it is", _GREY))
        axes.axhline(found.loss, color=_GREY, linewidth=0.6, linestyle=(0, (1, 2)))
        _scale(axes, found)
        low, high = axes.get_ylim()
        if chance < high:
            axes.axhline(chance, color=_GREY, linewidth=0.6, linestyle=(0, (4, 2)))
            ends.append((chance, "knows nothing", _GREY))
        _name(sheet, ends, left + width + 0.08, bottom, height, (low, high))
        axis = f"KV cache of a token, {result.settings.kept.name}, log scale; key/value heads"
        sheet.name_axes((axis, "loss, nats a token"), left + width / 2, 0.44, bottom + height / 2)
        about = found.settings
        note = (
            f"untrained; {texts_read(about)}, {about['tokens']} tokens; bars: 95 % "
            "over texts of the difference"
        )
        title = sheet.titled(result.shapes[0].name, ", fewer key/value heads")
        sheet.write_ends(title, [note])
        sheet.save(path)


def _line(
    found: ConversionResult, changed: Sequence[Conversion], method: str
) -> list[tuple[int, float]]:
    """(bytes, loss) from the model as it is to the fewest heads."""
    own = [one for one in changed if one.method == method]
    per_head = own[0].kv_bytes_per_token // own[0].n_kv_heads
    start = [(per_head * found.n_kv_heads, found.loss)]
    return start + [(one.kv_bytes_per_token, one.loss) for one in own]


def _whiskers(axes: Axes, own: Sequence[Conversion], clean: float) -> None:
    for one in own:
        if one.low is not None and one.high is not None:
            x, ends = math.log2(one.kv_bytes_per_token), (clean + one.low, clean + one.high)
            axes.plot([x, x], ends, color=_HUES[one.method], linewidth=1)


def _scale(axes: Axes, found: ConversionResult) -> None:
    """Few heads on the right: to the right is less memory, upwards is more damage."""
    one = found.conversions[0]
    as_it_is = one.kv_bytes_per_token // one.n_kv_heads * found.n_kv_heads
    sizes = {one.kv_bytes_per_token: one.n_kv_heads for one in found.conversions}
    sizes[as_it_is] = found.n_kv_heads
    ticks = sorted(sizes, reverse=True)
    places = [math.log2(size) for size in ticks]
    names = [f"{binary(size)}\n{sizes[size]}" for size in ticks]
    axes.set_xticks(places, names, fontsize=LABEL_SIZE)
    margin = 0.06 * (max(places) - min(places)) or 0.5
    axes.set_xlim(max(places) + margin, min(places) - margin)
    axes.tick_params(labelsize=LABEL_SIZE, pad=4)
    axes.grid(color=_GRID, linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _name(
    sheet: Sheet,
    ends: Sequence[tuple[float, str, str]],
    left: float,
    bottom: float,
    height: float,
    limits: tuple[float, float],
) -> None:
    """The lines' names at their ends, each on a line of its own."""
    low, high = limits
    ceiling = bottom + height + _LINE
    for value, name, hue in sorted(ends, reverse=True):
        y = min(bottom + height * (value - low) / (high - low), ceiling)
        sheet.write(left, y, name, fontsize=8, color=hue, va="center")
        ceiling = y - _LINE
