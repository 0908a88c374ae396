"""Attention patterns in a terminal: one head with its tokens, or all heads of a layer in small.

Every line is measured in terminal cells (東 and 🤗 take two) and none is wider than asked.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from attnscope.plain import visible
from attnscope.render.palette import LABELS, color, pooled, scale_top
from attnscope.render.signs import HIDDEN, NUMBERS_FROM, Signs
from attnscope.types import Token

Weights = NDArray[np.floating]

_MAX_ROWS = 60  # queries shown before a text counts as too long for a terminal
_MAX_CELL = 7
_MAX_LEVELS = 8  # lines the slanted labels of the keys may take


@dataclass(frozen=True)
class _Plan:
    """Which queries and keys are shown, and how wide a cell is."""

    rows: NDArray[np.intp]
    keys: NDArray[np.intp]
    margin: int  # cells left of the first key: index and text of the query
    cell: int


def head_heatmap(
    weights: Weights,
    tokens: Sequence[Token],
    width: int,
    *,
    colour: bool,
    title: str = "",
    causal: bool,
    true_colour: bool = False,
    ascii_only: bool = False,
) -> Text:
    """One head's pattern (T, S), rows reading, columns being read; the legend comes last.

    `tokens` are the S keys; the queries are the last T of them. `colour` wants a terminal of
    256 colours, `true_colour` adds finer shades. What does not fit is left out, and a line says
    what and how much.
    """
    n_queries, n_keys = weights.shape
    texts = [_literal(token.text, ascii_only) for token in tokens]
    plan = _plan(weights, texts, width)
    top = scale_top(weights)
    signs = Signs(colour, true_colour, ascii_only)
    shown = _hidden_marked(weights, causal)[np.ix_(plan.rows, plan.keys)]

    heading = _cut(_literal(visible(title), ascii_only), width, ascii_only)
    lines = [Text(heading, style=signs.style("bold"))] if title else []
    down, across = ("v", ">") if ascii_only else ("↓", "→")
    lines.extend(_wrapped(f"query (reads) {down}   key (is read) {across}", width, signs))
    shortened = _key_labels(plan, texts, width, lines, signs)
    digits = len(str(n_keys - 1))
    room = plan.margin - digits - 2
    for row, cells in zip(plan.rows, shown, strict=True):
        token = n_keys - n_queries + int(row)
        text = _cut(texts[token], room, ascii_only)
        shortened |= text != texts[token]
        line = Text().append(f"{token:>{digits}} ", signs.style("dim"))
        line.append(set_cell_size(text, room) + " ")
        for weight in cells:
            line.append_text(signs.cell(float(weight), plan.cell, top))
        lines.append(line)
    lines.append(signs.legend(plan.cell, top))
    notes = []
    if causal and n_keys > 1:
        notes.append("empty: later words, invisible to a causal model")
    if shortened:
        notes.append(f"{signs.ellipsis} label shortened")
    lines.extend(_wrapped("; ".join(notes), width, signs))
    lines.extend(_wrapped(_left_out(plan, weights.shape), width, signs))
    return _joined(lines, width, signs)


def layer_grid(
    weights: Weights,
    tokens: Sequence[Token],
    width: int,
    *,
    colour: bool,
    labels: Sequence[str] | None = None,
    causal: bool = False,
    true_colour: bool = False,
    ascii_only: bool = False,
) -> Text:
    """All heads of a layer (H, T, S) as small maps side by side, number and label under each.

    A dot stands for one weight, or for the greatest of several where the text is long.
    """
    signs = Signs(colour, true_colour, ascii_only)
    top = scale_top(weights)
    shown = _hidden_marked(weights, causal)
    n_heads, n_queries, n_keys = weights.shape
    captions = [[str(head), *([labels[head]] if labels else [])] for head in range(n_heads)]
    per_row = min(max(width // 20, 1), 6)
    most = max(min((width + 2) // per_row - 2, width), 1)
    size = min(most, max(n_queries, n_keys))
    size = size * (most // size) if max(n_queries, n_keys) <= most else most
    panel = max(size, *(min(max(map(cell_len, lines)), most) for lines in captions))
    per_row = max((width + 2) // (panel + 2), 1)

    out: list[Text] = []
    for start in range(0, n_heads, per_row):
        heads = range(start, min(start + per_row, n_heads))
        maps = [signs.small_map(_resized(shown[head], size), top) for head in heads]
        out.extend(_beside([lines[n] for lines in maps], panel) for n in range(len(maps[0])))
        for n in range(len(captions[0])):
            cells = [_caption(captions[head][n], panel, signs) for head in heads]
            out.append(_beside(cells, panel))
        out.append(Text(""))
    out.append(signs.scale(top))
    note = f"rows: query (reads), columns: key (is read); {len(tokens)} tokens"
    if max(n_queries, n_keys) > size:
        note += f" pooled to {size} dots, each the greatest weight it covers"
    out.extend(_wrapped(note, width, signs))
    return _joined(out, width, signs)


def _hidden_marked(weights: Weights, causal: bool) -> Weights:
    if not causal:
        return weights
    n_queries, n_keys = weights.shape[-2:]
    hidden = np.triu(np.ones((n_queries, n_keys), dtype=bool), n_keys - n_queries + 1)
    return np.where(hidden, HIDDEN, weights)


def _plan(weights: Weights, texts: Sequence[str], width: int) -> _Plan:
    """The widest cells that fit; then shorter row labels; then fewer keys."""
    n_queries, n_keys = weights.shape
    longest = max(map(cell_len, texts))
    long, short = (
        len(str(n_keys - 1)) + 2 + min(longest, most) for most in (max(min(width // 5, 16), 1), 7)
    )
    rows = np.arange(max(0, n_queries - _MAX_ROWS), n_queries)
    keys = np.arange(n_keys)
    for cell, margin in [*((cell, long) for cell in range(_MAX_CELL, 0, -1)), (1, short)]:
        # The last label starts over the last key and wants room to end.
        tail = max(min(cell_len(texts[-1]), cell * _MAX_LEVELS - 1) - cell, 0)
        if margin + cell * n_keys + tail <= width:
            return _Plan(rows, keys, margin, cell)
    if short + n_keys <= width:
        return _Plan(rows, keys, short, 1)
    cell = 2 if width > long + 2 else 1
    tail = min(longest + len(str(n_keys)) + 1, cell * _MAX_LEVELS - 1, width // 6)
    most = max((width - long - tail) // cell, 1)
    received = weights[rows].sum(axis=0)  # (S,)
    keys = np.sort(np.argsort(-received, kind="stable")[:most])
    return _Plan(rows, keys, long, cell)


def _key_labels(
    plan: _Plan, texts: Sequence[str], width: int, lines: list[Text], signs: Signs
) -> bool:
    """Add the keys' labels as lines of steps, left to right and down; True if one was shortened.

    Label j starts over key j. It may run on over the keys after it, since their labels are on
    the lines below. When keys are missing between, each label says which it is.
    """
    some = len(plan.keys) < len(texts)
    prefixes = [f"{key} " if some else "" for key in plan.keys]
    longest = max(
        cell_len(prefix + texts[key]) for prefix, key in zip(prefixes, plan.keys, strict=True)
    )
    levels = min(_MAX_LEVELS, -(-(longest + 1) // plan.cell), len(plan.keys))
    steps = [""] * levels
    shortened = False
    indent = plan.margin + (plan.cell >= NUMBERS_FROM)
    for place, (prefix, key) in enumerate(zip(prefixes, plan.keys, strict=True)):
        label = prefix + texts[key]
        start = indent + place * plan.cell
        text = _cut(label, min(levels * plan.cell - 1, width - start), signs.ascii_only)
        shortened |= text != label
        if text != label and len(text) <= len(prefix) + 1:
            continue  # at the right edge: a lone "…", or half a number
        steps[place % levels] = set_cell_size(steps[place % levels], start) + text
    lines.extend(Text(step) for step in steps)
    return shortened


def _left_out(plan: _Plan, shape: tuple[int, ...]) -> str:
    n_queries, n_keys = shape
    parts = []
    if len(plan.keys) < n_keys:
        parts.append(f"the {len(plan.keys)} of {n_keys} keys read most")
    if len(plan.rows) < n_queries:
        parts.append(f"last {len(plan.rows)} of {n_queries} queries")
    return f"showing {', '.join(parts)}; --heatmap has all" if parts else ""


def _resized(weights: Weights, size: int) -> Weights:
    """Pooled to `size`, or each weight repeated up to it."""
    small = pooled(weights, size, size)
    times = max(size // max(small.shape), 1)
    return small.repeat(times, axis=0).repeat(times, axis=1)


def _caption(text: str, width: int, signs: Signs) -> Text:
    label = text.split(",")[0]
    hue = color(label) if label in LABELS else "bold"
    return Text(_cut(_literal(text, signs.ascii_only), width, signs.ascii_only), signs.style(hue))


def _beside(cells: Sequence[Text], width: int) -> Text:
    line = Text()
    for place, cell in enumerate(cells):
        line.append_text(cell)
        if place < len(cells) - 1:
            line.append(" " * (width - cell.cell_len + 2))
    return line


def _joined(lines: Sequence[Text], width: int, signs: Signs) -> Text:
    for line in lines:
        if line.cell_len > width:
            line.truncate(width - 1)
            line.append(signs.ellipsis)
        if not line.spans:
            line.rstrip()
    text = Text("\n").join(lines)
    text.no_wrap = True
    return text


def _wrapped(note: str, width: int, signs: Signs) -> list[Text]:
    return [Text(line, signs.style("dim")) for line in textwrap.wrap(note, width)]


def _literal(text: str, ascii_only: bool) -> str:
    # Terminals disagree on how wide a variation selector makes the character before it.
    text = text.replace("\ufe0f", "")
    if not ascii_only:
        return text
    return text.replace("·", "_").encode("ascii", "backslashreplace").decode()


def _cut(text: str, cells: int, ascii_only: bool) -> str:
    if cell_len(text) <= cells:
        return text
    return set_cell_size(text, cells - 1).rstrip() + ("~" if ascii_only else "…")
