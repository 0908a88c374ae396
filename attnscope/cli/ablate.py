"""`attnscope ablate`: switch heads off and measure the damage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli import options
from attnscope.cli.bundle import bundled
from attnscope.cli.options import Format
from attnscope.cli.output import emit_result, progress
from attnscope.cli.session import check_place, given_texts, open_model, read_corpus, read_texts
from attnscope.errors import UsageError

if TYPE_CHECKING:
    from attnscope.api import Model
    from attnscope.models.text import Tokens
    from attnscope.scoring.corpus import GivenText

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
    length: _Length = 50,
    form: options.FormatOption = Format.table,
    output: options.Output = None,
) -> None:
    """Switch heads off and measure the damage: on repeated random tokens, a text or a corpus."""
    check_place(output)
    texts = _Texts(text, corpus, talk)
    given = texts.given()
    from attnscope.experiments.choose import check_choice

    check_choice(head, label, layer)
    loaded = open_model(model, talk, add_bos=text.add_bos, logits=True, predicts=True)
    from attnscope.experiments.ablation import SEQUENCES
    from attnscope.experiments.ablation import ablate as measure
    from attnscope.experiments.choose import choose
    from attnscope.render.ablation import ablation_table

    with progress(talk.quiet) as report:
        heads = choose(loaded, head, label, layer, seed=model.seed, progress=report)
        result = measure(
            loaded, heads, texts.read(loaded, given), method=switched.method.value,
            mode=switched.mode.value, controls=switched.controls, length=length,
            repeats=random.repeats, sequences=random.sequences or SEQUENCES, seed=model.seed,
            progress=report,
        )  # fmt: skip
    emit_result(result, ablation_table, form, output)


@dataclass(frozen=True)
class _Texts:
    """What to measure on: nothing given means repeated random tokens."""

    text: options.TextOptions
    corpus: options.CorpusOptions
    talk: options.TalkOptions

    def given(self) -> list[GivenText]:
        """The texts, before the model is opened."""
        alone = self.text.text is None and self.text.file is None
        if not alone and self.corpus.corpus is not None:
            raise UsageError("Give a text or --corpus, not both.")
        return [] if alone else given_texts(self.text)

    def read(self, model: Model, given: list[GivenText]) -> Iterable[Tokens] | None:
        """The texts as tokens; None where none were given."""
        if self.corpus.corpus is not None:
            return read_corpus(model, self.corpus)
        return read_texts(model, given, self.text, self.talk) if given else None
