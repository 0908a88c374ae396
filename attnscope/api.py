"""The library's front door: `attnscope.load(...)`, and one method per command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attnscope.experiments import capture as capture_experiment
from attnscope.experiments import heads as heads_experiment
from attnscope.experiments import heads_result
from attnscope.experiments.against import Comparison, compare_heads
from attnscope.experiments.compare_model import compare_model
from attnscope.experiments.explain import explain as explain_head
from attnscope.experiments.selection import parse_heads, select
from attnscope.experiments.verify import VerifyResult, verify
from attnscope.models import load as loading
from attnscope.models.text import Tokens
from attnscope.plain import visible
from attnscope.reports import CompareResult
from attnscope.scoring.corpus import corpus_texts
from attnscope.scoring.own_roles import parse_role
from attnscope.scoring.roles import Role
from attnscope.scoring.rules import read_rules
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


class Model(loading.Model):
    """A checkpoint to ask questions of: each method is the command of the same name."""

    def heads(
        self,
        text: str | Sequence[str] = (),
        *,
        pair: str | None = None,
        battery: bool = True,
        corpus: str | Path | Iterable[str] | None = None,
        text_field: str = "text",
        labels: str | Path | None = None,
        roles: Sequence[str | Role] = (),
        explain: str | None = None,
        seed: int = 0,
        refresh: bool = False,
    ) -> HeadsResult:
        """Label every head, with scores in general (on the battery) and on the text (or texts).

        `corpus`, a file or texts, stands in for the battery's passages. `roles` are written as on
        the command line, or made with `attnscope.scoring.own_roles.function_role`.
        """
        texts = [text] if isinstance(text, str) else list(text)
        own = [parse_role(r, self.reader) if isinstance(r, str) else r for r in roles]
        result = heads_experiment.heads(
            self,
            [self._read(text, pair) for text in texts],
            battery=battery,
            corpus=None if corpus is None else self._stream(corpus, text_field),
            rules=read_rules(None if labels is None else Path(labels), [r.name for r in own]),
            roles=own,
            explained=parse_heads(self, explain) if explain else (),
            seed=seed,
            refresh=refresh,
        )
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

    def compare(self, **options: Any) -> CompareResult:
        """Memory beside MHA, GQA and MQA twins, and what sharing keys and values costs.

        `convert="9,3,1"` (or "all") converts the model, untrained, and measures the damage;
        `similarity=True` compares its heads; `measure=True` weighs caches and times decoding.
        Options as in `attnscope.experiments.compare_model.compare_model`. The first two need a
        model loaded with `logits=True`.
        """
        return CompareResult(**vars(compare_model(self, **options)))

    def verify(self) -> VerifyResult:
        """What the load-time proof measured, layer by layer."""
        return verify(self)

    def _stream(self, corpus: str | Path | Iterable[str], field: str) -> Iterator[Tokens]:
        if isinstance(corpus, (str, Path)):
            return (
                self.reader.read(one.text, truncate=True, what=one.what)
                for one in corpus_texts(Path(corpus), field)
            )
        return (self.reader.read(text, truncate=True) for text in corpus)

    def _read(self, text: str, pair: str | None) -> Tokens:
        return self.reader.read(text, pair)


def load(name: str, *, add_bos: bool | None = None, **options: Any) -> Model:
    """Load a checkpoint and prove it; options as in `attnscope.models.load.load`.

    Raises AttnscopeError kinds: CheckpointError when it cannot be inspected.
    """
    loaded = loading.load(name, **options)
    loaded.reader.add_bos = add_bos
    return Model(**vars(loaded))
