"""The options of `attnscope compare`: which models, how large, what to measure on one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from attnscope.cli import options

_SIZES, _MEASURED = "What is compared", "What is measured on a loaded model"


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


class Groups(str, Enum):
    """Which heads come to share a key/value head."""

    neighbours = "neighbours"
    alike = "alike"


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
        list[Path] | None,
        typer.Option(help="A config.json.", metavar="FILE", rich_help_panel=options.MODEL),
    ] = None
    revision: Annotated[
        str | None,
        typer.Option(help="Branch, tag or commit on the hub.", rich_help_panel=options.MODEL),
    ] = None

    @property
    def asked(self) -> str | None:
        """--model; what the environment says counts where nothing else is named."""
        named = bool(self.names) or bool(self.config)
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

    @property
    def given(self) -> dict[str, Any]:
        """As the library takes them."""
        return {
            name: value.value if isinstance(value, Enum) else value
            for name, value in vars(self).items()
        }


@dataclass(frozen=True)
class QualityOptions:
    """What is measured on the model itself, which is loaded for it."""

    convert: Annotated[
        str | None,
        typer.Option(
            help="Convert the model to so many key/value heads, untrained, and measure the damage: "
            "9,3,1 or all.",
            metavar="N,N|all",
            rich_help_panel=_MEASURED,
        ),
    ] = None
    methods: Annotated[
        str | None,
        typer.Option(
            help="How heads are pooled: mean, first, best-aligned. Default: each of them.",
            rich_help_panel=_MEASURED,
            show_default=False,
        ),
    ] = None
    grouping: Annotated[
        Groups,
        typer.Option(help="Which heads come to share.", rich_help_panel=_MEASURED),
    ] = Groups.neighbours
    save: Annotated[
        Path | None,
        typer.Option(
            help="Write the converted checkpoint to this new directory.",
            metavar="DIR",
            rich_help_panel=_MEASURED,
        ),
    ] = None
    similarity: Annotated[
        bool,
        typer.Option(
            "--similarity",
            help="How alike heads are, and which could share cheaply.",
            rich_help_panel=_MEASURED,
        ),
    ] = False
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Weigh transformers' own caches, and time decode steps.",
            rich_help_panel=_MEASURED,
        ),
    ] = False
    passages: Annotated[
        int,
        typer.Option(
            help="Texts to measure on; as many others decide how heads are aligned.",
            min=1,
            rich_help_panel=_MEASURED,
        ),
    ] = 16
    every: Annotated[
        bool,
        typer.Option("--all", help="Show every head in the table.", rich_help_panel=_MEASURED),
    ] = False
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Another tokenizer.", metavar="PATH_OR_ID", rich_help_panel=_MEASURED),
    ] = None
    device: Annotated[
        str,
        typer.Option(
            help="auto, cpu, cuda, cuda:N or mps.", metavar="DEVICE", rich_help_panel=_MEASURED
        ),
    ] = "auto"
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of everything random.", min=0, max=2**32 - 1, rich_help_panel=_MEASURED
        ),
    ] = 0

    @property
    def asked(self) -> bool:
        """Must the model be loaded?"""
        return self.convert is not None or self.similarity or self.measure
