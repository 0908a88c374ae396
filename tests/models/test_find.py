"""A shape by whatever name: known rows, files, directories, the hub's config and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

from attnscope.errors import CheckpointError, UsageError
from attnscope.models.find import find_shapes
from attnscope.types import no_progress

CONFIG = {"model_type": "gpt2", "n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 64}


def find(*names: str, model: str | None = None, config: Path | None = None) -> list[Any]:
    return find_shapes(names, model, config, None, no_progress)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that holds a checkpoint's config, `here/config.json`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_they_come_in_order_and_each_once(home: Path) -> None:
    config = home / "here" / "config.json"
    found = find("gpt2", "llama-3-8b", "GPT2", model="gpt2", config=config)
    assert [shape.name for shape in found] == ["gpt2", "llama-3-8b", str(config)]


def test_a_directory_needs_only_its_config(home: Path) -> None:
    shape = find(model="here")[0]
    assert (shape.name, shape.n_layers, shape.positions) == ("here", 2, 64)


def test_a_place_on_the_disk_and_a_revision_go_before_what_is_known(home: Path) -> None:
    (home / "here").rename(home / "gpt2")
    assert find(model="gpt2")[0].n_layers == 2
    assert find("gpt2")[0].n_layers == 12
    with pytest.raises(CheckpointError, match="gpt2-xl"):
        find_shapes((), "gpt2-xl", None, "v2", no_progress)


def test_a_bundled_checkpoint(home: Path) -> None:
    assert find(model="demo-bert")[0].causal is False


def test_a_checkpoint_that_is_not_here_yet_is_told(home: Path) -> None:
    with pytest.raises(CheckpointError, match="attnscope models pull minilm-l6"):
        find(model="minilm-l6")


@pytest.mark.parametrize("cached", [True, False])
def test_of_a_hub_model_only_the_config_is_taken(
    cached: bool, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Any] = []

    def take(name: str, **more: Any) -> str:
        taken.append((name, more["revision"], more["allow_patterns"]))
        return str(home / "here")

    known = str(home / "here" / "config.json") if cached else None
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: known)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: SimpleNamespace())
    monkeypatch.setattr(huggingface_hub, "snapshot_download", take)
    shape = find_shapes((), "org/model", None, "v2", no_progress)[0]
    assert (shape.name, shape.n_heads) == ("org/model", 4)
    assert taken == ([] if cached else [("org/model", "v2", ["config.json"])])


@pytest.mark.parametrize(
    ("call", "kind", "told"),
    [
        (lambda: find("llama-4-8b"), UsageError, "Did you mean 'llama-3-8b'"),
        (lambda: find(model="llama-2-8b"), CheckpointError, "Did you mean 'llama-"),
        (lambda: find(model=" "), UsageError, "is empty"),
        (lambda: find(config=Path("gone")), UsageError, "no config 'gone'"),
        (lambda: find(config=Path("empty")), UsageError, "no config 'empty/config.json'"),
        (lambda: find(model="./gone"), CheckpointError, "has no 'gone'"),
    ],
)
def test_what_is_not_there_is_told(
    call: Callable[[], object], kind: type[Exception], told: str, home: Path
) -> None:
    (home / "empty").mkdir()
    with pytest.raises(kind, match=told) as caught:
        call()
    assert len(str(caught.value).splitlines()) <= 2
