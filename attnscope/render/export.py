"""Results as files: each appears whole, or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.files import write_atomic

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor


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
