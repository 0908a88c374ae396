"""`attnscope induction`: which heads copy what followed before, and what that is worth."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli import options
from attnscope.cli.bundle import bundled
from attnscope.cli.options import Format
from attnscope.cli.output import emit_result, progress
from attnscope.cli.session import (
    ablation_options,
    check_places,
    one_text,
    open_model,
    random_options,
    read_texts,
    refuse_unused,
)
from attnscope.errors import UsageError

if TYPE_CHECKING:
    from attnscope.api import Model
    from attnscope.results import InductionResult

_Length = Annotated[
    str,
    typer.Option(
        help="How many random tokens; several as in 16,50,128 (labels are of the first).",
        rich_help_panel=options.RANDOM,
    ),
]
_Conventions = Annotated[
    bool,
    typer.Option(
        "--conventions",
        help="Also by two other conventions: mean of the whole diagonal, ratio of all attention.",
        rich_help_panel=options.OUTPUT,
    ),
]
_Ablate = Annotated[
    bool,
    typer.Option(
        "--ablate",
        help="Switch the heads that are found off, and random others.",
        rich_help_panel=options.ABLATION,
    ),
]
_Story = Annotated[
    bool,
    typer.Option(
        "--story",
        help="Tell it in sentences: who attends, copies, feeds, and what breaks.",
        rich_help_panel=options.OUTPUT,
    ),
]
_All = Annotated[
    bool, typer.Option("--all", help="Every head in the table.", rich_help_panel=options.OUTPUT)
]
_LossPlot = Annotated[
    Path | None,
    typer.Option(
        help="Draw the loss at each position: .png, .svg or .pdf.",
        metavar="FILE",
        rich_help_panel=options.OUTPUT,
    ),
]
_StripePlot = Annotated[
    Path | None,
    typer.Option(
        help="Draw the pattern of --head (or of the first head found) on one sequence.",
        metavar="FILE",
        rich_help_panel=options.OUTPUT,
    ),
]
_Head = Annotated[
    str | None,
    typer.Option(help="The head of --stripe-plot, as in 5.5.", rich_help_panel=options.OUTPUT),
]


@bundled
def induction(
    text: options.TextOptions,
    random: options.RandomOptions,
    switched: options.AblationOptions,
    model: options.ModelOptions,
    talk: options.TalkOptions,
    length: _Length = "50",
    conventions: _Conventions = False,
    ablate: _Ablate = False,
    story: _Story = False,
    every: _All = False,
    form: options.FormatOption = Format.table,
    output: options.Output = None,
    heatmap: options.Heatmap = None,
    loss_plot: _LossPlot = None,
    stripe_plot: _StripePlot = None,
    head: _Head = None,
) -> None:
    """Score every head for induction, on repeated random tokens or on the repeats of TEXT."""
    check_places(output, heatmap=heatmap, loss_plot=loss_plot, stripe_plot=stripe_plot)
    if text.text is not None or text.file is not None:
        shown = {"--ablate": ablate, "--story": story, "--conventions": conventions}
        pictures = {"--heatmap": heatmap, "--loss-plot": loss_plot, "--stripe-plot": stripe_plot}
        drawn = {name: path is not None for name, path in pictures.items()}
        given = {**drawn, **shown, "--head": head is not None, **ablation_options(switched)}
        refuse_unused(
            {**given, **random_options(random, length != "50")},
            "goes with random tokens: leave it out, or the text.",
        )
        _on_text(text, model, talk, every, form, output)
        return
    _check_length(length)
    of_text = {"--pair": text.pair is not None, "--truncate": text.truncate}
    refuse_unused(of_text, "goes with a text.")
    if not (ablate or story):
        refuse_unused(ablation_options(switched), "goes with --ablate or --story.")
    elif form in (Format.csv, Format.markdown):
        raise UsageError("--ablate and --story are told in words: use --format table or json.")
    if stripe_plot is None:
        refuse_unused({"--head": head is not None}, "is the head of --stripe-plot: name a file.")
    loaded = open_model(model, talk, add_bos=text.add_bos, logits=True, predicts=True)
    with progress(talk.quiet) as report:
        result = loaded.induction(
            length=length, repeats=random.repeats, sequences=random.sequences, ablate=ablate,
            story=story, method=switched.method.value, mode=switched.mode.value,
            controls=switched.controls, seed=model.seed, progress=report,
        )  # fmt: skip
    _draw(loaded, result, heatmap, loss_plot, stripe_plot, head)
    from attnscope.render.induction import induction_table

    table = partial(induction_table, conventions=conventions, every=every)
    emit_result(result, table, form, output)


def _check_length(length: str) -> None:
    from attnscope.plain import visible

    parts = [part.strip() for part in length.split(",")]
    if not all(part.isdecimal() and len(part) < 7 and int(part) >= 2 for part in parts):
        raise UsageError(
            f"Cannot read {visible(length)!r} as lengths: write 50, or 16,50,128; 2 at least."
        )


def _on_text(
    text: options.TextOptions,
    model: options.ModelOptions,
    talk: options.TalkOptions,
    every: bool,
    form: Format,
    output: Path | None,
) -> None:
    given = one_text(text)
    loaded = open_model(model, talk, add_bos=text.add_bos, logits=True, predicts=True)
    [read] = read_texts(loaded, [given], text, talk)
    from attnscope.experiments.places import places
    from attnscope.render.places import places_table

    result = places(loaded, read, seed=model.seed)
    emit_result(result, partial(places_table, every=every), form, output)


def _draw(
    model: Model,
    result: InductionResult,
    heatmap: Path | None,
    loss_plot: Path | None,
    stripe_plot: Path | None,
    head: str | None,
) -> None:
    if heatmap is not None:
        result.plot(heatmap)
    if loss_plot is not None:
        result.plot_loss(loss_plot)
    if stripe_plot is not None:
        model.plot_stripe(result, stripe_plot, head)
