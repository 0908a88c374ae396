"""`attnscope bench`: what inspecting costs on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.bundle import bundled
from attnscope.cli.options import Format
from attnscope.cli.output import emit_result, progress
from attnscope.cli.session import check_place, model_name
from attnscope.errors import UsageError

_Lengths = Annotated[
    str,
    typer.Option("--length", help="Text lengths in tokens.", rich_help_panel=options.TEXT),
]
_Rounds = Annotated[
    int, typer.Option(help="How often each is timed.", min=1, rich_help_panel=options.TEXT)
]


@bundled
def bench(
    model: options.ModelOptions,
    talk: options.TalkOptions,
    lengths: _Lengths = "128,512",
    rounds: _Rounds = 5,
    form: options.FormatOption = Format.table,
    output: options.Output = None,
) -> None:
    """Time and memory of inspecting, against only running the model."""
    check_place(output)
    sizes = _sizes(lengths)
    from attnscope.experiments.bench import bench as measure
    from attnscope.render.bench import bench_table

    with progress(talk.quiet) as report:
        result = measure(
            model_name(model, talk), sizes, rounds=rounds, seed=model.seed, progress=report
        )
    emit_result(result, bench_table, form, output)


def _sizes(lengths: str) -> list[int]:
    parts = [part.strip() for part in lengths.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(f"Cannot read --length {lengths!r}: write numbers, as in 128,512.")
    return [int(part) for part in parts]
