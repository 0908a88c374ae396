"""Names of every kind, and what is said where nothing is found."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

from attnscope.errors import AttnscopeError, CheckpointError, UsageError
from attnscope.models import catalogue, gguf, sources
from attnscope.models.sources import resolve


def checkpoint(directory: Path, *files: str) -> Path:
    directory.mkdir(parents=True)
    for name in files or ("config.json", "model.safetensors", "tokenizer.json"):
        (directory / name).write_text("{}")
    return directory


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and cache, and a hub that nobody may ask."""
    monkeypatch.setenv("ATTNSCOPE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", refuse)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    return tmp_path / "here"


def said(name: str, kind: type[AttnscopeError] = CheckpointError) -> str:
    with pytest.raises(kind) as caught:
        resolve(name)
    message = str(caught.value)
    assert len(message.splitlines()) <= 2
    assert message.isprintable() or "\n" in message
    return message


def test_a_directory_is_itself(here: Path) -> None:
    directory = checkpoint(here / "models" / "one")
    for name in ("models/one", "./models/one", str(directory)):
        source = resolve(name)
        assert (source.name, source.kind) == (name, "directory")
        assert source.directory.samefile(directory)


def test_home_is_known(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    checkpoint(here / "one")
    assert resolve("~/one").directory == here / "one"


def test_bundled_and_pulled_names_come_first(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = here / "bundled"
    (checkpoint(bundled / "demo") / "config.json").write_text('{"model_type": "gpt2"}')
    monkeypatch.setattr(catalogue, "_BUNDLED", bundled)
    checkpoint(here / "demo")
    source = resolve("demo")
    assert (source.kind, source.directory) == ("bundled", bundled / "demo")
    assert next(iter(catalogue.checkpoints())) == "demo"
    assert catalogue.find("demo").source == "bundled"

    assert "attnscope models pull minilm-l6" in said("minilm-l6")
    directory = checkpoint(catalogue.find("minilm-l6").directory)
    source = resolve("minilm-l6")
    assert (source.kind, source.directory) == ("pulled", directory)


def test_a_misspelt_path_is_told_with_its_neighbour(here: Path) -> None:
    checkpoint(here / "models" / "gpt2-small")
    assert "this directory has no 'modles'. Did you mean 'models'?" in said("./modles/gpt2-small")
    assert "models has no 'gpt2-smal'. Did you mean 'gpt2-small'?" in said("models/gpt2-smal")
    assert "Cannot find 'models/gpt2-small/x/y'" in said("models/gpt2-small/x/y")
    assert "Did you mean 'minilm-l6'?" in said("./minilm-l7")
    assert "attnscope models list" in said("/nowhere/at/all")


@pytest.mark.parametrize(
    "name", ["./x", "../x", "~/x", "a/b/c", "x.gguf", "org/x.GGUF", "C:\\x", "a b", "x/", "é"]
)
def test_what_looks_like_a_path_is_never_asked_from_the_hub(name: str) -> None:
    assert said(name).startswith(f"Cannot find '{name}'")


@pytest.mark.parametrize(
    "name", ["[red]x[/]", "a\x1b[31mb", "a\nb", "\u202etxt", "x" * 300 + "/y/z", "a\0b", "\udcff"]
)
def test_hostile_names_are_shown_and_do_nothing(name: str) -> None:
    message = said(name)
    assert "\x1b" not in message
    assert "\u202e" not in message
    assert "\0" not in message


@pytest.mark.parametrize("name", ["", " ", "\n"])
def test_an_empty_name_is_wrong_use(name: str) -> None:
    assert "empty" in said(name, UsageError)


def test_a_directory_without_a_config_is_told_what_is_meant(here: Path) -> None:
    checkpoint(here / "bare", "notes.txt")
    assert "'bare' is not a checkpoint: it has no config.json." in said("bare")
    checkpoint(here / "run" / "checkpoint-500")
    assert "Did you mean 'run/checkpoint-500'?" in said("run")
    checkpoint(here / "quantised", "x.gguf")
    assert "Did you mean 'quantised/x.gguf'?" in said("quantised")


def test_a_file_is_told_to_be_one(here: Path) -> None:
    checkpoint(here / "one")
    assert "neither a directory nor a .gguf file" in said("one/model.safetensors")


def test_a_tokenizer_needs_no_config(here: Path) -> None:
    checkpoint(here / "tokenizer", "tokenizer.json")
    assert resolve("tokenizer", tokenizer_only=True).directory == Path("tokenizer")
    said("tokenizer")


def test_a_revision_belongs_to_the_hub(here: Path) -> None:
    checkpoint(here / "one")
    with pytest.raises(UsageError, match="'one' is not one"):
        resolve("one", "main")


def test_a_gguf_file_is_converted_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def convert(gguf_file: Path, directory: Path, progress: object) -> None:
        made.append(gguf_file)
        (directory / "config.json").write_text("{}")

    monkeypatch.setattr(gguf, "convert", convert)
    file = here / "my model.gguf"
    file.write_bytes(b"one")
    first = resolve("my model.gguf")
    assert first.kind == "gguf"
    assert first.directory.parent == catalogue.models_directory()
    assert resolve(str(file)).directory == first.directory
    assert made == [file]
    file.write_bytes(b"other")
    assert resolve("my model.gguf").directory != first.directory
    assert len(made) == 2


def test_a_damaged_gguf_file_leaves_nothing(here: Path) -> None:
    (here / "x.gguf").write_bytes(b"GGUF")
    assert "x.gguf is not a whole GGUF file" in said("x.gguf")
    assert not [p for p in catalogue.models_directory().iterdir() if p.suffix != ".lock"]


class Hub:
    """Stands in for the hub's library: what the repository has, what is cached, what is taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
        self.files: list[str] = []
        self.cached: str | None = None
        self.taken: list[list[str]] = []
        self.home = home
        monkeypatch.setattr(
            huggingface_hub, "try_to_load_from_cache", lambda *args, **more: self.cached
        )
        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", self.info)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self.take)

    def info(self, name: str, **more: Any) -> SimpleNamespace:
        assert 0 < more["timeout"] <= 10
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in self.files])

    def take(self, name: str, **more: Any) -> str:
        self.taken.append(sorted(more["allow_patterns"]))
        bar = more["tqdm_class"](total=0, unit="B", disable=False)
        bar.total += 3_000_000
        bar.update(2_000_000)
        bar.close()
        return str(self.home)


@pytest.fixture
def hub(here: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(monkeypatch, here)


@pytest.mark.parametrize(
    ("files", "taken"),
    [
        (
            ["model.safetensors", "pytorch_model.bin", "consolidated.safetensors", "tf_model.h5"],
            ["model.safetensors"],
        ),
        (
            ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
            ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
        ),
        (["pytorch_model.bin", "onnx/model.safetensors"], ["pytorch_model.bin"]),
    ],
)
def test_only_one_copy_of_the_weights_is_taken(
    hub: Hub, files: list[str], taken: list[str]
) -> None:
    others = ["config.json", "tokenizer.json", "vocab.txt"]
    hub.files = [*files, *others, "README.md", "original/params.json", ".gitattributes"]
    steps: list[tuple[str, int, int]] = []
    source = resolve("org/model", progress=lambda *step: steps.append(step))
    assert (source.kind, source.directory) == ("hub", hub.home)
    assert hub.taken == [sorted([*taken, *others])]
    assert steps == [("downloading org/model, MB", 2, 3)]


def test_a_tokenizer_comes_without_weights(hub: Hub) -> None:
    hub.files = ["config.json", "model.safetensors", "tokenizer.json"]
    resolve("org/model", tokenizer_only=True)
    assert hub.taken == [["config.json", "tokenizer.json"]]


def test_what_is_cached_whole_is_used_without_a_question(hub: Hub, tmp_path: Path) -> None:
    whole = checkpoint(tmp_path / "whole")
    hub.cached = str(whole / "config.json")
    assert resolve("gpt2").directory == whole
    part = checkpoint(
        tmp_path / "part", "config.json", "tokenizer.json", "model-00001-of-00002.safetensors"
    )
    hub.cached, hub.files = str(part / "config.json"), ["config.json", "model.safetensors"]
    assert resolve("gpt2").directory == hub.home
    assert hub.taken == [["config.json", "model.safetensors"]]


def test_a_repository_without_weights_is_refused(hub: Hub) -> None:
    hub.files = ["config.json", "x.Q4_0.gguf"]
    assert "Download one of its .gguf files" in said("org/model")


def http_error(kind: type[Exception], code: int) -> Exception:
    return kind("no", response=SimpleNamespace(headers={}, request=None, status_code=code))


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (
            lambda: http_error(huggingface_hub.errors.RepositoryNotFoundError, 404),
            "has no 'gpt-2x'",
        ),
        (lambda: http_error(huggingface_hub.errors.GatedRepoError, 403), "'gpt-2x' is gated"),
        (lambda: http_error(huggingface_hub.errors.RevisionNotFoundError, 404), "no revision 'v9'"),
        (lambda: TimeoutError("timed out"), "cannot be used: timed out."),
        (lambda: OSError(28, "No space left on device"), "No space left on device"),
    ],
)
def test_what_the_hub_says_is_told_plainly(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception], what: str
) -> None:
    def fail(*args: Any, **more: Any) -> None:
        raise error()

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
    with pytest.raises(CheckpointError) as caught:
        resolve("gpt-2x", "v9")
    assert what in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 2


def test_without_a_network_it_fails_at_once_and_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The hub's library itself, with an address where nobody listens."""
    monkeypatch.undo()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    started = time.monotonic()
    message = said("no-such/model")
    assert time.monotonic() - started < 5
    assert "the hub cannot be used" in message
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in said("minilm-l7")
    assert "Did you mean 'minilm-l6'?" in said("minilm-l7")


def test_sources_are_plain(here: Path) -> None:
    checkpoint(here / "one")
    assert resolve("one") == sources.Source("one", Path("one"), "directory")
