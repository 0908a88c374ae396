"""`attnscope coref`: which head links a pronoun to what it stands for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli import options
from attnscope.cli.bundle import bundled
from attnscope.cli.options import Format
from attnscope.cli.output import emit_result, out, progress
from attnscope.cli.session import check_places, one_text, open_model, read_texts, refuse_unused
from attnscope.errors import UsageError

if TYPE_CHECKING:
    from attnscope.experiments.coref_scores import CorefScores
    from attnscope.experiments.coref_text import CorefText


@dataclass(frozen=True)
class DataOptions:
    """A labelled set to score, and how."""

    data: options.Data = None
    data_format: options.DataFormat = None
    query: Annotated[
        str | None,
        typer.Option(
            help="Where --data reads a head: at the pronoun (default), or at the place chosen for "
            "it on other items. Causal models: up to two tokens later; others: also from the "
            "candidates.",
            metavar="pronoun|chosen",
            rich_help_panel=options.SCORING,
            show_default=False,
        ),
    ] = None
    select_on: Annotated[
        list[Path] | None,
        typer.Option(
            help="Choose the place on this labelled file, not on the other half of the items.",
            metavar="FILE",
            rich_help_panel=options.SCORING,
        ),
    ] = None


@dataclass(frozen=True)
class PlaceOptions:
    """Where the answer goes, and in which form."""

    every: Annotated[
        bool,
        typer.Option("--all", help="Every head in the table.", rich_help_panel=options.OUTPUT),
    ] = False
    form: options.FormatOption = Format.table
    output: options.Output = None
    heatmap: options.Heatmap = None


_Mentions = Annotated[
    str,
    typer.Option(
        help="How to find names and things: patterns, or spacy where it is installed. Marks in the "
        "text decide instead: \\[it], {the bowl}.",
        metavar="HOW",
        rich_help_panel=options.TEXT,
    ),
]
_Refresh = Annotated[
    bool,
    typer.Option(
        "--refresh", help="Run the battery again, cached or not.", rich_help_panel=options.SCORING
    ),
]


@bundled
def coref(
    text: options.TextOptions,
    data: DataOptions,
    model: options.ModelOptions,
    talk: options.TalkOptions,
    place: PlaceOptions,
    mentions: _Mentions = "patterns",
    refresh: _Refresh = False,
) -> None:
    """Which head links a pronoun to its antecedent: in a text, or (--data) on a labelled set."""
    check_places(place.output, heatmap=place.heatmap)
    if text.pair is not None:
        raise UsageError("coref reads one text: put both in it, and leave out --pair.")
    if data.data:
        refuse_unused(
            {"--mentions": mentions != "patterns", "--refresh": refresh},
            "goes with a text: leave it out, or --data.",
        )
        _emit_scores(_score(text, data, model, talk), place)
    elif data.data_format or data.query or data.select_on:
        raise UsageError("--data-format, --query and --select-on go with --data.")
    else:
        _emit_text(_look(text, model, talk, mentions, refresh), place)


def _score(
    text: options.TextOptions,
    data: DataOptions,
    chosen: options.ModelOptions,
    talk: options.TalkOptions,
) -> CorefScores:
    """Score a labelled set; what cannot work is refused before a checkpoint is opened."""
    if text.text is not None or text.file is not None:
        raise UsageError("Give a text or --data, not both.")
    from attnscope.experiments.coref_asked import Asked
    from attnscope.experiments.coref_data import score_set

    asked = Asked.read(data.data or (), data.data_format, data.query, data.select_on or ())
    model = open_model(chosen, talk, add_bos=text.add_bos)
    with progress(talk.quiet) as report:
        return score_set(model, asked, seed=chosen.seed, progress=report)


def _look(
    text: options.TextOptions,
    chosen: options.ModelOptions,
    talk: options.TalkOptions,
    how: str,
    refresh: bool,
) -> CorefText:
    """Look at the pronouns of one text."""
    given = one_text(text)
    from attnscope.experiments.coref import coref as look
    from attnscope.scoring.mentions import find_mentions

    find_mentions(given.text, how)  # told before a checkpoint is opened, if it cannot be done
    model = open_model(chosen, talk, add_bos=text.add_bos)
    mentions = find_mentions(given.text, how, model.tokenizer.all_special_tokens)
    [read] = read_texts(model, [replace(given, text=mentions.text)], text, talk)
    with progress(talk.quiet) as report:
        return look(model, mentions, read, seed=chosen.seed, refresh=refresh, progress=report)


def _emit_scores(result: CorefScores, place: PlaceOptions) -> None:
    from attnscope.render.coref_data import coref_data_table, draw

    if place.heatmap is not None:
        draw(place.heatmap, result)
    emit_result(result, partial(coref_data_table, every=place.every), place.form, place.output)


def _emit_text(result: CorefText, place: PlaceOptions) -> None:
    from attnscope.render.coref import coref_table
    from attnscope.render.show import draw

    if place.heatmap is not None:
        draw(place.heatmap, result.pattern)
    console = out() if place.output is None else None
    table = partial(coref_table, console=console, every=place.every)
    emit_result(result, table, place.form, place.output)
