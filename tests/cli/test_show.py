"""`attnscope show`: the pattern of a head and the grid of a layer, in every form."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import attnscope
from attnscope.cli.app import run
from tests import tiny

Checkpoint = Callable[[str], Path]
REPEATED = "the cat the cat the"


def test_json_is_every_weight(checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    directory = checkpoint("llama-gqa")
    assert run(["show", REPEATED, "--head", "2.3", "-m", str(directory), "-F", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "attnscope.show/1"
    ids = [token["id"] for token in found["tokens"]]
    assert [token["text"] for token in found["tokens"]] == ["the", "·cat", "·the", "·cat", "·the"]
    [head] = found["heads"]
    assert (head["layer"], head["head"]) == (2, 3)
    theirs = tiny.eager(directory, torch.tensor([ids])).attentions[2][0, 3]
    assert (torch.tensor(head["weights"]) - theirs).abs().max() <= 1e-5


def test_csv_is_one_row_per_query_and_key(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    """Repeated words are five tokens: 5 × 5 rows, told apart by index."""
    directory = str(checkpoint("gpt2"))
    assert run(["show", REPEATED, "--head", "1.2", "-m", directory, "-F", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 25
    assert len({(row["query"], row["key"]) for row in rows}) == 25
    weights = attnscope.load(directory).capture(REPEATED)[1][2]
    for row in rows:
        query, key = int(row["query"]), int(row["key"])
        assert float(row["weight"]) == pytest.approx(float(weights[query, key]), abs=1e-6)
    assert rows[5]["query_text"] == "·cat"


def test_a_pattern_has_every_query_and_its_weights(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    directory = str(checkpoint("gpt2"))
    assert run(["show", REPEATED, "--head", "1.1", "-m", directory]) == 0
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if re.match(r"[0-4] (the|·cat|·the)", line)]
    assert len(lines) == 5
    weights = attnscope.load(directory).capture(REPEATED)[1][1]
    for query, line in enumerate(lines):
        shown = [0 if cell == "·" else int(cell) for cell in line.split()[2:]]
        assert shown == [round(100 * float(w)) for w in weights[query, : query + 1]]
    assert "head 1.1" in out


def test_a_layer_is_a_grid(checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--layer", "--layers"):
        assert run(["show", REPEATED, option, "1", "-m", str(checkpoint("gpt2"))]) == 0
        out = capsys.readouterr().out
        assert "layer 1" in out
        assert any(line.split() == ["0", "1", "2", "3"] for line in out.splitlines())


@pytest.mark.parametrize("what", [["--head", "0.0"], ["--layer", "0"]])
@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
def test_figures(what: list[str], ending: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = tmp_path / f"figure{ending}"
    arguments = ["show", "café 東 $x$ </svg>", *what, "-m", str(checkpoint("gpt2")), "-q"]
    assert run([*arguments, "--heatmap", str(path)]) == 0
    start = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[ending]
    assert path.read_bytes().startswith(start)


@pytest.mark.parametrize("spelt", ["1.2", "L1H2", "1:2", "l1h2", " 1.2 "])
def test_a_head_can_be_spelt(
    spelt: str, checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["show", "the cat", "--head", spelt, "-m", str(checkpoint("gpt2")), "-F", "json"]
    assert run(arguments) == 0
    [head] = json.loads(capsys.readouterr().out)["heads"]
    assert (head["layer"], head["head"]) == (1, 2)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["the cat"], "--head"),
        (["the cat", "--head", "1.1", "--layer", "1"], "--head"),
        (["the cat", "--head", "3.0"], "layers 0-2"),
        (["the cat", "--head", "0.-1"], "0.-1"),
        (["the cat", "--head", ""], "''"),
        (["the cat", "--layer", "9"], "layers 0-2"),
        (["", "--head", "1.1"], "empty"),
        (["\n", "--head", "1.1"], "empty"),
        (["--head", "1.1"], "one text"),
    ],
)
def test_used_wrongly(
    arguments: list[str], told: str, checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["show", *arguments, "-m", str(checkpoint("gpt2"))]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert len(err.splitlines()) <= 2


def test_it_takes_one_text(
    checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "texts.txt"
    arguments = ["show", "-f", str(path), "--head", "1.1", "-m", str(checkpoint("gpt2"))]
    path.write_bytes(b"\xef\xbb\xbf\r\nthe cat\r\n")
    assert run([*arguments, "-F", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [token["text"] for token in found["tokens"]] == ["the", "·cat"]  # no BOM, no CR
    path.write_text("the cat\nthe dog\n")
    assert run(arguments) == 2
    assert "2 were given" in capsys.readouterr().err


def test_one_token(checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "the", "--head", "0.0", "-m", str(checkpoint("gpt2"))]) == 0
    out = capsys.readouterr().out
    assert any(line.split() == ["0", "the", "100"] for line in out.splitlines())
    assert run(["show", "the", "--layer", "0", "-m", str(checkpoint("gpt2"))]) == 0


def test_bos_is_told(checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    directory = str(checkpoint("gpt2"))
    for option, told in ((None, "no BOS"), ("--add-bos", "<s> first"), ("--no-add-bos", "no BOS")):
        arguments = ["show", "the cat", "--head", "0.0", "-m", directory]
        assert run(arguments + ([option] if option else [])) == 0
        assert told in capsys.readouterr().out
    assert (
        run(["show", "the cat", "--head", "0.0", "-m", directory, "--add-bos", "-F", "json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["tokens"][0] == {"index": 0, "id": 0, "text": "<s>", "special": True}
    assert found["settings"]["bos"] == {"token": "<s>", "by": "option"}


def test_a_pair(checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["show", "the cat", "--pair", "the dog", "--head", "0.0", "-F", "json", "-m"]
    assert run([*arguments, str(checkpoint("bert"))]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [token["text"] for token in found["tokens"] if token["special"]] == [
        "[CLS]", "[SEP]", "[SEP]",
    ]  # fmt: skip
    assert run([*arguments, str(checkpoint("gpt2"))]) == 2
    assert "--pair" in capsys.readouterr().err
