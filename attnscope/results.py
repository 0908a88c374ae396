"""What the library's methods return: the experiments' results, and a picture of each."""

from __future__ import annotations

from pathlib import Path

from attnscope.experiments import capture as capture_experiment
from attnscope.experiments import (
    circuits_result,
    coref_scores,
    coref_text,
    heads_result,
    induction_result,
)
from attnscope.experiments.against import Comparison, compare_heads
from attnscope.experiments.explain import explain as explain_head
from attnscope.plain import visible
from attnscope.types import Head


class HeadsResult(heads_result.HeadsResult):
    """What every head does: `to_frame()`, `to_json()`, and a picture."""

    def against(self, other: HeadsResult) -> Comparison:
        """Which labels another checkpoint of the same shape has, and how the scores moved."""
        return compare_heads(self, other)

    def explain(self, head: str) -> tuple[str, ...]:
        """Sentences that say why a head, as in "5.5", has its labels."""
        return explain_head(self, Head.parse(head))

    def plot(self, path: str | Path) -> Path:
        """Draw the layer × head map of labels and scores: .png, .svg or .pdf."""
        from attnscope.render.figures import draw_head_map
        from attnscope.render.heads import head_map

        draw_head_map(Path(path), *head_map(self), title=visible(self.model["id"]))
        return Path(path)


class Capture(capture_experiment.Capture):
    """The weights of one text: `weights[layer]` is (H, T, T); and a picture."""

    def plot(self, path: str | Path) -> Path:
        """Draw the pattern of the only head, or all captured heads in small: .png, .svg or .pdf."""
        from attnscope.render.show import draw

        draw(Path(path), self)
        return Path(path)


class CircuitsResult(circuits_result.CircuitsResult):
    """Which head reads what which other writes: `to_frame()`, `to_json()`, and a picture."""

    def plot(self, path: str | Path) -> Path:
        """Draw the heads and the strongest pairs between them: .png, .svg or .pdf."""
        from attnscope.render.circuit_figure import draw_circuits

        draw_circuits(Path(path), self)
        return Path(path)


class CorefText(coref_text.CorefText):
    """Every pronoun of a text, and where each head looks from it; and a picture."""

    def plot(self, path: str | Path) -> Path:
        """Draw the pattern of the best head: .png, .svg or .pdf."""
        from attnscope.render.show import draw

        draw(Path(path), self.pattern)
        return Path(path)


class CorefScores(coref_scores.CorefScores):
    """Every head on a labelled set; and a picture."""

    def plot(self, path: str | Path) -> Path:
        """Draw the heads with their intervals against the simple rules: .png, .svg or .pdf."""
        from attnscope.render.coref_data import draw

        draw(Path(path), self)
        return Path(path)


class InductionResult(induction_result.InductionResult):
    """Which heads copy: `to_frame()`, `to_json()`, and pictures."""

    def plot(self, path: str | Path) -> Path:
        """Draw the layer × head map of labels and scores: .png, .svg or .pdf."""
        from attnscope.render.figures import draw_head_map
        from attnscope.render.induction import induction_map

        draw_head_map(Path(path), *induction_map(self), title=visible(self.model["id"]))
        return Path(path)

    def plot_loss(self, path: str | Path) -> Path:
        """Draw the loss at each position, with and without repeats."""
        from attnscope.render.losses import draw_losses

        draw_losses(Path(path), self)
        return Path(path)
