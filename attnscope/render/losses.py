"""Loss at each position of repeated random tokens, as a figure: where the model starts to copy."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from attnscope.experiments.induction_result import InductionResult
from attnscope.plain import visible
from attnscope.render.palette import color
from attnscope.render.sheet import LABEL_SIZE, Sheet, style

WIDTH, HEIGHT = 6.4, 2.8  # inches
_LEFT, _BOTTOM = 0.55, 0.5


def draw_losses(path: Path, result: InductionResult) -> None:
    """One line for the texts that repeat, a grey one for those that do not.

    Raises UsageError for an ending other than .png, .svg or .pdf.
    """
    run = result.first
    length, repeats = run.stimulus.length, run.stimulus.repeats
    lines = (
        (run.loss.by_position_unrepeated, "#9A9A9A", "without repeat"),
        (run.loss.by_position, color("induction"), f"said {repeats} times"),
    )
    with style(path):
        sheet = Sheet(_LEFT + WIDTH + 0.15, _BOTTOM + HEIGHT + 0.4)
        axes = sheet.axes(_LEFT, _BOTTOM, WIDTH, HEIGHT)
        for values, colour, name in lines:
            axes.plot(np.arange(1, len(values) + 1), values, color=colour, lw=1.2, label=name)
        for repeat in range(1, repeats):
            axes.axvline(repeat * length, color="#D0D0D0", lw=0.8, zorder=0)
        top = max(float(np.nanmax(values)) for values, _, _ in lines)
        axes.set(xlim=(1, repeats * length - 1), ylim=(0, 1.08 * top))
        axes.tick_params(labelsize=LABEL_SIZE)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.legend(
            frameon=False, fontsize=LABEL_SIZE, loc="lower right", bbox_to_anchor=(1, 1), ncols=2
        )
        names = ("position of the token predicted from", "loss (nats)")
        sheet.name_axes(names, _LEFT + WIDTH / 2, 0.1, _BOTTOM + HEIGHT / 2)
        sheet.write_ends(visible(result.model["id"]), [])
        sheet.save(path)
