"""`attnscope circuits`: what the weights alone say of heads, and of pairs of heads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli import options
from attnscope.cli.bundle import bundled
from attnscope.cli.options import Format
from attnscope.cli.output import emit_result, progress
from attnscope.cli.session import check_places, model_name, open_model, refuse_unused
from attnscope.errors import CheckpointError

if TYPE_CHECKING:
    from attnscope.api import Model
    from attnscope.experiments.circuits_result import CircuitsResult


class Kind(str, Enum):
    """Into what the target reads."""

    Q = "Q"
    K = "K"
    V = "V"


@dataclass(frozen=True)
class PairOptions:
    """Which pairs of heads are listed."""

    source: Annotated[
        str | None,
        typer.Option(
            "--from", help="Heads that write, as in 4.11.", rich_help_panel=options.SELECTION
        ),
    ] = None
    target: Annotated[
        str | None,
        typer.Option("--to", help="Heads that read, as in 6.9.", rich_help_panel=options.SELECTION),
    ] = None
    kind: Annotated[
        list[Kind] | None,
        typer.Option(
            help="Into queries, keys or values only. May be given again.",
            case_sensitive=False,
            rich_help_panel=options.SELECTION,
        ),
    ] = None
    top_k: Annotated[
        int, typer.Option(help="How many pairs.", min=1, rich_help_panel=options.SELECTION)
    ] = 20


_Offset = Annotated[
    int,
    typer.Option(
        help="Where the key stands from the query, as in -1, for rotary layers.",
        rich_help_panel=options.SCORING,
    ),
]
_Battery = Annotated[
    bool | None,
    typer.Option(
        "--heads-from-battery/--no-heads-from-battery",
        help="Name heads by the battery's labels. Default: where its result is kept.",
        show_default=False,
        rich_help_panel=options.SCORING,
    ),
]
_Norms = Annotated[
    bool,
    typer.Option(
        "--norms",
        help="The heads one by one: norms, copying, positions.",
        rich_help_panel=options.OUTPUT,
    ),
]


@bundled
def circuits(
    model: options.ModelOptions,
    pairs: PairOptions,
    talk: options.TalkOptions,
    offset: _Offset = 0,
    heads_from_battery: _Battery = None,
    norms: _Norms = False,
    form: options.FormatOption = Format.table,
    output: options.Output = None,
    heatmap: options.Heatmap = None,
) -> None:
    """Tell from the weights alone which head reads what which other head writes."""
    check_places(output, heatmap=heatmap)
    if norms:
        given = {"--from": pairs.source is not None, "--to": pairs.target is not None}
        refuse_unused(given, "chooses pairs, and --norms lists heads: leave one of them out.")
    loaded = _open(model, talk)
    from attnscope.experiments.circuits import circuits as measure
    from attnscope.experiments.selection import known_heads

    with progress(talk.quiet) as report:
        result = measure(
            loaded, top_k=pairs.top_k, offset=offset, seed=model.seed,
            source=known_heads(loaded, pairs.source) if pairs.source is not None else (),
            target=known_heads(loaded, pairs.target) if pairs.target is not None else (),
            kinds=[kind.value for kind in pairs.kind or Kind],
            heads_from_battery=heads_from_battery, progress=report,
        )  # fmt: skip
    _emit(result, norms, form, output, heatmap)


def _open(chosen: options.ModelOptions, talk: options.TalkOptions) -> Model:
    """With the language-model head, which only the copying score needs, where there is one."""
    named = replace(chosen, model=model_name(chosen, talk))
    try:
        return open_model(named, talk, logits=True)
    except CheckpointError:
        return open_model(named, talk)


def _emit(
    result: CircuitsResult, norms: bool, form: Format, output: Path | None, heatmap: Path | None
) -> None:
    from attnscope.render.circuit_figure import draw_circuits
    from attnscope.render.circuits import by_head_table, circuits_table

    if heatmap is not None:
        draw_circuits(heatmap, result)
    if norms:
        emit_result(result.by_head(), by_head_table, form, output)
    else:
        emit_result(result, circuits_table, form, output)
