"""The library's front door: `attnscope.load(...)`, and one method per command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attnscope.experiments import ablation as ablation_experiment
from attnscope.experiments import capture as capture_experiment
from attnscope.experiments import heads as heads_experiment
from attnscope.experiments import heads_result, induction_result
from attnscope.experiments import induction as induction_experiment
from attnscope.experiments.ablation_result import AblationResult
from attnscope.experiments.against import Comparison, compare_heads
from attnscope.experiments.choose import choose
from attnscope.experiments.explain import explain as explain_head
from attnscope.experiments.places import PlacesResult, places
from attnscope.experiments.selection import parse_heads, select
from attnscope.experiments.story import tell, weights_say
from attnscope.experiments.verify import VerifyResult, verify
from attnscope.models import load as loading
from attnscope.models.text import Tokens
from attnscope.plain import visible
from attnscope.scoring.corpus import corpus_texts
from attnscope.scoring.own_roles import parse_role
from attnscope.scoring.roles import Role
from attnscope.scoring.rules import read_rules
from attnscope.scoring.stimuli import SEQUENCES
from attnscope.types import Head, Progress, no_progress


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
        """Draw the pattern of a head (by default the first one found) on the first sequence."""
        from attnscope.render.figures import draw_head

        run = result.first
        named = [*run.found, Head(0, 0)] if head is None else parse_heads(self, head)
        [row, *_] = run.stimulus.batch.ids.tolist()
        read = self.reader.from_ids(row)
        captured = capture_experiment.capture(self, read, select(self, None, str(named[0])))
        [(which, weights)] = captured.heads()
        title = f"{visible(self.id)}, head {which}"
        draw_head(Path(path), weights.numpy(), read.tokens, title=title)
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
        method: str = "mean",
        mode: str = "full",
        controls: int = ablation_experiment.CONTROLS,
        length: int = 50,
        repeats: int = 2,
        sequences: int | None = None,
        seed: int = 0,
    ) -> AblationResult:
        """Switch heads off and measure the damage on repeated random tokens, a text (or texts) or a
        corpus; the model needs `load(..., logits=True)`."""
        given: Iterable[Tokens] | None = None
        if corpus is not None:
            given = self._stream(corpus, text_field)
        elif text is not None:
            texts = [text] if isinstance(text, str) else list(text)
            given = [self._read(one, None) for one in texts]
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
            seed=seed,
        )

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
