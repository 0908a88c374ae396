"""The signs that stand for weights in a terminal: shades, numbers, ramps, and their legend."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.color import Color
from rich.style import Style
from rich.text import Text

from attnscope.render.palette import ink, shade, shade_256

NUMBERS_FROM = 3  # a cell this wide holds a weight in hundredths
_RAMP = "·░▒▓█"
_ASCII_RAMP = ".:+*#"
HIDDEN = -1.0  # stands for a weight that cannot be, since the key is not visible
_RAMP_FROM = (0.05, 0.25, 0.5, 0.75)  # of the scale's top


@dataclass(frozen=True)
class Signs:
    """How weights and words are drawn on this terminal."""

    colour: bool
    true_colour: bool
    ascii_only: bool

    @property
    def ellipsis(self) -> str:
        """What ends a text that was cut."""
        return "~" if self.ascii_only else "…"

    @property
    def ramp(self) -> str:
        """The signs without colour, from the least weight to the greatest."""
        return _ASCII_RAMP if self.ascii_only else _RAMP

    def style(self, style: str) -> str:
        """The style, or none without colour."""
        return style if self.colour else ""

    def paint(self, weight: float, top: float) -> Color | None:
        """The weight's colour, None for a hidden one."""
        if weight == HIDDEN:
            return None
        if self.true_colour:
            return Color.parse(shade(weight, top))
        return Color.from_ansi(shade_256(weight, top))

    def painted(self, text: str, weight: float, top: float) -> Text:
        """The text on the weight's colour."""
        letters = Color.parse(ink(shade(weight, top)))
        return Text(text, Style(color=letters, bgcolor=self.paint(weight, top)))

    def cell(self, weight: float, width: int, top: float) -> Text:
        """One weight, `width` cells wide."""
        if weight == HIDDEN:
            return Text(" " * width)
        hundredths = round(100 * weight)
        if width >= NUMBERS_FROM:
            nothing = "" if self.colour else self.ramp[0]
            text = f"{hundredths or nothing:>3}".ljust(width)
        elif self.colour:
            text = " " * width
        else:
            sign = self.step(weight, top)
            text = sign.ljust(width) if sign == self.ramp[0] else sign * width
        return self.painted(text, weight, top) if self.colour else Text(text)

    def step(self, weight: float, top: float) -> str:
        """The weight's sign in the ramp."""
        if weight == HIDDEN:
            return " "
        return self.ramp[sum(weight / top >= start for start in _RAMP_FROM)]

    def small_map(self, weights: NDArray[np.floating], top: float) -> list[Text]:
        """Two rows of weights a line: half blocks in colour, else the greater of both."""
        lines = []
        for row in range(0, weights.shape[0], 2):
            pair = weights[row : row + 2]
            if not self.colour:
                lines.append(Text("".join(self.step(float(w), top) for w in pair.max(axis=0))))
                continue
            line = Text()
            for column in pair.T:
                upper, lower = (self.paint(float(w), top) for w in (*column, HIDDEN)[:2])
                if upper is None:
                    line.append("▄" if lower else " ", Style(color=lower))
                else:
                    line.append("▀", Style(color=upper, bgcolor=lower))
            lines.append(line)
        return lines

    def legend(self, cell: int, top: float) -> Text:
        """What cells of this width show."""
        if cell < NUMBERS_FROM:
            return self.scale(top)
        if self.colour:
            return Text("number: weight in hundredths   shade: ").append_text(self.scale(top))
        return Text(f"weight in hundredths; {self.ramp[0]} rounds to 0")

    def scale(self, top: float) -> Text:
        """The shades or the ramp, with their weights."""
        more = "" if top == 1 else " and more"
        line = Text()
        if self.colour:
            line.append("0 ")
            for step in range(11):
                line.append_text(self.painted(" ", step / 10, 1.0))
            return line.append(f" {_number(top)}{more}")
        line.append(f"{self.ramp[0]} 0")
        for sign, start in zip(self.ramp[1:], _RAMP_FROM, strict=True):
            line.append(f"  {sign} {_number(start * top)}")
        return line.append(" and more")


def _number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".").removeprefix("0") or "0"
