"""Attention as figures in files: one head, a layer of heads, the layer × head map of labels.

Sizes are inches, worked out before anything is drawn, so that labels cannot overlap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from numpy.typing import NDArray

from attnscope.render import palette
from attnscope.render.palette import LABELS, UNCLASSIFIED
from attnscope.render.sheet import (
    COLOURS,
    DPI,
    LABEL_SIZE,
    NOTE,
    Sheet,
    fitted,
    label_code,
    style,
    text_width,
    word,
)
from attnscope.types import Token

Weights = NDArray[np.floating]

_PITCH = 0.125  # at least this from one label to the next
_CODED = 0.19  # a cell this wide holds two letters: colour is not the only sign
_GRID_UP_TO = 40  # tokens
_AXES = ("key (is read)", "query (reads)")


def draw_head(path: Path, weights: Weights, tokens: Sequence[Token], *, title: str = "") -> None:
    """One head's pattern (T, S) with its tokens, as .png, .svg or .pdf.

    `tokens` are the S keys; the queries are the last T of them. Raises UsageError for another
    ending, RunError when the file cannot be written.
    """
    with style(path):
        height, width = (_side(length) for length in weights.shape)
        words = [word(token.text) for token in tokens]
        named = _named(words, weights.shape, width, height)
        margin = _margin(named)
        notes = _notes(named, weights.shape, width, height)
        low = margin + NOTE * len(notes)
        sheet = Sheet(margin + width + 0.8, low + height + (0.4 if title else 0.12))
        axes = sheet.axes(margin, low, width, height)
        top = palette.scale_top(weights)
        _draw_pattern(axes, weights, top, width, height)
        _name_keys(axes, words, width)
        _name_queries(axes, words[-weights.shape[0] :], height)
        sheet.name_axes(_AXES, margin + width / 2, low - margin + 0.08, low + height / 2)
        sheet.colour_bar(margin + width + 0.15, low, height, top)
        sheet.write_ends(title, notes)
        sheet.save(path)


def draw_layer(
    path: Path,
    weights: Weights,
    tokens: Sequence[Token],
    *,
    names: Sequence[str],
    labels: Sequence[str] | None = None,
) -> None:
    """All heads of a layer (H, T, S) on one scale, name and label over each; see `draw_head`."""
    with style(path):
        n_heads, n_queries, _ = weights.shape
        columns = _columns(n_heads)
        lines = -(-n_heads // columns)
        side = min(max(11 / columns, 0.9), 2.1)
        words = [word(token.text) for token in tokens]
        named = _named(words, weights.shape[1:], side, side)
        margin = _margin(named)
        notes = _notes(named, weights.shape[1:], side, side)
        low = margin + NOTE * len(notes)
        across, up = side + 0.15, side + (0.4 if labels else 0.28)
        right, high = margin + columns * across, low + lines * up
        sheet = Sheet(right + 0.65, high + 0.02)
        top = palette.scale_top(weights)
        for head in range(n_heads):
            line, column = divmod(head, columns)
            left, bottom = margin + column * across, high - line * up - up
            axes = sheet.axes(left, bottom, side, side)
            _draw_pattern(axes, weights[head], top, side, side)
            # Tokens are named once: below the lowest head of a column, left of the first.
            _name_keys(axes, words if head + columns >= n_heads else [], side)
            _name_queries(axes, words[-n_queries:] if column == 0 else [], side)
            captions = [(names[head], "black")]
            captions += [(labels[head], _hue(labels[head]))] if labels else []
            for place, (text, hue) in enumerate(reversed(captions)):
                y = bottom + side + 0.05 + 0.13 * place
                sheet.write(left, y, fitted(text, side), color=hue)
        sheet.name_axes(_AXES, (margin + right) / 2, low - margin + 0.08, (low + high) / 2)
        sheet.colour_bar(right, high - up, side, top)
        sheet.write_ends("", notes)
        sheet.save(path)


def draw_head_map(
    path: Path, labels: Sequence[Sequence[Sequence[str]]], scores: Weights, *, title: str = ""
) -> None:
    """What every head does: `labels[layer][head]` as colour, `scores` (L, H) as saturation.

    A head with several labels is striped, one without is pale grey. Errors as `draw_head`.
    """
    with style(path):
        n_layers, n_heads = scores.shape
        cell = min(max(8.6 / max(n_layers, n_heads), 0.105), 0.42)
        stripes = [[list(held) or [UNCLASSIFIED] for held in row] for row in labels]
        counts = Counter(label for row in stripes for held in row for label in held)
        left, width, height = 0.55, n_heads * cell, n_layers * cell
        high = max(height + 0.5, 0.18 * len(counts) + 0.55)
        sheet = Sheet(left + width + 1.85, high + (0.4 if title else 0.12))
        axes = sheet.axes(left, high - height, width, height)
        _draw_cells(axes, stripes, scores, cell)
        names, bottom = ("head", "layer"), high - height - 0.36
        sheet.name_axes(names, left + width / 2, bottom, high - height / 2)
        sheet.label_legend(left + width + 0.25, high, counts, coded=cell >= _CODED)
        sheet.write_ends(title, [])
        sheet.save(path)


def _draw_pattern(axes: Axes, weights: Weights, top: float, width: float, height: float) -> None:
    n_queries, n_keys = weights.shape
    axes.imshow(
        palette.pooled(weights, _most(height), _most(width)),
        cmap=COLOURS,
        vmin=0,
        vmax=top,
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, n_keys - 0.5, n_queries - 0.5, -0.5),
    )
    if max(n_queries, n_keys) <= _GRID_UP_TO:
        upright = [[(at - 0.5, -0.5), (at - 0.5, n_queries - 0.5)] for at in range(1, n_keys)]
        level = [[(-0.5, at - 0.5), (n_keys - 0.5, at - 0.5)] for at in range(1, n_queries)]
        grid = LineCollection([*upright, *level], colors="#E4E4E4", linewidths=0.4)
        axes.add_collection(grid, autolim=False)


def _name_keys(axes: Axes, words: Sequence[str], width: float) -> None:
    shown = range(0, len(words), _step(len(words), width))
    look: dict[str, Any] = {"rotation": 90, "rotation_mode": "anchor", "va": "center"}
    axes.set_xticks(shown, [words[key] for key in shown], fontsize=LABEL_SIZE, ha="right", **look)


def _name_queries(axes: Axes, words: Sequence[str], height: float) -> None:
    shown = range(0, len(words), _step(len(words), height))
    axes.set_yticks(shown, [words[query] for query in shown], fontsize=LABEL_SIZE)


def _draw_cells(
    axes: Axes, stripes: Sequence[Sequence[Sequence[str]]], scores: Weights, cell: float
) -> None:
    corners: list[list[tuple[float, float]]] = []
    colours = []
    for (layer, head), score in np.ndenumerate(np.nan_to_num(scores)):
        held = stripes[layer][head]
        wide = 1 / len(held)
        for place, label in enumerate(held):
            left, right = head + place * wide, head + (place + 1) * wide
            corners.append([(left, layer), (right, layer), (right, layer + 1), (left, layer + 1)])
            colours.append(palette.faded(label, float(score)))
            if cell * wide >= _CODED and label != UNCLASSIFIED:
                look: dict[str, Any] = {"fontsize": 19 * cell * wide**0.5, "ha": "center"}
                ink = palette.ink(colours[-1])
                code = label_code(label)
                axes.text(left + wide / 2, layer + 0.48, code, va="center", color=ink, **look)
    cells = PolyCollection(corners, facecolors=colours, edgecolors="white", linewidths=0.6)
    axes.add_collection(cells)
    n_layers, n_heads = scores.shape
    axes.set(xlim=(0, n_heads), ylim=(0, n_layers), frame_on=False)  # layer 0 at the bottom
    for axis, length in ((axes.xaxis, n_heads), (axes.yaxis, n_layers)):
        step = next(step for step in (1, 2, 4, 8) if step * cell >= 0.2)
        shown = range(0, length, step)
        axis.set_ticks([at + 0.5 for at in shown], [str(at) for at in shown], fontsize=LABEL_SIZE)


def _named(words: Sequence[str], shape: tuple[int, ...], width: float, height: float) -> list[str]:
    """The labels that there is room for, of the keys and of the queries."""
    queries = words[-shape[0] :]
    return [*words[:: _step(len(words), width)], *queries[:: _step(len(queries), height)]]


def _notes(named: Sequence[str], shape: tuple[int, ...], width: float, height: float) -> list[str]:
    """The small print: what the picture leaves out."""
    n_queries, n_keys = shape
    notes = []
    down, across = _step(n_queries, height), _step(n_keys, width)
    if max(down, across) > 1:
        what = f"token in {down}" if down == across else f"query in {down} and one key in {across}"
        notes.append(f"one {what} is named")
    rows, columns = min(n_queries, _most(height)), min(n_keys, _most(width))
    if (rows, columns) != (n_queries, n_keys):
        notes.append(
            f"{n_queries} × {n_keys} weights as {rows} × {columns} dots, each the greatest"
        )
    if any(word.endswith("…") for word in named):
        notes.append("… label shortened")
    return notes


def _side(length: int) -> float:
    """How long an axis of so many tokens is: each can be named up to 72, then they are thinned."""
    return max(min(0.34 * length, max(6.4, min(_PITCH * length, 9.0))), min(0.5 * length, 2.0), 1.0)


def _step(length: int, side: float) -> int:
    return max(int(np.ceil(_PITCH * length / side - 1e-9)), 1)


def _most(side: float) -> int:
    """How many tokens an axis can show, each on a pixel of its own."""
    return int(side * DPI * 0.9)


def _columns(n_heads: int) -> int:
    """As square as it goes with the fewest empty places, rather wide than high."""
    square = int(np.ceil(np.sqrt(n_heads)))
    return min(range(square, square + 3), key=lambda columns: (-n_heads % columns, columns))


def _margin(named: Sequence[str]) -> float:
    """Room for the longest label and the axis's name."""
    return max(map(text_width, named)) + 0.36


def _hue(label: str) -> str:
    first = label.split(",")[0]
    return palette.color(first) if first in LABELS else "black"
