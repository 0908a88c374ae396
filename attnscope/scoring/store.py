"""What was measured on a checkpoint, kept for the next run: keyed by all that it depends on.

A file that is damaged, unreadable or of other sizes is as good as none: the work is done again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

import attnscope
from attnscope.config_files import cache_directory
from attnscope.errors import RunError
from attnscope.files import write_atomic
from attnscope.models.load import Model

Arrays = dict[str, NDArray[Any]]
VERSION = 5  # of the battery: its texts, its questions, and how they are summed


def fingerprint(model: Model) -> str:
    """What the model is: a hash over its settings and every byte of its weights.

    Taken once for a loaded model, and again when a weight has been changed in place (which torch
    counts, unless it was done through `.data`).
    """
    body: Any = getattr(model.network, "base_model", model.network)
    tensors: dict[str, Tensor] = body.state_dict(keep_vars=True)
    versions = tuple((tensor.data_ptr(), tensor._version) for tensor in tensors.values())
    known = model.memory.get("fingerprint")
    if known is None or known[0] != versions:
        known = model.memory["fingerprint"] = (versions, _digest(model, body, tensors))
    return str(known[1])


def _digest(model: Model, body: Any, tensors: Mapping[str, Tensor]) -> str:
    digest = xxhash.xxh3_128()
    digest.update(repr(model.specs).encode())
    settings = body.config.to_dict()
    for name in ("_name_or_path", "transformers_version"):
        settings.pop(name, None)
    digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        whole = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(whole.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def key_of(model: Model, what: Mapping[str, Any]) -> str:
    """A name for what depends on this model and on `what`."""
    document = {
        "version": VERSION,
        "attnscope": attnscope.__version__,
        "model": fingerprint(model),
        **what,
    }
    return xxhash.xxh3_128(json.dumps(document, sort_keys=True).encode()).hexdigest()


class NotKept(LookupError):
    """Nothing is kept under a name, and nothing was to be computed."""


def kept(
    key: str, compute: Callable[[], Arrays], *, refresh: bool | None = False
) -> tuple[Arrays, bool]:
    """The arrays of this name, and whether they were there already; else computed and kept.

    `refresh` computes them in any case; None in no case, and raises NotKept.
    """
    found = None if refresh else _read(key)
    if found is not None:
        return found, True
    if refresh is None:
        raise NotKept(key)
    arrays = compute()
    _write(key, arrays)
    return arrays, False


def _read(key: str) -> Arrays | None:
    path = cache_directory() / "battery" / f"{key}.npz"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        return arrays if str(arrays.pop("checksum")) == _checksum(arrays) else None
    except Exception:  # a damaged file fails in as many ways as there are
        return None


def _checksum(arrays: Arrays) -> str:
    digest = xxhash.xxh3_128()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _write(key: str, arrays: Arrays) -> None:
    path = cache_directory() / "battery" / f"{key}.npz"

    def fill(scratch: Any) -> None:
        with scratch.open("wb") as file:
            np.savez(file, checksum=np.array(_checksum(arrays)), **arrays)  # type: ignore[arg-type]

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, fill)
    except (OSError, RunError):
        return  # a full or read-only disk costs the next run some time, and nothing else
