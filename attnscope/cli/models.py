"""`attnscope models`: the checkpoints that are bundled, pulled and supported."""

from __future__ import annotations

import typer

app = typer.Typer(
    help="The checkpoints that are bundled, pulled and supported.", no_args_is_help=True
)


@app.command("list")
def list_() -> None:
    """List the checkpoints by name."""
