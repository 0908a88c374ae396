"""`heads --against`: two checkpoints of one shape, head by head."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import attnscope
from attnscope.cli.app import run
from attnscope.errors import UsageError
from attnscope.scoring.passages import bundled_passages
from tests import english as knowing
from tests import planted

pytestmark = pytest.mark.usefixtures("shared_cache")
Checkpoint = Callable[[str], Path]
Captured = pytest.CaptureFixture[str]
TEXT = knowing.TEXT


def document(capsys: Captured, *arguments: str) -> dict[str, Any]:
    assert run(["heads", *arguments, "-F", "json", "-q"]) == 0, capsys.readouterr().err
    return dict(json.loads(capsys.readouterr().out, parse_constant=pytest.fail))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The planted GPT-2, and one in which head 1.4 (it rests on the first token) looks evenly."""
    before = tmp_path_factory.mktemp("before")
    planted.planted_gpt2(before, [*(p.text for p in bundled_passages()), TEXT])
    after = Path(shutil.copytree(before, tmp_path_factory.mktemp("after") / "it"))
    tensors = load_file(after / "model.safetensors")
    for name, tensor in tensors.items():
        if "h.1.attn.c_attn.weight" in name:  # (C, 3·H·D)
            tensor[:, 4 * 80 : 5 * 80] = 0
    save_file(tensors, after / "model.safetensors", metadata={"format": "pt"})
    return str(before), str(after)


def test_the_same_checkpoint_has_not_changed(pair: tuple[str, str], capsys: Captured) -> None:
    found = document(capsys, TEXT, "-m", pair[0], "--against", pair[0])
    assert found["schema"] == "attnscope.against/1"
    assert found["changed"] == 0
    assert found["model"] == found["against"]
    for entry in found["heads"]:
        assert entry["labels"] == entry["labels_against"]
        for role, change in entry["lifts"].items():
            assert change["before"] == change["after"], role
            for number in ("difference", "low", "high"):
                assert change[number] in (0.0, None), role
        assert entry["lifts"]["local"]["difference"] == 0.0
        assert entry["lifts"]["coreference"]["low"] == 0.0


def test_an_edited_head_has_changed_and_no_other(pair: tuple[str, str], capsys: Captured) -> None:
    found = document(capsys, TEXT, "-m", pair[0], "--against", pair[1])
    assert found["changed"] == 1
    for entry in found["heads"]:
        edited = (entry["layer"], entry["head"]) == (1, 4)
        if edited:
            assert (entry["labels"], entry["labels_against"]) == (["resting"], ["broad"])
            change = entry["lifts"]["first_token"]
            assert change["before"] == pytest.approx(1, abs=0.01)
            assert change["after"] == pytest.approx(0, abs=0.01)
            assert change["difference"] == pytest.approx(-1, abs=0.01)
            assert change["low"] <= change["difference"] <= change["high"] < -0.9
            assert entry["lifts"]["broad"]["difference"] > 0.9
        else:
            assert entry["labels"] == entry["labels_against"]
            for role, change in entry["lifts"].items():
                assert change["difference"] in (None, pytest.approx(0, abs=1e-5)), role


@pytest.mark.parametrize("more", [[], ["--no-battery"]])
def test_every_form(more: list[str], pair: tuple[str, str], capsys: Captured) -> None:
    arguments = ["heads", TEXT, "-m", pair[0], "--against", pair[1], *more]
    assert run([*arguments, "-q"]) == 0
    out = capsys.readouterr().out
    assert "1 of 12 heads have other labels" in out
    assert any(line.split()[:1] == ["1.4"] for line in out.splitlines())
    assert "nan" not in out.lower()
    assert run([*arguments, "-F", "csv", "-q"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    changed = {(r["layer"], r["head"]) for r in rows if r["labels"] != r["labels_against"]}
    assert changed == {("1", "4")}


def test_python_compares_the_same(pair: tuple[str, str], capsys: Captured) -> None:
    found = document(capsys, TEXT, "-m", pair[0], "--against", pair[1])
    before, after = (attnscope.load(name).heads(TEXT) for name in pair)
    comparison = before.against(after)
    assert json.loads(json.dumps(comparison.to_json())) == found
    assert [str(head) for head in comparison.changed] == ["1.4"]
    telling = comparison.telling(comparison.changed[0])
    assert [(label, came, change.role) for label, came, change in telling] == [
        ("resting", False, "first_token"),
        ("broad", True, "broad"),
    ]


def test_heads_of_other_shapes_are_not_paired(
    checkpoint: Checkpoint, pair: tuple[str, str], capsys: Captured
) -> None:
    for one, other in [("llama-gqa", "llama-mha"), ("gpt2", "bert"), ("gpt2", "llama-wide-heads")]:
        names = [str(checkpoint(one)), str(checkpoint(other))]
        assert run(["heads", "the cat", "-m", names[0], "--against", names[1], "--no-battery"]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert all(name in err for name in names)
        assert "key/value heads" in err
        assert len(err.splitlines()) <= 2
    assert run(["heads", "the cat", "-m", pair[0], "--against", str(checkpoint("gpt2"))]) == 2
    err = capsys.readouterr().err
    assert "2 layers, 6 heads" in err
    assert "3 layers, 4 heads" in err
    results = [
        attnscope.load(name).heads("the cat", battery=False)
        for name in (pair[0], str(checkpoint("gpt2")))
    ]
    with pytest.raises(UsageError, match="one shape"):
        results[0].against(results[1])


@pytest.mark.parametrize("more", [["--explain", "0.0"], ["--heatmap", "x.png"]])
def test_options_that_do_not_go_together(more: list[str], capsys: Captured) -> None:
    assert run(["heads", "the cat", "-m", "no-such", "--against", "no-other", *more]) == 2
    assert "--against" in capsys.readouterr().err
