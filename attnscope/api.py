"""The library's front door: `attnscope.load(...)`, and one method per command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnscope.experiments import capture as capture_experiment
from attnscope.experiments import heads as heads_experiment
from attnscope.experiments.selection import select
from attnscope.experiments.verify import VerifyResult, verify
from attnscope.models import load as loading
from attnscope.models.text import Tokens
from attnscope.plain import visible


class HeadsResult(heads_experiment.HeadsResult):
    """What every head does: `to_frame()`, `to_json()`, and a picture."""

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


class Model(loading.Model):
    """A checkpoint to ask questions of: each method is the command of the same name."""

    def heads(
        self,
        text: str | Sequence[str],
        *,
        pair: str | None = None,
        battery: bool = True,
        seed: int = 0,
    ) -> HeadsResult:
        """Label every head, with scores on the text (or texts) and on repeated random tokens."""
        texts = [text] if isinstance(text, str) else list(text)
        read = [self._read(text, pair) for text in texts]
        result = heads_experiment.heads(self, read, battery=battery, seed=seed)
        return HeadsResult(**vars(result))

    def capture(
        self,
        text: str,
        *,
        pair: str | None = None,
        layers: str | None = None,
        heads: str | None = None,
        include: Sequence[str] = (),
    ) -> Capture:
        """The attention weights of one text: `weights[layer]` is (H, T, T)."""
        chosen = select(self, layers, heads)
        read = self._read(text, pair)
        return Capture(**vars(capture_experiment.capture(self, read, chosen, include=include)))

    def capture_ids(self, ids: Sequence[int]) -> Capture:
        """The same for token ids as they are, which no tokenizer touches."""
        read = self.reader.from_ids(ids)
        captured = capture_experiment.capture(self, read, select(self, None, None))
        return Capture(**vars(captured))

    def verify(self) -> VerifyResult:
        """What the load-time proof measured, layer by layer."""
        return verify(self)

    def _read(self, text: str, pair: str | None) -> Tokens:
        return self.reader.read(text, pair)


def load(name: str, *, add_bos: bool | None = None, **options: Any) -> Model:
    """Load a checkpoint and prove it; options as in `attnscope.models.load.load`.

    Raises AttnscopeError kinds: CheckpointError when it cannot be inspected.
    """
    loaded = loading.load(name, **options)
    loaded.reader.add_bos = add_bos
    return Model(**vars(loaded))
