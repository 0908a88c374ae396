"""`attnscope verify`: our forward against transformers' own eager attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli import options
from attnscope.cli.bundle import bundled
from attnscope.cli.options import Format
from attnscope.cli.output import emit_result, say
from attnscope.cli.session import check_place, open_model
from attnscope.errors import CheckError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from attnscope.models.text import Reader

_Text = Annotated[
    str | None, typer.Option(help="Compare over this text.", rich_help_panel=options.TEXT)
]
_Length = Annotated[
    int,
    typer.Option(help="Compare over so many random tokens.", min=1, rich_help_panel=options.TEXT),
]
_Logits = Annotated[
    bool,
    typer.Option("--logits", help="Compare the logits too.", rich_help_panel=options.TEXT),
]


@bundled
def verify(
    model: options.ModelOptions,
    talk: options.TalkOptions,
    text: _Text = None,
    length: _Length = 64,
    logits: _Logits = False,
    form: options.FormatOption = Format.table,
    output: options.Output = None,
) -> None:
    """Compare our forward with transformers' own eager attention, layer by layer.

    Exit code 4 when they differ beyond tolerance.
    """
    check_place(output)
    ids = _ids(text, length, model.seed)
    loaded = open_model(model, talk, logits=logits, ids=ids, refuse=False)
    from attnscope.experiments.verify import verify as compare
    from attnscope.render.verify import verify_table

    result = compare(loaded, model.seed)
    emit_result(result, verify_table, form, output)
    if not result.ok:
        raise CheckError(f"Beyond tolerance: {result.parity.failure}.")


def _ids(text: str | None, length: int, seed: int) -> Callable[[Reader], Tensor]:
    """What to compare over, once the tokenizer is there."""

    def read(reader: Reader) -> Tensor:
        import torch

        from attnscope.models.proof import proof_ids

        if text is None:
            longest = reader.max_positions or length
            if longest < length:
                say(f"The model has {longest} positions: {longest} tokens are compared.")
            return proof_ids(reader.size, min(length, longest), seed)
        return torch.tensor([[token.id for token in reader.read(text).tokens]])

    return read
