"""`attnscope ablate`: switch heads off and measure the damage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli import options
from attnscope.cli.bundle import bundled
from attnscope.cli.options import Format
from attnscope.cli.output import emit_result, progress
from attnscope.cli.session import (
    check_corpus,
    check_place,
    given_texts,
    open_model,
    random_options,
    read_corpus,
    read_texts,
    refuse_unused,
)
from attnscope.errors import UsageError

if TYPE_CHECKING:
    from attnscope.api import Model
    from attnscope.models.text import Tokens
    from attnscope.scoring.corpus import GivenText
    from attnscope.scoring.labelled import LabelledSet

_Label = Annotated[
    str | None,
    typer.Option(
        help="All heads with this label, as in induction.", rich_help_panel=options.SELECTION
    ),
]
_Layer = Annotated[
    str | None,
    typer.Option(
        "--layer", "--layers", help="All heads of these layers.", rich_help_panel=options.SELECTION
    ),
]
_Items = Annotated[
    int,
    typer.Option(
        help="How many pronouns of a labelled set to ask for.", min=1, rich_help_panel=options.TEXT
    ),
]
_Length = Annotated[
    int, typer.Option(help="How many random tokens.", min=2, rich_help_panel=options.RANDOM)
]


@bundled
def ablate(
    text: options.TextOptions,
    corpus: options.CorpusOptions,
    random: options.RandomOptions,
    switched: options.AblationOptions,
    model: options.ModelOptions,
    talk: options.TalkOptions,
    head: options.Heads = None,
    label: _Label = None,
    layer: _Layer = None,
    data: options.Data = None,
    data_format: options.DataFormat = None,
    items: _Items = 100,
    length: _Length = 50,
    form: options.FormatOption = Format.table,
    output: options.Output = None,
) -> None:
    """Switch heads off and measure the damage: on repeated random tokens, a text, a corpus or a
    labelled set of pronouns."""
    check_place(output)
    from attnscope.experiments.choose import asks_for_names, check_choice

    check_choice(head, label, layer)
    texts = _Texts(text, corpus, talk, data or (), data_format)
    given, asked = texts.given(), texts.asked()
    if given or asked is not None or corpus.corpus is not None:
        refuse_unused(
            random_options(random, length != 50), "goes with random tokens: leave it out."
        )
    if asked is None and not asks_for_names(head, label, layer):
        refuse_unused(
            {"--items": items != 100}, "goes with --data, or with --label coreference alone."
        )
    loaded = open_model(model, talk, add_bos=text.add_bos, logits=True, predicts=True)
    from attnscope.experiments.ablation import SEQUENCES
    from attnscope.experiments.ablation import ablate as measure
    from attnscope.experiments.choose import choose
    from attnscope.experiments.cloze import bundled_cloze
    from attnscope.render.ablation import ablation_table

    read = texts.read(loaded, given)
    if asked is None and read is None and asks_for_names(head, label, layer):
        asked = bundled_cloze(loaded)
    with progress(talk.quiet) as report:
        heads = choose(loaded, head, label, layer, seed=model.seed, progress=report)
        result = measure(
            loaded, heads, read, method=switched.method.value, mode=switched.mode.value,
            controls=switched.controls, length=length, repeats=random.repeats,
            sequences=random.sequences or SEQUENCES, asked=asked, items=items, seed=model.seed,
            progress=report,
        )  # fmt: skip
    emit_result(result, ablation_table, form, output)


@dataclass(frozen=True)
class _Texts:
    """What to measure on: nothing given means repeated random tokens."""

    text: options.TextOptions
    corpus: options.CorpusOptions
    talk: options.TalkOptions
    data: Sequence[Path]
    data_format: str | None

    def given(self) -> list[GivenText]:
        """The texts, before the model is opened."""
        alone = self.text.text is None and self.text.file is None
        if (not alone) + (self.corpus.corpus is not None) + bool(self.data) > 1:
            raise UsageError("Give one of a text, --corpus and --data.")
        check_corpus(self.corpus)
        return [] if alone else given_texts(self.text)

    def asked(self) -> LabelledSet | None:
        """The labelled set, before the model is opened."""
        from attnscope.scoring.labelled import read_labelled

        if not self.data and self.data_format is not None:
            raise UsageError("--data-format goes with --data.")
        return read_labelled(self.data, self.data_format) if self.data else None

    def read(self, model: Model, given: list[GivenText]) -> Iterable[Tokens] | None:
        """The texts as tokens; None where none were given."""
        if self.corpus.corpus is not None:
            return read_corpus(model, self.corpus)
        return read_texts(model, given, self.text, self.talk) if given else None
