"""Texts from an argument, a file or standard input, each with where it came from."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from attnscope.errors import RunError, UsageError
from attnscope.plain import visible


@dataclass(frozen=True)
class GivenText:
    """One text, and what to call it in a message."""

    text: str
    what: str = "text"


def given_texts(text: str | None, file: Path | None) -> list[GivenText]:
    """The texts a command was given: TEXT (`-` is standard input as one text), or --file.

    Raises UsageError when there is none, or both.
    """
    if (text is None) == (file is None):
        raise UsageError(
            "Give one text, or --file with one text per line."
            if text is None
            else "Give a text or --file, not both."
        )
    if file is not None:
        return read_lines(file)
    if text == "-":
        return [GivenText(_decode(sys.stdin.buffer.read(), "standard input").strip(), "input")]
    assert text is not None
    return [GivenText(text)]


def read_lines(path: Path) -> list[GivenText]:
    """One text per line of a file (`-` is standard input); blank lines are passed over.

    Raises UsageError for bytes that are no text (file, line and offset are named).
    """
    if str(path) == "-":
        name, data = "standard input", sys.stdin.buffer.read()
    else:
        name = visible(str(path))
        if path.is_dir():
            raise UsageError(f"{name} is a directory: give a file with one text per line.")
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise UsageError(f"There is no file {name}.") from error
        except OSError as error:
            raise RunError(f"Cannot read {name}: {error.strerror or error}.") from error
    lines = _decode(data, name).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    texts = [
        GivenText(line, f"text in line {number} of {name}")
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not texts:
        raise UsageError(f"{name} holds no text: give one text per line.")
    return texts


def _decode(data: bytes, name: str) -> str:
    try:
        text = data.decode("utf-8")
        bad = data.find(b"\0")
        if bad < 0:
            return text.removeprefix("\ufeff")
        reason = "a NUL byte"
    except UnicodeDecodeError as error:
        bad, reason = error.start, f"byte 0x{data[error.start]:02x}, which is not UTF-8"
    line = data.count(b"\n", 0, bad) + 1
    offset = bad - (data.rfind(b"\n", 0, bad) + 1)
    raise UsageError(f"{name}, line {line}, byte {offset}: {reason}. Save the file as UTF-8 text.")
