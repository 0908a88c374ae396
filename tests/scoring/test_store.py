"""What the battery found is kept for the next run, and for no other model, text or setting."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnscope
from attnscope.api import HeadsResult, Model
from attnscope.scoring import passages
from attnscope.scoring.own_roles import function_role
from attnscope.scoring.store import Arrays, fingerprint, kept, key_of
from tests import english as knowing

ARRAYS: Arrays = {"one": np.arange(200_000.0), "two": np.array(["a", "b"])}
Directory = Callable[[str], Path]
TEXT = knowing.TEXT


@pytest.fixture(autouse=True)
def _few_passages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of them: what is tested here is what happens to their result."""
    few = passages.bundled_passages()[:4]
    monkeypatch.setattr(passages, "bundled_passages", lambda: few)


@pytest.fixture
def files(tmp_path: Path) -> Callable[[], list[Path]]:
    return lambda: sorted((tmp_path / "cache" / "battery").glob("*"))


def opened(directory: Path, **options: Any) -> tuple[Model, list[int]]:
    """A model as a new run opens it, and the batches that it is shown."""
    model = attnscope.load(str(directory), **options)
    shown: list[int] = []
    run = model.run

    def counted(batch: Any, lens: Any = None) -> Any:
        shown.append(len(batch))
        return run(batch, lens)

    model.run = counted  # type: ignore[method-assign]
    return model, shown


def was_kept(result: HeadsResult) -> tuple[bool, bool]:
    assert result.random is not None
    return result.general.kept, result.random.kept


def test_the_second_run_reads_only_the_text(
    english: Directory, files: Callable[[], list[Path]]
) -> None:
    model, shown = opened(english("llama"))
    first = model.heads(TEXT)
    assert was_kept(first) == (False, False)
    assert sum(shown) == 1 + 4 + 40  # the text, the passages, repeated tokens and controls
    assert len(files()) == 2
    again, shown = opened(english("llama"))
    second = again.heads(TEXT)
    assert was_kept(second) == (True, True)
    assert shown == [1]
    assert second.to_json() == first.to_json()
    shown.clear()
    assert again.heads("the chef").general.evidence.scores["local"].n[0, 0] > 100
    assert shown == [1]
    assert len(files()) == 2


def test_refresh_reads_again(english: Directory, files: Callable[[], list[Path]]) -> None:
    before = opened(english("gpt2"))[0].heads(TEXT)
    inodes = [path.stat().st_ino for path in files()]
    model, shown = opened(english("gpt2"))
    result = model.heads(TEXT, refresh=True)
    assert was_kept(result) == (False, False)
    assert sum(shown) == 1 + 4 + 40
    assert result.to_json() == before.to_json()
    assert [path.stat().st_ino for path in files()] != inodes  # written again, in the same place
    assert was_kept(opened(english("gpt2"))[0].heads(TEXT)) == (True, True)


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({}, {"seed": 1}),
        ({}, {"roles": ["three=offset:-3"]}),
        ({}, {"roles": ["three=offset:-4"]}),
        ({}, {"roles": ["three=tokens:and,or"]}),
        ({"dtype": "bfloat16"}, {}),
        ({"add_bos": False}, {}),
    ],
)
def test_another_setting_is_another_result(
    options: dict[str, Any],
    arguments: dict[str, Any],
    english: Directory,
    files: Callable[[], list[Path]],
) -> None:
    opened(english("llama"))[0].heads(TEXT, roles=["three=offset:-3"])
    opened(english("llama"))[0].heads(TEXT)
    before = len(files())
    assert before == 4
    result = opened(english("llama"), **options)[0].heads(TEXT, **arguments)
    known = arguments == {"roles": ["three=offset:-3"]}
    assert was_kept(result) == (known, known)
    assert len(files()) == before + (0 if known else 2)
    assert was_kept(opened(english("llama"), **options)[0].heads(TEXT, **arguments)) == (True, True)


def test_an_edited_weight_is_another_model(
    english: Directory, files: Callable[[], list[Path]]
) -> None:
    """In the file, and in memory between two calls."""
    model, shown = opened(english("gpt2"))
    before = model.heads(TEXT)
    print_before = fingerprint(model)
    weight = next(p for n, p in model.network.named_parameters() if n.endswith("ln_1.weight"))
    with torch.no_grad():
        weight[0] += 1.0
    assert fingerprint(model) != print_before
    after = model.heads(TEXT)
    assert was_kept(after) == (False, False)
    assert len(files()) == 4
    assert before.battery is not None
    assert after.battery is not None
    assert not np.array_equal(before.battery["local"].raw, after.battery["local"].raw)
    with torch.no_grad():
        weight[0] -= 1.0
    assert key_of(model, {}) == key_of(opened(english("gpt2"))[0], {})
    shown.clear()
    assert model.heads(TEXT).to_json() == before.to_json()
    assert shown == [1]


def test_where_a_checkpoint_lies_is_no_part_of_it(
    english: Directory, tmp_path: Path, files: Callable[[], list[Path]]
) -> None:
    opened(english("bert"))[0].heads(TEXT)
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in english("bert").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    assert was_kept(opened(copy)[0].heads(TEXT)) == (True, True)
    assert len(files()) == 2


def test_what_may_be_otherwise_next_time_is_not_kept(
    english: Directory, files: Callable[[], list[Path]]
) -> None:
    role = function_role("own", lambda block, seen: block.weights[..., 0])
    model, _ = opened(english("gpt2"))
    for _ in range(2):
        assert was_kept(model.heads(TEXT, roles=[role])) == (False, False)
    corpus = ["the chef dropped the bowl", "a bowl on the floor ."]
    for expected in ((False, False), (False, True)):  # random tokens do not depend on it
        assert was_kept(opened(english("gpt2"))[0].heads(corpus=corpus)) == expected
    assert len(files()) == 1


# Files that are no good


def _npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    return buffer.getvalue()


def _flipped(data: bytes, at: int, bits: int = 255) -> bytes:
    return data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "garbage": lambda data: b"not an archive" * 100,
    "half": lambda data: data[: len(data) // 2],
    "all but the end": lambda data: data[:-1],
    "a byte of an array": lambda data: _flipped(data, 5000),
    "marked as encrypted": lambda data: _flipped(data, data.rindex(b"PK\1\2") + 8, 1),
    "packed in an unknown way": lambda data: _flipped(data, data.rindex(b"PK\1\2") + 10),
    "another name": lambda data: _flipped(data, data.rindex(b"one.npy")),
    "only zeros": lambda data: bytes(len(data)),
    "one array": lambda data: _npy(),
    "objects": lambda data: _npz(names=np.array([{"a": 1}], dtype=object)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_as_good_as_none(damage: str, files: Callable[[], list[Path]]) -> None:
    kept("key", lambda: ARRAYS)
    [path] = files()
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    found, before = kept("key", lambda: ARRAYS)
    assert not before
    assert all(np.array_equal(found[name], ARRAYS[name]) for name in ARRAYS)
    assert kept("key", dict)[1]  # put right


@pytest.mark.parametrize("arrays", [{}, {"other": np.zeros(3)}])
def test_a_sound_file_of_something_else_is_as_good_as_none(
    arrays: Arrays, english: Directory, files: Callable[[], list[Path]]
) -> None:
    before = opened(english("llama"))[0].heads(TEXT)
    for path in files():
        path.write_bytes(_npz(**arrays))
    result = opened(english("llama"))[0].heads(TEXT)
    assert was_kept(result) == (False, False)
    assert result.to_json() == before.to_json()
    assert was_kept(opened(english("llama"))[0].heads(TEXT)) == (True, True)  # put right


def test_a_place_that_cannot_be_read_or_written(
    english: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = opened(english("llama"))[0].heads(TEXT).to_json()
    for path in (tmp_path / "cache" / "battery").iterdir():  # directories where files should be
        path.unlink()
        path.mkdir()
    assert opened(english("llama"))[0].heads(TEXT).to_json() == before
    nowhere = tmp_path / "file"
    nowhere.write_text("not a directory")
    monkeypatch.setenv("ATTNSCOPE_CACHE", str(nowhere))
    for _ in range(2):
        result = opened(english("llama"))[0].heads(TEXT)
        assert was_kept(result) == (False, False)
        assert result.to_json() == before
    assert nowhere.read_text() == "not a directory"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="everything is open to root")
def test_a_cache_that_may_only_be_read(
    english: Directory, tmp_path: Path, files: Callable[[], list[Path]]
) -> None:
    opened(english("llama"))[0].heads(TEXT)
    folder = tmp_path / "cache" / "battery"
    folder.chmod(0o500)
    try:
        assert was_kept(opened(english("llama"))[0].heads(TEXT)) == (True, True)
        assert was_kept(opened(english("llama"))[0].heads(TEXT, seed=1)) == (False, False)
        assert len(files()) == 2
    finally:
        folder.chmod(0o700)


# Several processes

_PROGRAM = """
import os, signal, sys
import numpy as np
from attnscope.scoring import store
arrays = {"one": np.arange(200_000.0), "two": np.array(["a", "b"])}
if sys.argv[1] == "killed":
    def half(file, **arrays):
        file.write(b"PK" * 1000)
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    np.savez = half
for n in range(60):
    found, before = store.kept("key", lambda: arrays, refresh=n % 3 == 0)
    assert set(found) == set(arrays)
    assert all((found[name] == arrays[name]).all() for name in arrays)
    assert before == (n % 3 != 0)
"""


def _start(mode: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _PROGRAM, mode], stderr=subprocess.PIPE)


def test_processes_at_once_and_one_that_is_killed(files: Callable[[], list[Path]]) -> None:
    killed = _start("killed")
    killed.communicate()
    assert killed.returncode == -9
    assert not [path for path in files() if path.name == "key.npz"]
    both = [_start("whole") for _ in range(2)]
    for process in both:
        _, told = process.communicate()
        assert process.returncode == 0, told.decode()
    found, before = kept("key", dict)
    assert before
    assert all((found[name] == ARRAYS[name]).all() for name in ARRAYS)


def test_a_write_that_fails_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, files: Callable[[], list[Path]]
) -> None:
    def full(file: Any, **arrays: Any) -> None:
        file.write(b"PK" * 1000)
        raise OSError(28, "No space left on device")

    def stopped(file: Any, **arrays: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", full)
    found, before = kept("key", lambda: ARRAYS)
    assert (found, before) == (ARRAYS, False)
    assert files() == []
    monkeypatch.setattr(np, "savez", stopped)
    with pytest.raises(KeyboardInterrupt):
        kept("key", lambda: ARRAYS)
    assert files() == []
