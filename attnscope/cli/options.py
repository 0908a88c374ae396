"""Each option that several commands share, named once."""

from __future__ import annotations

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


_MODEL, _TEXT, _PICK, _OUT = "Model", "Text", "Selection", "Output"

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        envvar="ATTNSCOPE_MODEL",
        help="A hub id, a directory, a .gguf file, or a name from `attnscope models list`.",
        rich_help_panel=_MODEL,
    ),
]
Revision = Annotated[
    str | None, typer.Option(help="Branch, tag or commit on the hub.", rich_help_panel=_MODEL)
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        help="Directory or hub id of another tokenizer.",
        metavar="PATH_OR_ID",
        rich_help_panel=_MODEL,
    ),
]
Device = Annotated[
    str,
    typer.Option(help="auto, cpu, cuda, cuda:N or mps.", metavar="DEVICE", rich_help_panel=_MODEL),
]
DeviceMap = Annotated[
    str | None,
    typer.Option(help="auto: spread over several GPUs (accelerate).", rich_help_panel=_MODEL),
]
Dtype = Annotated[
    DType | None,
    typer.Option(
        help="Number format of the weights. [default: float32 on CPU, the checkpoint's on a GPU]",
        rich_help_panel=_MODEL,
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of everything random.", rich_help_panel=_MODEL)]

Text = Annotated[
    str | None, typer.Argument(help="The text; - reads standard input.", show_default=False)
]
File = Annotated[
    Path | None,
    typer.Option(
        "--file", "-f", help="A file with one text per line; - is stdin.", rich_help_panel=_TEXT
    ),
]
Pair = Annotated[
    str | None,
    typer.Option(help="Second segment, for BERT-type models.", rich_help_panel=_TEXT),
]
AddBos = Annotated[
    bool | None,
    typer.Option(
        "--add-bos/--no-add-bos",
        help="Begin with the BOS token. [default: what the tokenizer does]",
        rich_help_panel=_TEXT,
        show_default=False,
    ),
]
Truncate = Annotated[
    bool,
    typer.Option(
        "--truncate", help="Cut a text longer than the model's positions.", rich_help_panel=_TEXT
    ),
]

Layers = Annotated[str | None, typer.Option(help="Layers, as in 0-3,7.", rich_help_panel=_PICK)]
Heads = Annotated[
    str | None,
    typer.Option("--heads", "--head", help="Heads, as in 5.5,L6H9.", rich_help_panel=_PICK),
]

FormatOption = Annotated[
    Format, typer.Option("--format", "-F", help="How to write it.", rich_help_panel=_OUT)
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Write to this file instead of printing.", rich_help_panel=_OUT
    ),
]
Heatmap = Annotated[
    Path | None,
    typer.Option(help="Also draw the figure: .png, .svg or .pdf.", rich_help_panel=_OUT),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress, no notes.", rich_help_panel=_OUT)
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="More notes.", rich_help_panel=_OUT)]
