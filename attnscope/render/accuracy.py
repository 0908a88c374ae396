"""How often each head is right, as a figure: a dot and its interval a head, a line a simple rule.

Sizes are inches, worked out before anything is drawn, so that names cannot overlap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnscope.render.palette import color
from attnscope.render.sheet import NOTE, Sheet, style, text_width

MOST = 30  # heads with a line of their own
_LINE = 0.17  # from one head to the next
_WIDTH = 4.6
_RULE = 0.16  # from one rule's name to the next
_CHANCE = "chance"


@dataclass(frozen=True)
class Mark:
    """One head: its name, label, share of right answers and the bounds of that."""

    name: str
    label: str
    share: float
    low: float | None
    high: float | None


def draw_accuracies(
    path: Path, marks: Sequence[Mark], rules: Mapping[str, float], *, title: str = ""
) -> None:
    """Heads (best first) with their intervals, and what simple rules score, as lines across.

    Raises UsageError for an ending that is not .png, .svg or .pdf, RunError when the file cannot
    be written.
    """
    with style(path):
        shown, rest = marks[:MOST], marks[MOST:]
        lines = sorted({**rules, _CHANCE: 0.5}.items(), key=lambda pair: pair[1])
        margin = max(text_width(mark.name) for mark in shown) + 0.3
        height = _LINE * (len(shown) + 1)
        over = _RULE * len(lines) + 0.1
        notes = ["a line: 95 % interval over texts"]
        if any(mark.label == "coreference" for mark in shown):
            notes[0] += "; violet: a coreference head"
        if rest:
            least, most = min(one.share for one in rest), max(one.share for one in rest)
            notes.append(f"{len(rest)} more heads lie between {least:.2f} and {most:.2f}")
        low = 0.5 + NOTE * len(notes)
        sheet = Sheet(margin + _WIDTH + 0.25, low + height + over + (0.4 if title else 0.12))
        axes = sheet.axes(margin, low, _WIDTH, height)
        ends = [x for mark in shown for x in (mark.low, mark.high, mark.share) if x is not None]
        left = math.floor(10 * min(*ends, *(x for _, x in lines))) / 10
        right = min(math.ceil(10 * max(*ends, *(x for _, x in lines))) / 10 + 0.02, 1.02)
        axes.set(xlim=(left, right), ylim=(len(shown) - 0.3, -0.9))
        axes.spines[["top", "right", "left"]].set_visible(False)
        for n, mark in enumerate(shown):
            hue = color(mark.label)
            if mark.low is not None and mark.high is not None:
                axes.plot([mark.low, mark.high], [n, n], color=hue, lw=1.6, alpha=0.55)
            axes.plot([mark.share], [n], "o", color=hue, ms=4)
        axes.set_yticks(range(len(shown)), [mark.name for mark in shown], fontsize=7)
        for n, (name, x) in enumerate(lines):
            axes.axvline(x, color="#404040", lw=0.8, ls=":" if name == _CHANCE else "-", zorder=0)
            at = margin + _WIDTH * (x - left) / (right - left)
            top = low + height + 0.04 + _RULE * (len(lines) - 1 - n)
            sheet.page.plot([at, at], [low + height, top + 0.06], color="#404040", lw=0.5)
            words = f"{name} {x:.3f}".replace(" 0.", " .")
            fits = at + 0.1 + text_width(words) < sheet.width
            sheet.write(at + (0.05 if fits else -0.05), top, words, ha="left" if fits else "right")
        sheet.name_axes(
            ("share of pronouns whose antecedent gets more than its rival", "head"),
            margin + _WIDTH / 2, low - 0.42, low + height / 2,
        )  # fmt: skip
        sheet.write_ends(title, notes)
        sheet.save(path)
