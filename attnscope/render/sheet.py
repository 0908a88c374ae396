"""A figure's page: places in inches, fonts, how wide a text will be, and the file it becomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from attnscope.errors import UsageError
from attnscope.files import write_atomic
from attnscope.plain import visible
from attnscope.render import palette
from attnscope.render.palette import UNCLASSIFIED

# What a file's ending asks for, and the dates to leave out: the same input gives the same file.
_FORMATS: dict[str, dict[str, Any]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
# Whatever the user's own matplotlibrc says. Text is never read as mathematics: tokens hold "$".
_STYLE: dict[Any, Any] = {
    "text.parse_math": False,
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "axes.linewidth": 0.5,
    "axes.edgecolor": "#808080",
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "svg.fonttype": "none",
    "svg.hashsalt": "attnscope",
    "pdf.fonttype": 42,
}
# Outline fonts with signs that DejaVu Sans lacks, used where one happens to be installed.
_FALLBACKS = (
    *("Noto Sans CJK JP", "Noto Sans CJK SC", "WenQuanYi Zen Hei", "Hiragino Sans", "PingFang SC"),
    *("Apple SD Gothic Neo", "Yu Gothic", "Microsoft YaHei", "Malgun Gothic", "Arial Unicode MS"),
    *("Segoe UI Symbol", "Noto Emoji", "Symbola"),
)
COLOURS = ListedColormap(palette.SHADES)
DPI = 160
LABEL_SIZE = 7  # points
NOTE = 0.16  # a line of small print
_LONGEST = 18  # characters of a token's label


class Sheet:
    """A white page measured in inches from its lower left corner."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self.figure = Figure((width, height), dpi=DPI)
        FigureCanvasAgg(self.figure)
        self.page = self.axes(0, 0, width, height)
        self.page.set(xlim=(0, width), ylim=(0, height))
        self.page.axis("off")

    def axes(self, left: float, bottom: float, width: float, height: float) -> Axes:
        """Axes at this place on the page."""
        across, up = self.width, self.height
        return self.figure.add_axes((left / across, bottom / up, width / across, height / up))

    def write(self, x: float, y: float, text: str, **look: Any) -> None:
        """A text that starts at (x, y); `look` is matplotlib's."""
        self.page.text(x, y, text, **{"fontsize": LABEL_SIZE, **look})

    def name_axes(self, names: tuple[str, str], x: float, bottom: float, y: float) -> None:
        """The names of both axes: the first along the bottom, the second up the left edge."""
        self.write(x, bottom, names[0], ha="center", fontsize=8)
        look = {"rotation": 90, "rotation_mode": "anchor", "va": "top", "fontsize": 8}
        self.write(0.08, y, names[1], ha="center", **look)

    def write_ends(self, title: str, notes: Sequence[str]) -> None:
        """The title above everything, the small print below."""
        if title:
            text = fitted(title, self.width - 0.2, 9, end=True)
            self.write(0.1, self.height - 0.24, text, fontsize=9)
        for line, note in enumerate(reversed(notes)):
            self.write(0.1, 0.07 + NOTE * line, note, fontsize=6.5, color="#606060")

    def titled(self, name: str, about: str) -> str:
        """A title whose end is never cut: the name is, where both do not fit."""
        return fitted(name, self.width - 0.3 - text_width(about, 9), 9, end=True) + about

    def colour_bar(self, left: float, bottom: float, height: float, top: float) -> None:
        """The scale of the weights, from 0 up to `top`."""
        axes = self.axes(left, bottom, 0.12, height)
        axes.imshow(np.linspace(0, 1, 256)[:, None], cmap=COLOURS, aspect="auto", origin="lower")
        parts = 5 if height >= 1 else 2
        numbers = [_number(number) for number in np.linspace(0, top, parts)]
        numbers[-1] += "" if top == 1 else "+"
        axes.set_xticks([])
        axes.set_yticks(np.linspace(0, 255, parts), numbers, fontsize=LABEL_SIZE)
        axes.yaxis.tick_right()
        self.write(left, bottom - 0.18, "weight")

    def label_legend(self, left: float, top: float, counts: Counter[str], *, coded: bool) -> None:
        """The labels that occur with their counts, and what the saturation says."""
        occurring = palette.in_order(counts)
        for line, label in enumerate(occurring):
            y = top - 0.18 * line - 0.14
            self.swatch(left, y, palette.faded(label, 1), label_code(label) if coded else "")
            self.write(left + 0.3, y + 0.03, label)
            self.write(left + 1.5, y + 0.03, str(counts[label]), ha="right")
        if occurring == [UNCLASSIFIED]:
            return
        y = top - 0.18 * len(occurring) - 0.3
        self.write(left, y + 0.03, "score")
        for step in range(5):
            x = left + 0.4 + 0.22 * step
            self.swatch(x, y, palette.faded(occurring[0], step / 4), "")
            self.write(x + 0.11, y - 0.12, _number(step / 4), ha="center")

    def swatch(self, x: float, y: float, colour: str, code: str) -> None:
        """A patch of colour with a code on it."""
        right, high = x + 0.22, y + 0.14
        self.page.fill([x, right, right, x], [y, y, high, high], colour, lw=0)
        self.write(x + 0.11, y + 0.035, code, ha="center", fontsize=6, color=palette.ink(colour))

    def save(self, path: Path) -> None:
        """Write the page in the format that the path's ending names."""
        ending = path.suffix.lower()
        look: dict[str, Any] = {"format": ending[1:], "dpi": DPI, "metadata": _FORMATS[ending]}
        write_atomic(path, lambda scratch: self.figure.savefig(scratch, **look))


@contextmanager
def style(path: Path) -> Iterator[None]:
    """Our look, whatever the user's own; UsageError for an ending that cannot be drawn."""
    if path.suffix.lower() not in _FORMATS:
        raise UsageError(
            f"Cannot draw {visible(str(path))!r}: let the name end in .png, .svg or .pdf."
        )
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        families = ["DejaVu Sans", *_fallbacks(), "sans-serif"]
        matplotlib.rcParams.update({**_STYLE, "font.family": families})
        yield


def label_code(label: str) -> str:
    """The two letters that stand for a label in a cell of the map."""
    return label[:2]


@lru_cache(maxsize=4096)
def text_width(text: str, size: float = LABEL_SIZE) -> float:
    """How wide the text will be, in inches."""
    figure = Figure((1, 1), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure.text(0, 0, text, fontsize=size).get_window_extent().width / DPI


def fitted(text: str, width: float, size: float = LABEL_SIZE, *, end: bool = False) -> str:
    """The text, cut to so many inches; with `end` its end is kept, which tells most of a path."""
    text = _drawable(visible(text))
    text = text[-200:] if end else text[:200]
    if text_width(text, size) <= width:
        return text

    def part(n: int) -> str:
        return "…" + text[len(text) - n :].lstrip() if end else text[:n].rstrip() + "…"

    cut = next((n for n in range(1, len(text)) if text_width(part(n), size) > width), len(text))
    return part(max(cut - 1, 0))


def word(text: str) -> str:
    """A token's label: drawable, and not too long."""
    text = _drawable(text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1].rstrip() + "…"


def _drawable(text: str) -> str:
    """What no font at hand can draw is written as U+6771."""
    drawn, escaped = "", False
    for sign in text:
        known = ord(sign) in _known_signs()
        apart = drawn and drawn[-1] not in "· " and (escaped or not known)
        drawn += (" " if apart else "") + (sign if known else f"U+{ord(sign):04X}")
        escaped = not known
    return drawn


@lru_cache
def _fallbacks() -> tuple[str, ...]:
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return tuple(name for name in _FALLBACKS if name in installed)


@lru_cache
def _known_signs() -> frozenset[int]:
    """The characters that our fonts together can draw."""
    fonts = [font_manager.findfont(name) for name in ("DejaVu Sans", *_fallbacks())]
    return frozenset(code for font in fonts for code in font_manager.get_font(font).get_charmap())


def _number(value: float) -> str:
    return f"{value:.3g}".removeprefix("0") or "0"
