"""`attnscope show`: look at attention, one head or the heads of one layer."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.bundle import bundled
from attnscope.cli.options import Format
from attnscope.cli.output import emit_result, out
from attnscope.cli.session import check_places, one_text, open_model, read_texts
from attnscope.errors import UsageError
from attnscope.types import parse_heads

_Head = Annotated[
    str | None,
    typer.Option(
        "--head", "--heads", help="The head, as in 5.5.", rich_help_panel=options.SELECTION
    ),
]
_Layer = Annotated[
    str | None,
    typer.Option(
        "--layer",
        "--layers",
        help="All heads of this layer.",
        rich_help_panel=options.SELECTION,
    ),
]


@bundled
def show(
    text: options.TextOptions,
    model: options.ModelOptions,
    talk: options.TalkOptions,
    head: _Head = None,
    layer: _Layer = None,
    form: options.FormatOption = Format.table,
    output: options.Output = None,
    heatmap: options.Heatmap = None,
) -> None:
    """Look at attention: the pattern of one head, or a grid of the heads of one layer."""
    if (head is None) == (layer is None):
        raise UsageError("Say what to look at: --head 5.5 for one head, --layer 3 for a layer.")
    if head is not None:
        parse_heads(head)
    check_places(output, heatmap=heatmap)
    given = one_text(text)
    loaded = open_model(model, talk, add_bos=text.add_bos)
    [read] = read_texts(loaded, [given], text, talk)
    from attnscope.experiments.capture import capture
    from attnscope.experiments.selection import select
    from attnscope.render.show import draw, pattern

    captured = capture(loaded, read, select(loaded, layer, head), seed=model.seed)
    if heatmap is not None:
        draw(heatmap, captured)
    console = out() if output is None else None
    in_signs = partial(pattern, console=console, whole_layer=layer is not None)
    emit_result(captured, in_signs, form, output)
