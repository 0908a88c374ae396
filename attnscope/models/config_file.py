"""A config.json as it lies on the disk, and its values, each checked where it is asked for."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attnscope.errors import CheckpointError
from attnscope.plain import visible

NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "n_layers": ("num_hidden_layers", "n_layer", "n_layers"),
        "n_heads": ("num_attention_heads", "n_head", "n_heads"),
        "d_model": ("hidden_size", "n_embd", "dim"),
        "positions": ("max_position_embeddings", "n_positions"),
    }
)
MOST = 10**12  # of anything: beyond every model, and still quick to compute with
_MOST_HEADS = 10**6  # and of what is counted one by one
_ONE_BY_ONE = ("n_layers", "n_heads", "num_key_value_heads")
_FIELD = re.compile(r"\bfield '(\w+)'", re.IGNORECASE)
_LARGEST = 50 * 10**6  # bytes of a file that can still be meant as a config


def names_of(key: str) -> tuple[str, ...]:
    """The names under which model types keep this value; most have one."""
    return NAMES.get(key, (key,))


@dataclass(frozen=True)
class ConfigFile:
    """What one config says of one model. Values that make no sense raise CheckpointError."""

    name: str
    raw: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path, name: str) -> ConfigFile:
        """The file's object. Raises CheckpointError for a file that holds none."""
        try:
            raw = json.loads(_text_of(path))
        except RecursionError as error:
            raise CheckpointError(f"{visible(name)}: its config is nested too deeply.") from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error).split(";")[0]
            raise CheckpointError(
                f"{visible(name)}: cannot read its config ({visible(reason)})."
            ) from error
        if not isinstance(raw, dict):
            raise CheckpointError(f"{visible(name)}: its config is not an object.")
        return cls(name, raw)

    def get(self, key: str) -> Any:
        """The value under whichever of its names holds one."""
        return next((self.raw[n] for n in names_of(key) if self.raw.get(n) is not None), None)

    def holds(self, key: str) -> bool:
        """Whether the file says anything of it, be it null."""
        return any(name in self.raw for name in names_of(key))

    def size(self, key: str) -> int:
        """A whole number that must be there, 1 or more."""
        value = self.get(key)
        whole = isinstance(value, int) and not isinstance(value, bool)
        most = _MOST_HEADS if key in _ONE_BY_ONE else MOST
        if not whole or value < 1:
            raise self.refusal(key, "a whole number, 1 or more")
        if value > most:
            raise self.refusal(key, f"at most {most:.0e}".replace("e+0", "e").replace("e+", "e"))
        size: int = value
        return size

    def size_or_none(self, key: str) -> int | None:
        """The same where the file has one."""
        return None if self.get(key) is None else self.size(key)

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false (1 or 0)."""
        value = self.get(key)
        if value not in (None, True, False) or isinstance(value, float):
            raise self.refusal(key, "true or false")
        return default if value is None else bool(value)

    def refusal(self, key: str, wanted: str) -> CheckpointError:
        """What the file says, and what it would have to say."""
        found = next((n for n in names_of(key) if self.raw.get(n) is not None), names_of(key)[0])
        value = _shown(self.raw.get(found))
        return CheckpointError(f"{visible(self.name)}: {found} is {value}, and must be {wanted}.")


def why_invalid(error: Exception, raw: Mapping[str, Any]) -> str:
    """What a config's own class in transformers trips over: the key and its value, where it says.

    Its own words name Python's types, and come from the library that checks them.
    """
    if (found := _FIELD.search(str(error))) is not None and found[1] in raw:
        return f"{found[1]} is {_shown(raw[found[1]])}"
    lines = str(error).strip().splitlines()
    return visible(lines[0][:200].rstrip(".:")) if lines else type(error).__name__


def _shown(value: object) -> str:
    """A value in few characters."""
    text = visible(repr(value))
    return text if len(text) <= 60 else f"{text[:59]}…"


def _text_of(path: Path) -> str:
    """The text of a regular file of a sensible size; others may never end."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise ValueError("it is no regular file")
    if found.st_size > _LARGEST:
        raise ValueError(f"it is {found.st_size // 10**6} MB large: that is no config.json")
    return path.read_text(encoding="utf-8-sig")
