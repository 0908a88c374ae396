"""Each option that several commands share, named once, in the bundles that commands take."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class Format(str, Enum):
    """How a result is written on standard output."""

    table = "table"
    json = "json"
    csv = "csv"
    markdown = "markdown"


class DType(str, Enum):
    """The number format of the weights; scores and softmax are float32 in every one of them."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    auto = "auto"


class Method(str, Enum):
    """What a head that is switched off adds instead."""

    zero = "zero"
    mean = "mean"
    resample = "resample"
    rest = "rest"


class Mode(str, Enum):
    """May later layers attend elsewhere when a head is off?"""

    full = "full"
    frozen = "frozen"


MODEL, TEXT, SELECTION, OUTPUT = "Model", "Text", "Selection", "Output"
SCORING, RANDOM, ABLATION = "Scoring", "Random tokens", "Switching off"

FormatOption = Annotated[
    Format, typer.Option("--format", "-F", help="How to write it.", rich_help_panel=OUTPUT)
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Write to this file instead of printing.", rich_help_panel=OUTPUT
    ),
]
Heatmap = Annotated[
    Path | None,
    typer.Option(help="Also draw the figure: .png, .svg or .pdf.", rich_help_panel=OUTPUT),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress, no notes.", rich_help_panel=OUTPUT)
]
Layers = Annotated[str | None, typer.Option(help="Layers, as in 0-3,7.", rich_help_panel=SELECTION)]
Data = Annotated[
    list[Path] | None,
    typer.Option(
        help="A labelled set: GAP, WinoBias, Winogender or JSONL. May be given again, as for the "
        "two halves of a set of pairs.",
        metavar="FILE",
        rich_help_panel=TEXT,
    ),
]
DataFormat = Annotated[
    str | None,
    typer.Option(
        help="gap, winobias, winogender or jsonl. Default: by looking at the file.",
        metavar="NAME",
        rich_help_panel=TEXT,
        show_default=False,
    ),
]
Heads = Annotated[
    str | None,
    typer.Option("--heads", "--head", help="Heads, as in 5.5,L6H9.", rich_help_panel=SELECTION),
]


@dataclass(frozen=True)
class ModelOptions:
    """Which checkpoint, and how to load it."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            envvar="ATTNSCOPE_MODEL",
            help="A hub id, a directory, a .gguf file, or a name from `attnscope models list`.",
            rich_help_panel=MODEL,
        ),
    ] = None
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit on the hub.", rich_help_panel=MODEL)
    ] = None
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Another tokenizer.",
            metavar="PATH_OR_ID",
            rich_help_panel=MODEL,
        ),
    ] = None
    device: Annotated[
        str,
        typer.Option(
            help="auto, cpu, cuda, cuda:N or mps.", metavar="DEVICE", rich_help_panel=MODEL
        ),
    ] = "auto"
    device_map: Annotated[
        str | None,
        typer.Option(
            help="auto: spread over several GPUs (accelerate).",
            metavar="MAP",
            rich_help_panel=MODEL,
        ),
    ] = None
    dtype: Annotated[
        DType | None,
        typer.Option(
            help="Number format of the weights. Default: float32 on a CPU, the checkpoint's own "
            "on a GPU.",
            rich_help_panel=MODEL,
            show_default=False,
        ),
    ] = None
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of everything random.", min=0, max=2**32 - 1, rich_help_panel=MODEL
        ),
    ] = 0


@dataclass(frozen=True)
class TextOptions:
    """What to read."""

    text: Annotated[
        str | None, typer.Argument(help="The text; - reads standard input.", show_default=False)
    ] = None
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", help="A file with one text per line; - is stdin.", rich_help_panel=TEXT
        ),
    ] = None
    pair: Annotated[
        str | None,
        typer.Option(help="Second text, for BERT-type models.", rich_help_panel=TEXT),
    ] = None
    add_bos: Annotated[
        bool | None,
        typer.Option(
            "--add-bos/--no-add-bos",
            help="Begin with the BOS token. Default: what the tokenizer does.",
            rich_help_panel=TEXT,
            show_default=False,
        ),
    ] = None
    truncate: Annotated[
        bool,
        typer.Option("--truncate", help="Cut a text longer than the model.", rich_help_panel=TEXT),
    ] = False


@dataclass(frozen=True)
class CorpusOptions:
    """Many texts, read as they come."""

    corpus: Annotated[
        Path | None,
        typer.Option(
            help="Many texts: .txt with one per line, .jsonl or .parquet.",
            metavar="FILE",
            rich_help_panel=TEXT,
        ),
    ] = None
    text_field: Annotated[
        str,
        typer.Option(
            help="The field that holds the text in .jsonl or .parquet.",
            metavar="NAME",
            rich_help_panel=TEXT,
        ),
    ] = "text"


@dataclass(frozen=True)
class TalkOptions:
    """How much to say beside the answer."""

    quiet: Quiet = False
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="More notes.", rich_help_panel=OUTPUT)
    ] = False


@dataclass(frozen=True)
class RandomOptions:
    """Random tokens that are repeated."""

    repeats: Annotated[
        int, typer.Option(help="How often they are said.", min=2, rich_help_panel=RANDOM)
    ] = 2
    sequences: Annotated[
        int | None,
        typer.Option(
            help="How many texts of them. Default: 32, ablate 8.",
            min=1,
            show_default=False,
            rich_help_panel=RANDOM,
        ),
    ] = None


@dataclass(frozen=True)
class AblationOptions:
    """How heads are switched off, and what that is compared with."""

    method: Annotated[
        Method,
        typer.Option(
            help="What they add instead: nothing; their mean over other texts; what they add at "
            "the same place of another text; what they add at rest.",
            rich_help_panel=ABLATION,
        ),
    ] = Method.mean
    mode: Annotated[
        Mode,
        typer.Option(
            help="full: later layers may attend elsewhere; frozen: every pattern stays.",
            rich_help_panel=ABLATION,
        ),
    ] = Mode.full
    controls: Annotated[
        int,
        typer.Option(
            help="Random sets of as many heads of the same layers to compare with.",
            min=0,
            rich_help_panel=ABLATION,
        ),
    ] = 20
