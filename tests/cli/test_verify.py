"""`attnscope verify`: figures that are measured, on the text and length asked for."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import attnscope
from attnscope.cli.app import run
from tests import tiny

Checkpoint = Callable[[str], Path]


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama-gqa", "mistral-window"])
def test_the_document(
    name: str, checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", "-m", str(checkpoint(name)), "-F", "json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    found = json.loads(out)
    assert found["schema"] == "attnscope.verify/1"
    assert found["ok"] is True
    assert found["tolerance"] == 5e-5
    assert [entry["layer"] for entry in found["layers"]] == [0, 1, 2]
    for entry in found["layers"]:
        assert set(entry) == {"layer", "max_abs_attention", "max_abs_output", "tolerance"}
        assert 0 <= entry["max_abs_attention"] <= 1e-5
        assert 0 <= entry["max_abs_output"] <= 1e-3
    assert any(entry["max_abs_attention"] > 0 for entry in found["layers"])  # really measured
    assert 0 < found["max_abs_hidden"] <= 1e-3
    assert found["max_abs_logits"] is None
    assert found["settings"]["tokens"] == 64


def test_length_and_text(checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    directory = str(checkpoint("gpt2"))
    for arguments, tokens in (
        (["--length", "10"], 10),
        (["--length", "1000"], tiny.POSITIONS),  # no more than there are positions
        (["--text", "the cat the cat the"], 5),
    ):
        assert run(["verify", "-m", directory, "-F", "json", *arguments]) == 0
        assert json.loads(capsys.readouterr().out)["settings"]["tokens"] == tokens


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama-mqa"])
def test_logits(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny.CONFIGS[name]()
    if name == "bert":
        from transformers import AutoModelForMaskedLM

        network = tiny.randomise(AutoModelForMaskedLM.from_config(config))
        network.save_pretrained(tmp_path)
        tiny.wordpiece_tokenizer().save_pretrained(tmp_path)
    else:
        tiny.save(config, tmp_path, causal_lm=True)
    assert run(["verify", "-m", str(tmp_path), "--logits", "-F", "json"]) == 0
    assert 0 < json.loads(capsys.readouterr().out)["max_abs_logits"] <= 1e-3


def test_the_table(checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "-m", str(checkpoint("bert"))]) == 0
    out = capsys.readouterr().out
    assert "64 tokens compared" in out
    assert "within the tolerance of 5e-05" in out
    assert run(["verify", "-m", str(checkpoint("bert")), "-F", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["layer"] for row in rows] == ["0", "1", "2"]


def test_python(checkpoint: Checkpoint) -> None:
    model = attnscope.load(str(checkpoint("gpt2")))
    result = model.verify()
    assert result.ok
    assert result.parity is model.parity
    columns = ["layer", "max_abs_attention", "max_abs_output", "tolerance"]
    assert list(result.to_frame().columns) == columns


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--length", "0"], 2), (["--text", ""], 2), (["--text", " "], 2), (["the cat"], 2),
     (["-o", "nowhere/x"], 1)],
)  # fmt: skip
def test_used_wrongly(
    arguments: list[str], code: int, checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", "-m", str(checkpoint("gpt2")), *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert 1 <= len(err.splitlines()) <= 2
    assert "Unexpected" not in err
