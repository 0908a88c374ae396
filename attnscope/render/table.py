"""Tables that fit: columns as wide as they need, dropped (and said so) when the terminal is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

GAP = 2
INDENT = 2


@dataclass(frozen=True)
class Column:
    """One column. `keep` says how early it is dropped in a narrow terminal: 0 never, 9 first."""

    title: str
    right: bool = False
    keep: int = 0


def fits(columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int) -> bool:
    """Is there room for all columns?"""
    return _total(_widths(columns, rows), range(len(columns))) <= width


def lay_out(columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int) -> list[Text]:
    """The table's lines, none cut: a column that does not fit is left out, and a note says which.

    A column that may never go makes the lines longer than `width` rather than losing a number.
    """
    widths = _widths(columns, rows)
    shown = list(range(len(columns)))
    while _total(widths, shown) > width:
        droppable = [at for at in shown if columns[at].keep]
        if not droppable:
            break
        shown.remove(max(droppable, key=lambda at: columns[at].keep))
    lines = [_line([Text(c.title, style="dim") for c in columns], columns, widths, shown)]
    lines += [_line(row, columns, widths, shown) for row in rows]
    gone = [column.title for at, column in enumerate(columns) if at not in shown]
    if gone:
        note = f"no room for: {', '.join(gone)} (COLUMNS={_total(widths, range(len(columns)))})"
        lines += [Text(line, style="dim") for line in wrapped(note, width)]
    return lines


def wrapped(words: str, width: int, first: int = 0, rest: int = 0) -> list[str]:
    """Words in lines of at most `width` cells; later lines are indented by `rest`."""
    lines: list[str] = []
    line, indent = " " * first, first
    for word in words.split(" "):
        if cell_len(line) > indent and cell_len(line) + 1 + cell_len(word) > width:
            lines.append(line.rstrip())
            line, indent = " " * rest, rest
        line += word if cell_len(line) == indent else f" {word}"
    return [*lines, line]


def joined(lines: Sequence[Text]) -> Text:
    """Lines as one text that is never wrapped again."""
    text = Text("\n").join(lines)
    text.no_wrap, text.overflow = True, "ignore"
    return text


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> list[int]:
    return [
        max([cell_len(column.title), *(row[at].cell_len for row in rows)])
        for at, column in enumerate(columns)
    ]


def _total(widths: Sequence[int], shown: Sequence[int]) -> int:
    return INDENT + sum(widths[at] for at in shown) + GAP * (len(shown) - 1)


def _line(
    cells: Sequence[Text], columns: Sequence[Column], widths: Sequence[int], shown: Sequence[int]
) -> Text:
    line = Text(" " * INDENT)
    for n, at in enumerate(shown):
        pad = " " * (widths[at] - cells[at].cell_len)
        if n:
            line.append(" " * GAP)
        if columns[at].right:
            line.append(pad)
        line.append_text(cells[at])
        if not columns[at].right and n < len(shown) - 1:
            line.append(pad)
    return line
