"""The library's front door: `attnscope.load(...)`, and one method per command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from attnscope.errors import UsageError
from attnscope.experiments import ablation as ablation_experiment
from attnscope.experiments import capture as capture_experiment
from attnscope.experiments import circuits as circuits_experiment
from attnscope.experiments import coref as coref_experiment
from attnscope.experiments import coref_data
from attnscope.experiments import heads as heads_experiment
from attnscope.experiments import induction as induction_experiment
from attnscope.experiments.ablation_result import AblationResult
from attnscope.experiments.choose import asks_for_names, choose
from attnscope.experiments.cloze import ITEMS, bundled_cloze
from attnscope.experiments.compare_model import compare_model
from attnscope.experiments.composition import KINDS
from attnscope.experiments.coref_asked import Asked
from attnscope.experiments.places import PlacesResult, places
from attnscope.experiments.selection import known_heads, select
from attnscope.experiments.story import tell, weights_say
from attnscope.experiments.verify import VerifyResult, verify
from attnscope.models import load as loading
from attnscope.models.text import Tokens
from attnscope.reports import CompareResult
from attnscope.results import (
    Capture,
    CircuitsResult,
    CorefScores,
    CorefText,
    HeadsResult,
    InductionResult,
)
from attnscope.scoring.corpus import corpus_texts
from attnscope.scoring.labelled import read_labelled
from attnscope.scoring.mentions import find_mentions
from attnscope.scoring.own_roles import parse_role
from attnscope.scoring.roles import Role
from attnscope.scoring.rules import read_rules
from attnscope.scoring.stimuli import SEQUENCES
from attnscope.types import Progress, no_progress


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
            asked = Asked.read(_paths(data), data_format, query, _paths(select_on))
            return CorefScores(**vars(coref_data.score_set(self, asked, seed=seed)))
        found = find_mentions(text, mentions, self.tokenizer.all_special_tokens)
        read = self._read(found.text, None)
        result = coref_experiment.coref(self, found, read, seed=seed, refresh=refresh)
        return CorefText(**vars(result))

    def induction(
        self,
        *,
        length: str | int | Sequence[int] = 50,
        repeats: int = 2,
        sequences: int | None = None,
        ablate: bool = False,
        story: bool = False,
        method: str = "mean",
        mode: str = "full",
        controls: int = ablation_experiment.CONTROLS,
        seed: int = 0,
        progress: Progress = no_progress,
    ) -> InductionResult:
        """Score every head on repeated random tokens; the model needs `load(..., logits=True)`.

        `ablate` switches the heads that are found off; `story` does too, and tells all of it in
        sentences. For the repeats of a text there is `places`.
        """
        found = induction_experiment.induction(
            self,
            lengths=induction_experiment.parse_lengths(length),
            repeats=repeats,
            sequences=SEQUENCES if sequences is None else sequences,
            ablate=ablate or story,
            method=method,
            mode=mode,
            controls=controls,
            seed=seed,
            progress=progress,
        )
        if story:
            found = found.with_story(tell(found, weights_say(self, found.first.found)))
        return InductionResult(**vars(found))

    def places(self, text: str, *, seed: int = 0) -> PlacesResult:
        """Every place where [A][B] … [A] occurs in a text: `attnscope induction TEXT`."""
        return places(self, self._read(text, None), seed=seed)

    def plot_stripe(
        self, result: InductionResult, path: str | Path, head: str | None = None
    ) -> Path:
        """Draw the pattern of a head (by default the first one found) on the first sequence.

        Raises UsageError for several heads, and where none is named nor found.
        """
        from attnscope.render.stripe import draw_stripe

        run = result.first
        named = run.found[:1] if head is None else known_heads(self, head)
        if len(named) != 1:
            raise UsageError("A stripe is of one head: name it with --head, as in 5.5.")
        read = self.reader.from_ids(run.stimulus.batch.ids[0].tolist())
        captured = capture_experiment.capture(self, read, select(self, None, str(named[0])))
        draw_stripe(Path(path), run, captured)
        return Path(path)

    def ablate(
        self,
        text: str | Sequence[str] | None = None,
        *,
        heads: str | None = None,
        label: str | None = None,
        layer: str | None = None,
        corpus: str | Path | Iterable[str] | None = None,
        text_field: str = "text",
        data: str | Path | Sequence[str | Path] = (),
        data_format: str | None = None,
        items: int = ITEMS,
        method: str = "mean",
        mode: str = "full",
        controls: int = ablation_experiment.CONTROLS,
        length: int = 50,
        repeats: int = 2,
        sequences: int | None = None,
        seed: int = 0,
    ) -> AblationResult:
        """Switch heads off and measure the damage on repeated random tokens, a text (or texts), a
        corpus or a cloze; the model needs `load(..., logits=True)`.

        `data` is a labelled set for the cloze; the label coreference alone is tried on the
        battery's own.
        """
        given: Iterable[Tokens] | None = None
        if corpus is not None:
            given = self._stream(corpus, text_field)
        elif text is not None:
            texts = [text] if isinstance(text, str) else list(text)
            given = [self._read(one, None) for one in texts]
        asked = None
        if data:
            asked = read_labelled(_paths(data), data_format)
        elif given is None and asks_for_names(heads, label, layer):
            asked = bundled_cloze(self)
        return ablation_experiment.ablate(
            self,
            choose(self, heads, label, layer, seed=seed),
            given,
            method=method,
            mode=mode,
            controls=controls,
            length=length,
            repeats=repeats,
            sequences=ablation_experiment.SEQUENCES if sequences is None else sequences,
            asked=asked,
            items=items,
            seed=seed,
        )

    def compare(self, **options: Any) -> CompareResult:
        """Memory beside MHA, GQA and MQA twins, and what sharing keys and values costs.

        `convert="9,3,1"` (or "all") converts it untrained by `methods` ("mean,first,best-aligned")
        and `grouping` ("neighbours", "alike"), and measures the damage; `save` is a new directory.
        `similarity=True` compares heads, `measure=True` weighs caches. `passages`, `seed`,
        `progress`; all others as in `attnscope.compare`. The first two need `logits=True`.
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


def _paths(given: str | Path | Sequence[str | Path]) -> list[Path]:
    return [Path(given)] if isinstance(given, (str, Path)) else [Path(path) for path in given]


def load(name: str, *, add_bos: bool | None = None, **options: Any) -> Model:
    """Load a checkpoint and prove it; options as in `attnscope.models.load.load`.

    Raises AttnscopeError kinds: CheckpointError when it cannot be inspected.
    """
    loaded = loading.load(name, **options)
    loaded.reader.add_bos = add_bos
    return Model(**vars(loaded))
