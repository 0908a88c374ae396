"""The attention shape of whatever a person names: a known model, a config.json, a checkpoint."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from attnscope.errors import CheckpointError, UsageError, did_you_mean
from attnscope.models.shape_config import shape_from_config
from attnscope.models.shapes import AttentionShape, known_shape, known_shapes
from attnscope.models.sources import find_config
from attnscope.plain import visible
from attnscope.types import Progress


def find_shapes(
    names: Sequence[str],
    model: str | None,
    config: str | Path | None,
    revision: str | None,
    progress: Progress,
) -> list[AttentionShape]:
    """Known models by name, then the one of a config file, then that of a checkpoint."""
    found = [known_shape(name) for name in names]
    if config is not None:
        found.append(_from_file(Path(config)))
    if model is not None:
        found.append(_from_checkpoint(model, revision, progress))
    return list(dict.fromkeys(found))


def _from_file(path: Path) -> AttentionShape:
    path = path / "config.json" if path.is_dir() else path
    if not path.exists():
        raise UsageError(f"There is no config '{visible(str(path))}'. Name a config.json.")
    return shape_from_config(path, str(path))


def _from_checkpoint(name: str, revision: str | None, progress: Progress) -> AttentionShape:
    path = Path(os.path.expanduser(name))
    if path.is_file() and path.suffix.lower() == ".json":
        raise UsageError(
            f"{visible(name)} is a file, and --model takes a checkpoint: `--config "
            f"{visible(name)}` reads one config."
        )
    # A row stands in for the hub, as the hub has it today: not for a place on the disk.
    if revision is None and not os.path.lexists(os.path.expanduser(name)):
        with contextlib.suppress(UsageError):
            return known_shape(name)
    try:
        return shape_from_config(find_config(name, revision, progress), name)
    except CheckpointError as error:
        near = did_you_mean(name.lower(), known_shapes())
        if near and near not in str(error):
            raise CheckpointError(f"{str(error).rstrip()}{near}") from error
        raise
