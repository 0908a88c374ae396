"""`attnscope compare`: what sharing keys and values saves."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli import options
from attnscope.cli.bundle import bundled
from attnscope.cli.compare_checks import check_listing, check_options
from attnscope.cli.compare_options import QualityOptions, ShapeOptions, SizeOptions
from attnscope.cli.options import Format
from attnscope.cli.output import emit_result, progress
from attnscope.cli.session import (
    DEFAULT_MODEL,
    check_distinct,
    check_places,
    open_model,
)

if TYPE_CHECKING:
    from attnscope.reports import CompareResult

app = typer.Typer(help="What sharing keys and values saves.", no_args_is_help=True)

_List = Annotated[bool, typer.Option("--list", help="List the known models instead.")]
_Plot = Annotated[
    Path | None,
    typer.Option(
        help="Also draw the cache against context, bars for several models, or with --convert the "
        "damage against memory: .png, .svg or .pdf.",
        rich_help_panel=options.OUTPUT,
    ),
]


@app.callback()
def group() -> None:
    """What sharing keys and values saves."""


@app.command()
@bundled
def mha_vs_gqa(
    shape: ShapeOptions,
    sizes: SizeOptions,
    quality: QualityOptions,
    known: _List = False,
    plot: _Plot = None,
    form: options.FormatOption = Format.table,
    output: options.Output = None,
    quiet: options.Quiet = False,
) -> None:
    """Memory and arithmetic of a model beside its MHA, GQA and MQA twins.

    Without a model: the shape of Llama-3-8B. Nothing is loaded or run, and every number is exact,
    unless --convert, --similarity or --measure ask for what only the model itself can tell.
    """
    check_places(output, plot=plot)
    check_distinct(output=output, plot=plot, save=quality.save)
    if known:
        check_listing(shape, quality, plot)
        from attnscope.experiments.known import known_shapes
        from attnscope.render.compare import shapes_table

        return emit_result(known_shapes(), shapes_table, form, output)
    check_options(shape, quality, form)
    result = (
        _measured(shape, sizes, quality, quiet) if quality.asked else _exact(shape, sizes, quiet)
    )
    if plot is not None:
        result.plot(plot)
    from attnscope.render.compare import compare_table

    emit_result(result, partial(compare_table, every=quality.every), form, output)


def _exact(shape: ShapeOptions, sizes: SizeOptions, quiet: bool) -> CompareResult:
    """From shapes alone, without torch."""
    from attnscope.reports import compare

    with progress(quiet) as report:
        return compare(
            *(shape.names or ()),
            model=shape.asked,
            config=shape.config[0] if shape.config else None,
            revision=shape.revision,
            progress=report,
            **sizes.given,
        )


def _measured(
    shape: ShapeOptions, sizes: SizeOptions, quality: QualityOptions, quiet: bool
) -> CompareResult:
    """On the model itself."""
    chosen = options.ModelOptions(
        model=shape.model,
        revision=shape.revision,
        tokenizer=quality.tokenizer,
        device=quality.device,
        seed=quality.seed,
    )
    losses = quality.convert is not None or quality.similarity
    with progress(quiet) as report:
        report("starting", 0, 0)
        from attnscope.experiments.ahead import check_ahead

        check_ahead(
            shape.model or DEFAULT_MODEL,
            shape.revision,
            convert=quality.convert,
            methods=quality.methods,
            save=quality.save,
            progress=report,
        )
    model = open_model(chosen, options.TalkOptions(quiet=quiet), logits=losses)
    with progress(quiet) as report:
        return model.compare(
            convert=quality.convert,
            methods=quality.methods,
            grouping=quality.grouping.value,
            save=quality.save,
            similarity=quality.similarity,
            measure=quality.measure,
            passages=quality.passages,
            seed=quality.seed,
            progress=report,
            **sizes.given,
        )
