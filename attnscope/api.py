"""The library's front door: `attnscope.load(...)`, and one method per command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnscope.experiments.capture import Capture
from attnscope.experiments.heads import HeadsResult
from attnscope.experiments.verify import VerifyResult
from attnscope.models import load as loading
from attnscope.models.text import Tokens


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
        from attnscope.experiments.heads import heads

        texts = [text] if isinstance(text, str) else list(text)
        return heads(self, [self._read(t, pair) for t in texts], battery=battery, seed=seed)

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
        from attnscope.experiments.capture import capture
        from attnscope.experiments.selection import select

        chosen = select(self, layers, heads)
        return capture(self, self._read(text, pair), chosen, include=include)

    def capture_ids(self, ids: Sequence[int]) -> Capture:
        """The same for token ids as they are, which no tokenizer touches."""
        from attnscope.experiments.capture import capture
        from attnscope.experiments.selection import select

        return capture(self, self.reader.from_ids(ids), select(self, None, None))

    def verify(self) -> VerifyResult:
        """What the load-time proof measured, layer by layer."""
        from attnscope.experiments.verify import verify

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
