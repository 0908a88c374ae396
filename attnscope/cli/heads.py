"""`attnscope heads`: label every head, with scores."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli import options
from attnscope.cli.bundle import bundled
from attnscope.cli.options import Format
from attnscope.cli.output import emit_result, progress
from attnscope.cli.session import PICTURES, check_place, given_texts, open_model, read_texts
from attnscope.plain import visible

if TYPE_CHECKING:
    from attnscope.experiments.heads import HeadsResult

_Battery = Annotated[
    bool,
    typer.Option(
        "--battery/--no-battery",
        help="Also test the heads on repeated random tokens.",
        rich_help_panel=options.TEXT,
    ),
]
_All = Annotated[
    bool, typer.Option("--all", help="Every head in the table.", rich_help_panel=options.OUTPUT)
]


@bundled
def heads(
    text: options.TextOptions,
    model: options.ModelOptions,
    talk: options.TalkOptions,
    battery: _Battery = True,
    every: _All = False,
    form: options.FormatOption = Format.table,
    output: options.Output = None,
    heatmap: options.Heatmap = None,
) -> None:
    """Label every head of a model, with scores on your text and on random tokens."""
    check_place(output)
    check_place(heatmap, PICTURES)
    given = given_texts(text)
    loaded = open_model(model, talk, add_bos=text.add_bos)
    read = read_texts(loaded, given, text, talk)
    from attnscope.experiments.heads import heads as score_heads
    from attnscope.render.heads import heads_table

    with progress(talk.quiet) as report:
        result = score_heads(loaded, read, battery=battery, seed=model.seed, progress=report)
    _draw(result, heatmap)
    emit_result(result, partial(heads_table, every=every), form, output)


def _draw(result: HeadsResult, path: Path | None) -> None:
    if path is not None:
        from attnscope.render.figures import draw_head_map
        from attnscope.render.heads import head_map

        draw_head_map(path, *head_map(result), title=visible(result.model["id"]))
