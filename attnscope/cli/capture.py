"""`attnscope capture`: the weights of a text as arrays in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.bundle import bundled
from attnscope.cli.output import say
from attnscope.cli.session import check_place, one_text, open_model, read_texts
from attnscope.plain import visible
from attnscope.types import parse_heads

_ARRAYS = (".safetensors", ".npz")

_Into = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        help="The file to write: .safetensors or .npz.",
        rich_help_panel=options.OUTPUT,
    ),
]
_Include = Annotated[
    str,
    typer.Option(
        help="More arrays: z, contribution_norm, query, key, value, sink.",
        metavar="NAMES",
        rich_help_panel=options.SELECTION,
    ),
]


@bundled
def capture(
    text: options.TextOptions,
    model: options.ModelOptions,
    talk: options.TalkOptions,
    output: _Into,
    layers: options.Layers = None,
    heads: options.Heads = None,
    include: _Include = "",
) -> None:
    """Write the attention weights of a text (and more) as arrays."""
    check_place(output, _ARRAYS)
    if heads is not None:
        parse_heads(heads)
    given = one_text(text)
    loaded = open_model(model, talk, add_bos=text.add_bos)
    [read] = read_texts(loaded, [given], text, talk)
    from attnscope.experiments.capture import capture as capture_weights
    from attnscope.experiments.selection import select
    from attnscope.render.export import write_arrays

    names = [name.strip() for name in include.split(",") if name.strip()]
    chosen = select(loaded, layers, heads)
    captured = capture_weights(loaded, read, chosen, include=names, seed=model.seed)
    write_arrays(output, captured.arrays(), captured.metadata())
    say(
        f"{chosen.count()} heads × {len(read)} tokens written to {visible(str(output))}",
        quiet=talk.quiet,
    )
