"""`attnscope models info`: what each layer of a checkpoint is."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.bundle import bundled
from attnscope.cli.options import Format
from attnscope.cli.output import emit_result
from attnscope.cli.session import check_place, open_model

_Name = Annotated[
    str | None, typer.Argument(help="The checkpoint, as for --model.", metavar="NAME")
]
_Length = Annotated[
    int, typer.Option(help="Tokens to estimate a capture for.", min=1, rich_help_panel=options.TEXT)
]


@bundled
def info(
    model: options.ModelOptions,
    talk: options.TalkOptions,
    name: _Name = None,
    length: _Length = 512,
    form: options.FormatOption = Format.table,
    output: options.Output = None,
) -> None:
    """Show what each layer's attention is, who shares what, and what inspecting it takes."""
    check_place(output)
    loaded = open_model(replace(model, model=name or model.model), talk)
    from attnscope.experiments.info import info as describe
    from attnscope.render.info import info_table

    result = describe(loaded, length, model.seed)
    emit_result(result, info_table, form, output)
