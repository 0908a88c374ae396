"""The command line's edge: the table of commands, and the one place where failures are caught."""

from __future__ import annotations

import codecs
import os
import sys
from typing import Annotated

import typer

import attnscope
from attnscope.cli import compare, models
from attnscope.cli.ablate import ablate
from attnscope.cli.bench import bench
from attnscope.cli.capture import capture
from attnscope.cli.circuits import circuits
from attnscope.cli.coref import coref
from attnscope.cli.heads import heads
from attnscope.cli.induction import induction
from attnscope.cli.info import info
from attnscope.cli.show import show
from attnscope.cli.verify import verify
from attnscope.errors import AttnscopeError
from attnscope.plain import visible

app = typer.Typer(
    name="attnscope",
    help="See what the attention heads of a pretrained model do, and believe it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (heads, show, capture, induction, ablate, coref, circuits, verify, bench):
    app.command()(command)
models.app.command()(info)
app.add_typer(compare.app, name="compare")
app.add_typer(models.app, name="models")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attnscope {attnscope.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """See what the attention heads of a pretrained model do, and believe it."""


def main() -> None:
    """Run the command line and leave with the exit code of what happened."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command; returns its exit code, having said on standard error what went wrong."""
    _use_plain_output()
    try:
        code = app(arguments, prog_name="attnscope", standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _fail("Interrupted; nothing was left half-written.", 130)
    except BrokenPipeError:
        # The reader has gone (`| head -1`): not a failure. Python must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except typer.Abort:
        return _fail("Interrupted; nothing was left half-written.", 130)
    except AttnscopeError as error:
        return _fail(str(error), error.exit_code)
    except typer.TyperException as error:
        return _fail(_usage(error), error.exit_code)
    except MemoryError:
        return _fail("Not enough memory. Try a shorter text, or fewer --layers.", 1)
    except OSError as error:
        return _fail(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "), 1)
    except Exception as error:
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        return _fail(f"Unexpected {message}. ATTNSCOPE_DEBUG=1 shows where.", 1)
    if code == 130:
        return _fail("Interrupted; nothing was left half-written.", 130)
    return code if isinstance(code, int) else 0


_STAND_INS = {"×": "x", "·": "-", "–": "-", "…": "...", "→": "->", "‖": "||", "±": "+-"}
_STAND_INS |= {"╰": "\\", "─": "-", "╯": "/"}


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(_STAND_INS.get(character, "?") for character in lost), error.end


def _use_plain_output() -> None:
    """A locale that cannot write a character gets a stand-in for it, never a traceback."""
    codecs.register_error("attnscope", _stand_in)
    if sys.stdout is None:  # it was closed before we began
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="attnscope")


def _usage(error: typer.TyperException) -> str:
    if type(error).__name__ == "NoArgsIsHelpError":
        return str(error)
    describe = getattr(error, "format_message", None)
    message = describe() if describe is not None else str(error)
    context = getattr(error, "ctx", None)
    where = f"{context.command_path} --help" if context is not None else "attnscope --help"
    return f"{' '.join(message.split())}\nSee `{where}`."


def _fail(message: str, code: int) -> int:
    if os.environ.get("ATTNSCOPE_DEBUG") == "1":
        import traceback

        traceback.print_exc()
    for line in message.splitlines():
        print(visible(line), file=sys.stderr)
    return code
