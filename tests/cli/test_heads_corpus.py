"""`heads --corpus`, `--refresh`, and texts too few or too short to say much."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnscope.cli.app import run
from attnscope.scoring.roles import ROLES

pytestmark = pytest.mark.usefixtures("shared_cache")
Checkpoint = Callable[[str], Path]
Captured = pytest.CaptureFixture[str]
TEXT = "the cat sang a song , the dog sang ."
MANY = [
    "the cat sang a song .",
    "The chef dropped the glass bowl on the tile floor because it was slippery .",
    "a dog and a cat , a dog and a cat , a dog and a cat",
    "then she sang about the floor , and the chef sang about the bowl .",
]
needs_pyarrow = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None, reason="needs pyarrow"
)


def document(capsys: Captured, *arguments: str) -> dict[str, Any]:
    assert run(["heads", *arguments, "-F", "json", "-q"]) == 0, capsys.readouterr().err
    return dict(json.loads(capsys.readouterr().out, parse_constant=pytest.fail))


def refused(capsys: Captured, *arguments: str) -> str:
    assert run(["heads", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert 1 <= len(err.splitlines()) <= 2
    assert "Unexpected" not in err
    return err


def written(path: Path, texts: list[str], field: str = "text") -> str:
    if path.suffix.lower() == ".txt":
        path.write_text("\n\n".join(texts) + "\n")
    else:
        path.write_text("\n".join(json.dumps({"n": 1, field: text}) for text in texts) + "\n\n")
    return str(path)


@pytest.mark.parametrize("ending", [".txt", ".jsonl", ".TXT"])
def test_a_corpus_stands_in_for_the_passages(
    ending: str, checkpoint: Checkpoint, tmp_path: Path, capsys: Captured
) -> None:
    """Alone: it is the texts as well. Beside a text: labels come from it, scores from the text."""
    path = written(tmp_path / f"many{ending}", MANY)
    directory = str(checkpoint("gpt2"))
    alone = document(capsys, "--corpus", path, "-m", directory)
    assert (alone["texts"], alone["labels_from"]) == (4, "battery")
    assert alone["settings"]["battery"]["text"]["texts"] == 4
    assert "tokens" not in alone
    by_file = tmp_path / "lines.txt"
    by_file.write_text("\n".join(MANY))
    lines = document(capsys, "-f", str(by_file), "-m", directory, "--no-battery")
    beside = document(capsys, TEXT, "--corpus", path, "-m", directory)
    text = document(capsys, TEXT, "-m", directory, "--no-battery")
    assert len(beside["tokens"]) == len(text["tokens"])
    for n in range(12):
        entries = [one["heads"][n] for one in (alone, lines, beside, text)]
        for role in ROLES:
            numbers = [entry["scores"][role] for entry in entries]
            assert (numbers[0] is None) == (numbers[1] is None)
            for key in ("raw", "chance", "n", "low", "high"):
                if numbers[0] is not None:
                    assert numbers[0][key] == pytest.approx(numbers[1][key], abs=1e-6)
            assert numbers[2] == numbers[3]
        assert entries[2]["battery"] == entries[0]["battery"]
        assert entries[2]["labels"] == entries[0]["labels"]


def test_without_a_battery_a_corpus_is_the_texts(
    checkpoint: Checkpoint, tmp_path: Path, capsys: Captured
) -> None:
    path = written(tmp_path / "many.txt", MANY)
    found = document(capsys, "--corpus", path, "-m", str(checkpoint("gpt2")), "--no-battery")
    assert (found["texts"], found["labels_from"]) == (4, "texts")
    assert all(entry["battery"] is None for entry in found["heads"])
    err = refused(capsys, TEXT, "--corpus", path, "--no-battery", "-m", "no-such-model")
    assert "--no-battery" in err


def test_a_field_of_another_name(checkpoint: Checkpoint, tmp_path: Path, capsys: Captured) -> None:
    path = written(tmp_path / "many.jsonl", MANY, "body")
    arguments = ["--corpus", path, "-m", str(checkpoint("gpt2")), "--no-battery"]
    assert document(capsys, *arguments, "--text-field", "body")["texts"] == 4
    err = refused(capsys, *arguments)
    assert "line 1" in err
    assert "'text'" in err
    assert "--text-field names another (body)" in err


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("x.jsonl", '{"text": "the cat"}\n\n{"text": "the\n', "line 3: not JSON"),
        (
            "x.jsonl",
            '{"text": "the cat"}\n["the dog"]\n',
            "line 2: not an object with a field 'text'",
        ),
        ("x.jsonl", '{"text": 5}\n', "line 1: no text"),
        ("x.jsonl", '{"text": "  "}\n', "holds no text"),
        ("x.jsonl", "", "holds no text"),
        ("x.txt", "", "holds no text"),
        ("x.txt", "\n  \n", "holds no text"),
        ("x.csv", "the cat", ".txt or .jsonl or .parquet"),
        ("x", "the cat", ".txt or .jsonl or .parquet"),
    ],
)
def test_a_corpus_that_is_none(
    name: str, text: str, told: str, checkpoint: Checkpoint, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / name).write_text(text)
    path = str(tmp_path / name)
    assert told in refused(capsys, "--corpus", path, "-m", str(checkpoint("gpt2")))
    assert told in refused(capsys, TEXT, "--corpus", path, "-m", str(checkpoint("gpt2")))


def test_places_that_hold_no_corpus(
    checkpoint: Checkpoint, tmp_path: Path, capsys: Captured
) -> None:
    directory = str(checkpoint("gpt2"))
    nothing = str(tmp_path / "nothing.txt")
    assert "There is no file" in refused(capsys, "--corpus", nothing, "-m", directory)
    (tmp_path / "folder.txt").mkdir()
    folder = str(tmp_path / "folder.txt")
    assert "is a directory" in refused(capsys, "--corpus", folder, "-m", directory)
    (tmp_path / "latin.txt").write_bytes(b"the cat\ncaf\xe9\n")
    latin = str(tmp_path / "latin.txt")
    assert "line 2, byte 3" in refused(capsys, "--corpus", latin, "-m", directory)


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is not None, reason="pyarrow is there")
def test_parquet_needs_pyarrow(checkpoint: Checkpoint, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    err = refused(capsys, "--corpus", str(tmp_path / "x.parquet"), "-m", str(checkpoint("gpt2")))
    assert "pip install pyarrow" in err


@needs_pyarrow
def test_parquet(checkpoint: Checkpoint, tmp_path: Path, capsys: Captured) -> None:
    from pandas import DataFrame

    path, directory = tmp_path / "many.parquet", str(checkpoint("gpt2"))
    DataFrame({"text": [*MANY, None], "n": range(5)}).to_parquet(path)
    assert document(capsys, "--corpus", str(path), "-m", directory, "--no-battery")["texts"] == 4
    err = refused(capsys, "--corpus", str(path), "-m", directory, "--text-field", "body")
    assert "--text-field takes text, n" in err
    path.write_bytes(b"not parquet")
    assert "no parquet file" in refused(capsys, "--corpus", str(path), "-m", directory)


def test_a_long_text_of_a_corpus_is_cut_and_said_so(
    checkpoint: Checkpoint, tmp_path: Path, capsys: Captured
) -> None:
    path = written(tmp_path / "long.txt", ["the cat " * 200, *MANY])
    found = document(capsys, "--corpus", path, "-m", str(checkpoint("gpt2")), "--no-battery")
    assert any("Cut to fit the model: 1 " in note for note in found["notes"])


# --refresh


def test_the_cache_is_used_and_can_be_left_aside(
    english: Checkpoint, shared_cache: Path, capsys: Captured
) -> None:
    arguments = ["heads", "the chef sang .", "-m", str(english("llama")), "-q"]
    shutil.rmtree(shared_cache / "battery", ignore_errors=True)
    outputs, written = [], []
    for more in ([], [], ["--refresh"], []):
        assert run([*arguments, *more]) == 0
        outputs.append(capsys.readouterr().out)
        files = sorted((shared_cache / "battery").iterdir())
        written.append([(path.name, path.stat().st_mtime_ns) for path in files])
    assert len(set(outputs)) == 1
    assert written[0] == written[1] != written[2] == written[3]
    assert [name for name, _ in written[2]] == [name for name, _ in written[0]]


# Few texts, and short ones


def test_one_text_is_weak_evidence(
    checkpoint: Checkpoint, tmp_path: Path, capsys: Captured
) -> None:
    directory = str(checkpoint("gpt2"))
    for more in ([], ["--no-battery"]):
        notes = document(capsys, TEXT, "-m", directory, *more)["notes"]
        assert any("One text is weak evidence" in note for note in notes)
    path = written(tmp_path / "many.txt", MANY)
    for more in (["-f", path], ["-f", path, "--no-battery"], ["--corpus", path]):
        notes = document(capsys, *more, "-m", directory)["notes"]
        assert not any("weak" in note for note in notes)


@pytest.mark.parametrize("text", ["", " ", "\n", " \t\r\n "])
@pytest.mark.parametrize("more", [[], ["--no-battery"]])
def test_nothing_to_read(text: str, more: list[str], capsys: Captured) -> None:
    assert "empty" in refused(capsys, text, *more, "-m", "no-such-model")


@pytest.mark.parametrize("name", ["gpt2", "llama-gqa", "bert", "mistral-window"])
@pytest.mark.parametrize("times", [1, 2, 5])
def test_one_token_says_nothing_in_any_role(
    name: str, times: int, checkpoint: Checkpoint, tmp_path: Path, capsys: Captured
) -> None:
    """All its weight is on itself, because there is nowhere else: no label comes of that."""
    path = tmp_path / "lines.txt"
    path.write_text("the\n" * times)
    found = document(capsys, "-f", str(path), "-m", str(checkpoint(name)), "--no-battery")
    for entry in found["heads"]:
        for role in ROLES:
            numbers = entry["scores"][role]
            if name != "bert":  # [CLS] the [SEP]
                assert numbers is None or numbers["lift"] is None, role
                assert numbers is None or numbers["raw"] == 1.0
        if name != "bert":
            assert entry["labels"] == []
    for form in ("table", "csv", "markdown"):
        assert run(["heads", "-f", str(path), "-m", str(checkpoint(name)), "--no-battery", "-q",
                    "-F", form]) == 0  # fmt: skip
        assert "nan" not in capsys.readouterr().out.lower()


@pytest.mark.parametrize("name", ["gpt2", "llama-gqa"])
@pytest.mark.parametrize("bos", ["--add-bos", "--no-add-bos"])
def test_two_tokens_are_not_both_first_and_previous(
    name: str, bos: str, checkpoint: Checkpoint, capsys: Captured
) -> None:
    text = "the cat" if bos == "--no-add-bos" else "the"
    found = document(capsys, text, bos, "-m", str(checkpoint(name)), "--no-battery")
    assert len(found["tokens"]) == 2
    for entry in found["heads"]:
        assert not {"previous-token", "resting"} <= set(entry["labels"])
        assert "previous-token" not in entry["labels"]
        assert entry["scores"]["previous_token"] is None  # row 1's target is the resting place
        assert entry["scores"]["first_token"]["n"] == 1
        assert "local" not in entry["labels"]
