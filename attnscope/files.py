"""Files that appear whole, or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from attnscope.errors import RunError
from attnscope.plain import visible


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
        reason = (error.strerror or str(error)).replace(str(scratch), str(path))
        raise RunError(f"Cannot write {visible(str(path))}: {visible(reason)}.") from error
    finally:
        scratch.unlink(missing_ok=True)
