"""The stripe: a head's pattern on one sequence of repeated random tokens."""

from __future__ import annotations

from pathlib import Path

from attnscope.experiments.capture import Capture
from attnscope.experiments.induction_result import Run
from attnscope.plain import visible
from attnscope.render.figures import draw_head


def draw_stripe(path: Path, run: Run, captured: Capture) -> None:
    """The one head that was captured, named with its label and its shift."""
    [(head, weights)] = captured.heads()
    shift = run.shift(head)
    about = [f"head {head}", run.label(head), f"shift {shift:+d}" if shift else None]
    title = ", ".join([visible(captured.model["id"]), *(part for part in about if part)])
    draw_head(path, weights.numpy(), captured.tokens.tokens, title=title)
