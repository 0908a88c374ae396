"""ahead: what a config alone shows to be impossible, told before the model is loaded."""

from __future__ import annotations

from pathlib import Path

from attnscope.errors import CheckpointError
from attnscope.experiments.conversion import check_one, methods_of, no_cache, sizes_of
from attnscope.models.network import read_config
from attnscope.models.quiet import quiet_transformers
from attnscope.models.saving import check_directory, check_format
from attnscope.models.shape_config import shape_from_config
from attnscope.models.sources import Source, find_config
from attnscope.types import Progress, no_progress


def check_ahead(
    name: str,
    revision: str | None = None,
    *,
    convert: str | None = None,
    methods: str | None = None,
    save: Path | None = None,
    progress: Progress = no_progress,
) -> None:
    """Raise UsageError for an encoder, for heads that do not divide, for a place that is taken.

    What the config does not tell, loading the model will.
    """
    if save is not None:
        check_directory(save)
    path = find_config(name, revision, progress)
    try:
        shape = shape_from_config(path, name)
    except CheckpointError:
        return
    if not shape.causal:
        raise no_cache(name)
    if convert is None:
        return
    sizes, ways = sizes_of(convert, shape), methods_of(methods)
    if save is None:
        return
    check_one(sum(1 if size % shape.n_kv_heads == 0 else len(ways) for size in sizes))
    quiet_transformers()
    check_format(name, read_config(Source(name, path.parent, "directory")).get_text_config())
