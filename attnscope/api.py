"""The library's front door: `attnscope.load(...)`, and one method per command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from attnscope.errors import UsageError
from attnscope.experiments import capture as capture_experiment
from attnscope.experiments import circuits as circuits_experiment
from attnscope.experiments import (
    circuits_result,
    coref_data,
    coref_scores,
    coref_text,
    heads_result,
)
from attnscope.experiments import coref as coref_experiment
from attnscope.experiments import heads as heads_experiment
from attnscope.experiments.against import Comparison, compare_heads
from attnscope.experiments.composition import KINDS
from attnscope.experiments.explain import explain as explain_head
from attnscope.experiments.selection import known_heads, select
from attnscope.experiments.verify import VerifyResult, verify
from attnscope.models import load as loading
from attnscope.models.text import Tokens
from attnscope.plain import visible
from attnscope.scoring.corpus import corpus_texts
from attnscope.scoring.mentions import find_mentions
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
            explained=known_heads(self, explain) if explain else (),
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

    def circuits(
        self,
        *,
        top_k: int = circuits_experiment.TOP_K,
        source: str | None = None,
        target: str | None = None,
        kind: Sequence[str] = KINDS,
        offset: int = 0,
        heads_from_battery: bool | None = None,
        seed: int = 0,
    ) -> CircuitsResult:
        """Norms of every head and the compositions of all pairs, from the weights alone.

        `source` and `target` are --from and --to, as in "4.11,5.5". The copying score needs a model
        that was loaded with `logits=True`.
        """
        result = circuits_experiment.circuits(
            self,
            top_k=top_k,
            source=known_heads(self, source) if source else (),
            target=known_heads(self, target) if target else (),
            kinds=kind,
            offset=offset,
            heads_from_battery=heads_from_battery,
            seed=seed,
        )
        return CircuitsResult(**vars(result))

    @overload
    def coref(
        self, text: str, *, mentions: str = ..., seed: int = ..., refresh: bool = ...
    ) -> CorefText: ...

    @overload
    def coref(
        self,
        text: None = ...,
        *,
        data: str | Path | Sequence[str | Path],
        data_format: str | None = ...,
        query: str | None = ...,
        select_on: str | Path | Sequence[str | Path] = ...,
        seed: int = ...,
    ) -> CorefScores: ...

    def coref(
        self,
        text: str | None = None,
        *,
        mentions: str = "patterns",
        data: str | Path | Sequence[str | Path] = (),
        data_format: str | None = None,
        query: str | None = None,
        select_on: str | Path | Sequence[str | Path] = (),
        seed: int = 0,
        refresh: bool = False,
    ) -> CorefText | CorefScores:
        """Which head links a pronoun to its antecedent: in a text, or on a labelled set.

        In the text `[it]` and `{the bowl}` may mark what is meant. `data` is a file, or several.
        """
        if (text is None) != bool(data):
            raise UsageError("Give coref a text or data, and not both.")
        if text is None:
            asked = coref_data.Asked.read(_paths(data), data_format, query, _paths(select_on))
            return CorefScores(**vars(coref_data.score_set(self, asked, seed=seed)))
        found = find_mentions(text, mentions, self.tokenizer.all_special_tokens)
        read = self._read(found.text, None)
        result = coref_experiment.coref(self, found, read, seed=seed, refresh=refresh)
        return CorefText(**vars(result))

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


def _paths(given: str | Path | Sequence[str | Path]) -> list[Path]:
    return [Path(given)] if isinstance(given, (str, Path)) else [Path(path) for path in given]


def load(name: str, *, add_bos: bool | None = None, **options: Any) -> Model:
    """Load a checkpoint and prove it; options as in `attnscope.models.load.load`.

    Raises AttnscopeError kinds: CheckpointError when it cannot be inspected.
    """
    loaded = loading.load(name, **options)
    loaded.reader.add_bos = add_bos
    return Model(**vars(loaded))
