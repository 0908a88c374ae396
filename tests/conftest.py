"""Checkpoints that many tests read: made once, and never written to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import tiny


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a tiny checkpoint by its name in `tiny.CONFIGS`."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = tiny.save(tiny.CONFIGS[name](), tmp_path_factory.mktemp(name))
        return made[name]

    return get


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees what the person who runs it has pulled, or asks the hub."""
    monkeypatch.setenv("ATTNSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ATTNSCOPE_MODEL", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
