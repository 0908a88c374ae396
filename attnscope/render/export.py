"""Results as files: each appears whole, or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.errors import RunError
from attnscope.plain import visible

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor


def write_atomic(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a file beside `path`, then put it in place in one step.

    Raises RunError when the place cannot be written; nothing is left behind then.
    """
    path = path.resolve() if path.is_symlink() else path  # write what a link points to
    if path.is_dir():
        raise RunError(f"Cannot write {visible(str(path))}: it is a directory. Name a file in it.")
    if path.exists() and not path.is_file():  # /dev/stdout, a named pipe: nothing to rename
        write(path)
        return
    try:
        handle, name = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.stem[:40]}-", suffix=path.suffix
        )
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(
            f"Cannot write {visible(str(path))}: {reason}. Name another file."
        ) from error
    os.close(handle)
    scratch = Path(name)
    try:
        write(scratch)
        mask = os.umask(0)
        os.umask(mask)
        scratch.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~mask)
        scratch.replace(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"Cannot write {visible(str(path))}: {reason}.") from error
    finally:
        scratch.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, whole or not at all."""
    write_atomic(path, lambda scratch: _fill(scratch, text))


def _fill(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def write_arrays(path: Path, arrays: Mapping[str, Tensor], metadata: dict[str, Any]) -> None:
    """Arrays with one JSON document beside them, as .safetensors or .npz by the path's ending."""
    document = json.dumps(metadata, ensure_ascii=False, allow_nan=False)
    if path.suffix.lower() == ".npz":
        import numpy as np

        named: dict[str, Any] = {name: array.numpy() for name, array in arrays.items()}
        named["meta"] = np.array(document)

        def fill(scratch: Path) -> None:
            with scratch.open("wb") as file:  # savez would add an ending to a name
                np.savez(file, **named)

        write_atomic(path, fill)
        return
    from safetensors.torch import save_file

    whole = {name: array.contiguous() for name, array in arrays.items()}
    write_atomic(path, lambda scratch: save_file(whole, scratch, metadata={"meta": document}))


def to_markdown(frame: DataFrame) -> str:
    """A frame as a Markdown table; text is escaped, nothing in it is markup."""
    titles = [str(name) for name in frame.columns]
    lines = ["| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)]
    for row in frame.itertuples(index=False):
        lines.append("| " + " | ".join(_cell(value) for value in row) + " |")
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    if value is None or value != value:
        return ""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    for sign in "\\|`*_<>[]":
        text = text.replace(sign, "\\" + sign)
    return text


def to_json(document: dict[str, Any], *, only_ascii: bool = False) -> str:
    """The document as JSON text. A number that is not finite is our own mistake, and raises."""
    return json.dumps(document, ensure_ascii=only_ascii, allow_nan=False, indent=1) + "\n"
