"""Texts from an argument, a file or standard input, each with where it came from."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
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
    name, lines = file_lines(path)
    texts = [GivenText(line, f"text in line {number} of {name}") for number, line in lines]
    if not texts:
        raise UsageError(f"{name} holds no text: give one text per line.")
    return texts


def file_lines(path: Path) -> tuple[str, list[tuple[int, str]]]:
    """What to call a file (`-` is standard input), and its lines with their numbers, no blank ones.

    Raises UsageError for bytes that are no text (file, line and offset are named).
    """
    if str(path) == "-":
        name, data = "standard input", sys.stdin.buffer.read()
    else:
        name = visible(str(path))
        if path.is_dir():
            raise UsageError(f"{name} is a directory: name a file in it.")
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise UsageError(f"There is no file {name}.") from error
        except OSError as error:
            raise RunError(f"Cannot read {name}: {error.strerror or error}.") from error
    lines = _decode(data, name).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return name, [(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def corpus_texts(path: Path, text_field: str = "text") -> Iterator[GivenText]:
    """The texts of a corpus, as they are read: .txt (one per line), .jsonl or .parquet.

    Blank ones are passed over. Raises UsageError for another ending, a missing field, or no text.
    """
    name = visible(str(path))
    read = _CORPORA.get(path.suffix.lower())
    if read is None:
        raise UsageError(f"Cannot read {name}: its name must end in {' or '.join(_CORPORA)}.")
    if path.is_dir():
        raise UsageError(f"{name} is a directory: give a file.")
    found = False
    try:
        for text, where in read(path, name, text_field):
            if text.strip():
                found = True
                yield GivenText(text, f"text in {where} of {name}")
    except FileNotFoundError as error:
        raise UsageError(f"There is no file {name}.") from error
    except OSError as error:
        raise RunError(f"Cannot read {name}: {error.strerror or error}.") from error
    if not found:
        raise UsageError(f"{name} holds no text.")


_Corpus = Iterator[tuple[str, str]]  # a text, and where in the file it is


def _plain_corpus(path: Path, name: str, field: str) -> _Corpus:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield _decode(line, name, number).strip("\r\n"), f"line {number}"


def _json_corpus(path: Path, name: str, field: str) -> _Corpus:
    for line, where in _plain_corpus(path, name, field):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{name}, {where}: not JSON.") from error
        if not isinstance(entry, dict):
            raise UsageError(f"{name}, {where}: not an object with a field {visible(field)!r}.")
        text = entry.get(field)
        if not isinstance(text, str):
            known = ", ".join(
                visible(key) for key, value in entry.items() if value.__class__ is str
            )
            raise UsageError(
                f"{name}, {where}: no text in a field {visible(field)!r}"
                + (f"; --text-field names another ({known})." if known else ".")
            )
        yield text, where


def _parquet_corpus(path: Path, name: str, field: str) -> _Corpus:
    try:
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise UsageError("A .parquet file needs pyarrow: type `pip install pyarrow`.") from error
    try:
        file = ParquetFile(path)
        if field not in file.schema_arrow.names:
            known = ", ".join(visible(key) for key in file.schema_arrow.names)
            raise UsageError(f"{name} has no field {visible(field)!r}: --text-field takes {known}.")
        row = 0
        for part in file.iter_batches(columns=[field]):
            for text in part.column(0).to_pylist():
                row += 1
                if not isinstance(text, str):
                    raise UsageError(
                        f"{name}, row {row}: no text in the field {visible(field)!r}, but "
                        f"{type(text).__name__}."
                    )
                yield text, f"row {row}"
    except ArrowInvalid as error:
        raise UsageError(f"{name} is no parquet file.") from error


_CORPORA: dict[str, Callable[[Path, str, str], _Corpus]] = {
    ".txt": _plain_corpus,
    ".jsonl": _json_corpus,
    ".parquet": _parquet_corpus,
}


def _decode(data: bytes, name: str, first: int = 1) -> str:
    """Bytes as text; `first` is the number of their first line in the file."""
    try:
        text = data.decode("utf-8")
        bad = data.find(b"\0")
        if bad < 0:
            return text.removeprefix("\ufeff")
        reason = "a NUL byte"
    except UnicodeDecodeError as error:
        bad, reason = error.start, f"byte 0x{data[error.start]:02x}, which is not UTF-8"
    line = data.count(b"\n", 0, bad) + first
    offset = bad - (data.rfind(b"\n", 0, bad) + 1)
    raise UsageError(f"{name}, line {line}, byte {offset}: {reason}. Save the file as UTF-8 text.")
