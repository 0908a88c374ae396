"""The one way out: data to standard output, everything else to standard error."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console, RenderableType

if TYPE_CHECKING:
    from collections.abc import Callable

    from pandas import DataFrame

    from attnscope.cli.options import Format
    from attnscope.types import Progress


class Result(Protocol):
    """What every experiment returns: a document and a frame."""

    def to_json(self) -> dict[str, Any]:
        """The JSON document."""

    def to_frame(self) -> DataFrame:
        """The same as rows."""


_SLOW = 1.0  # seconds after which a person wants to know what is going on


def out() -> Console:
    """Standard output. Into a pipe or a file lines are 80 wide unless COLUMNS says otherwise."""
    return Console(**_look(), width=_width())


def err() -> Console:
    """Standard error."""
    return Console(stderr=True, soft_wrap=True, **_look())


def _look() -> dict[str, Any]:
    """Nothing is markup; and under NO_COLOR no bold or dim either, no escape code at all."""
    plain = {"highlight": False, "markup": False, "emoji": False}
    no_codes = os.environ.get("NO_COLOR") and not os.environ.get("FORCE_COLOR")
    return {**plain, "color_system": None} if no_codes else plain


def _width() -> int | None:
    """COLUMNS if it makes sense; else what the terminal says, and 80 where there is none."""
    if "COLUMNS" not in os.environ:
        return None
    return _file_width() if _file_width() != 80 or not sys.stdout.isatty() else None


def say(message: str, *, quiet: bool = False) -> None:
    """A note or warning, on standard error; `--quiet` silences it."""
    if not quiet:
        err().print(message, soft_wrap=True)


def emit(content: RenderableType, output: Path | None) -> None:
    """Print what was asked for, or write it to `output`, whole or not at all."""
    if output is None:
        out().print(content)
        return
    from attnscope.render.export import write_text

    console = Console(file=None, record=True, width=_file_width(), color_system=None)
    with console.capture() as captured:
        console.print(content, markup=False, emoji=False, highlight=False)
    write_text(output, captured.get())


def emit_text(text: str, output: Path | None) -> None:
    """The same for text that is already laid out (JSON, CSV, Markdown): no wrapping, no colour."""
    if output is None:
        # Data is never replaced by a stand-in: what the stream cannot write is escaped.
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
        return
    from attnscope.render.export import write_text

    write_text(output, text)


def emit_result(
    result: Result, table: Callable[[Any, int], RenderableType], form: Format, output: Path | None
) -> None:
    """Write a result in the format that was asked for: the table is drawn to fit its place."""
    if form.value == "table":
        emit(table(result, output_width(output)), output)
        return
    from attnscope.render.export import to_json, to_markdown

    if form.value == "json":
        emit_text(to_json(result.to_json(), only_ascii=output is None and not _unicode()), output)
    elif form.value == "csv":
        emit_text(result.to_frame().to_csv(index=False), output)
    else:
        frame = getattr(result, "to_summary", result.to_frame)  # what a person reads, if told
        emit_text(to_markdown(frame()), output)


def _unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")


def output_width(output: Path | None) -> int:
    """How many cells wide a line may be where the result goes."""
    return out().width if output is None else _file_width()


def _file_width() -> int:
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdigit() and int(columns) > 0 else 80


@contextmanager
def progress(quiet: bool = False) -> Iterator[Progress]:
    """A function to report steps to: a live line on a terminal, plain lines elsewhere.

    Nothing is shown before a second has passed, and nothing at all with `--quiet`.
    """
    console = err()
    started = time.monotonic()
    if quiet:
        yield lambda what, done, total: None
        return
    if not console.is_terminal:
        last = started

        def report(what: str, done: int, total: int) -> None:
            nonlocal last
            now = time.monotonic()
            if now - started > _SLOW and now - last > 5.0:
                last = now
                say(f"{what} {done}/{total}" if total else what)

        yield report
        return
    status = console.status("")
    shown = False

    def live(what: str, done: int, total: int) -> None:
        nonlocal shown
        from rich.text import Text

        status.update(Text(f"{what} {done}/{total}" if total else what, style="dim"))
        if not shown and time.monotonic() - started > _SLOW:
            status.start()
            shown = True

    try:
        yield live
    finally:
        if shown:
            status.stop()
