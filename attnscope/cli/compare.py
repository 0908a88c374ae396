"""`attnscope compare`: what sharing keys and values saves."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.bundle import bundled
from attnscope.cli.options import Format
from attnscope.cli.output import emit_result, progress
from attnscope.cli.session import PICTURES, check_place

app = typer.Typer(help="What sharing keys and values saves.", no_args_is_help=True)

_SIZES = "What is compared"


class CacheType(str, Enum):
    """How the numbers of the cache are kept."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    fp8 = "fp8"
    int8 = "int8"
    int4 = "int4"


class Sliding(str, Enum):
    """What an engine keeps of a layer that sees a window only."""

    full = "full"
    window = "window"


@dataclass(frozen=True)
class ShapeOptions:
    """Which models, by their shape alone."""

    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Known models, as `--list` has them."),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            envvar="ATTNSCOPE_MODEL",
            help="A known model, a hub id, a directory, or a name from `attnscope models list`; "
            "only its config is read.",
            rich_help_panel=options.MODEL,
        ),
    ] = None
    config: Annotated[
        Path | None, typer.Option(help="A config.json.", rich_help_panel=options.MODEL)
    ] = None
    revision: Annotated[
        str | None,
        typer.Option(help="Branch, tag or commit on the hub.", rich_help_panel=options.MODEL),
    ] = None

    @property
    def asked(self) -> str | None:
        """--model; what the environment says counts where nothing else is named."""
        named = bool(self.names) or self.config is not None
        return None if named and self.model == os.environ.get("ATTNSCOPE_MODEL") else self.model


@dataclass(frozen=True)
class SizeOptions:
    """What the numbers depend on."""

    kv_heads: Annotated[
        str | None,
        typer.Option(help="Key/value heads of the twins, as in 8,4,1.", rich_help_panel=_SIZES),
    ] = None
    context: Annotated[
        str | None,
        typer.Option(
            help="Tokens, as in 4k,32k,1M (k = 1024). Default: 8k, or what the model was made for.",
            rich_help_panel=_SIZES,
            show_default=False,
        ),
    ] = None
    batch: Annotated[str, typer.Option(help="Texts at once.", rich_help_panel=_SIZES)] = "1"
    dtype: Annotated[
        CacheType, typer.Option(help="Number format of the cache.", rich_help_panel=_SIZES)
    ] = CacheType.bfloat16
    weights_dtype: Annotated[
        CacheType | None,
        typer.Option(
            help="Number format of the weights. Default: as the cache, bfloat16 where that is "
            "quantised.",
            rich_help_panel=_SIZES,
            show_default=False,
        ),
    ] = None
    group_size: Annotated[
        int | None,
        typer.Option(
            help="Numbers that share a scale. Default: 32 for int8, 64 for int4.",
            min=1,
            rich_help_panel=_SIZES,
            show_default=False,
        ),
    ] = None
    page_size: Annotated[
        str, typer.Option(help="Tokens that are reserved together.", rich_help_panel=_SIZES)
    ] = "16"
    sliding: Annotated[
        Sliding,
        typer.Option(
            help="Do sliding layers reserve room for the full text, or for their window?",
            rich_help_panel=_SIZES,
        ),
    ] = Sliding.full
    memory: Annotated[
        str, typer.Option(help="What must fit: 24GiB, 80GB.", rich_help_panel=_SIZES)
    ] = "24GiB"


_List = Annotated[bool, typer.Option("--list", help="List the known models instead.")]
_Plot = Annotated[
    Path | None,
    typer.Option(
        help="Also draw the cache against context, or bars for several models: .png, .svg or .pdf.",
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
    known: _List = False,
    plot: _Plot = None,
    form: options.FormatOption = Format.table,
    output: options.Output = None,
    quiet: options.Quiet = False,
) -> None:
    """Memory and arithmetic of a model beside its MHA, GQA and MQA twins.

    Without a model: the shape of Llama-3-8B. Nothing is loaded or run; every number is exact.
    """
    check_place(output)
    check_place(plot, PICTURES)
    from attnscope.experiments.compare import compare
    from attnscope.render.compare import compare_table, shapes_table

    if known:
        from attnscope.experiments.known import known_shapes

        return emit_result(known_shapes(), shapes_table, form, output)
    with progress(quiet) as report:
        result = compare(
            *(shape.names or ()),
            model=shape.asked,
            config=shape.config,
            revision=shape.revision,
            kv_heads=sizes.kv_heads,
            context=sizes.context,
            batch=sizes.batch,
            dtype=sizes.dtype.value,
            weights_dtype=sizes.weights_dtype and sizes.weights_dtype.value,
            group_size=sizes.group_size,
            page_size=sizes.page_size,
            sliding=sizes.sliding.value,
            memory=sizes.memory,
            progress=report,
        )
    if plot is not None:
        from attnscope.render.memory import draw_compare

        draw_compare(plot, result)
    emit_result(result, compare_table, form, output)
