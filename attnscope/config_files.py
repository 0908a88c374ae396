"""Where attnscope's own files lie: the data it ships, and the cache it keeps."""

from __future__ import annotations

import os
from pathlib import Path

from attnscope.errors import RunError


def config_path(name: str) -> Path:
    """`configs/NAME`: inside an installed package, beside the package in a checkout."""
    package = Path(__file__).parent
    for directory in (package / "configs", package.parent / "configs"):
        if (directory / name).is_file():
            return directory / name
    raise _lacks(name)


def config_files(folder: str) -> tuple[Path, ...]:
    """The .yaml files of `configs/FOLDER`, in the order of their names."""
    package = Path(__file__).parent
    for directory in (package / "configs", package.parent / "configs"):
        if found := sorted((directory / folder).glob("*.yaml")):
            return tuple(found)
    raise _lacks(folder)


def cache_directory() -> Path:
    """ATTNSCOPE_CACHE, or the platform's own place for caches. It need not exist yet."""
    chosen = os.environ.get("ATTNSCOPE_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("attnscope", appauthor=False))


def _lacks(name: str) -> RunError:
    return RunError(
        f"This installation of attnscope lacks its file configs/{name}. "
        "Type `pip install --force-reinstall attnscope`."
    )
