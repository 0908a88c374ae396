"""The checkpoints that come with attnscope: figures from their weights, what people see of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import attnscope
from attnscope.cli.app import run
from attnscope.models.catalogue import checkpoints
from tests.demo.figures import measure

BUNDLED = Path(attnscope.__file__).parent / "models" / "bundled"
NAMES = ("demo-bert", "demo-gpt2", "demo-llama")
LESSON = "The chef dropped the glass bowl on the tile floor because it was slippery."
Capture = pytest.CaptureFixture[str]


def test_they_are_listed_first_and_small() -> None:
    assert tuple(checkpoints())[: len(NAMES)] == NAMES
    for name in NAMES:
        assert checkpoints()[name].ready
        assert (BUNDLED / name / "model.safetensors").stat().st_size <= 2_000_000


@pytest.mark.parametrize("name", NAMES)
def test_the_figures_come_from_the_weights(name: str) -> None:
    """Measured again here, not read from the card; the card must say the same."""
    stated = json.loads((BUNDLED / name / "figures.json").read_text(encoding="utf-8"))
    card = (BUNDLED / name / "README.md").read_text(encoding="utf-8")
    for again, said in zip(measure(BUNDLED / name), stated, strict=True):
        assert again.name == said["name"]
        assert again.value == pytest.approx(said["value"], abs=0.01), again.name
        assert again.reached == said["reached"], again.name
        assert f"| {again.name} |" in card
        assert f"{said['value']:.3f}" in card


def _labels(name: str, capsys: Capture) -> dict[str, list[str]]:
    assert run(["heads", LESSON, "-m", name, "-F", "json", "-q"]) == 0
    document = json.loads(capsys.readouterr().out)
    return {f"{head['layer']}.{head['head']}": head["labels"] for head in document["heads"]}


@pytest.mark.parametrize("name", ["demo-gpt2", "demo-llama"])
def test_causal_heads_are_labelled(name: str, capsys: Capture) -> None:
    labels = _labels(name, capsys)
    assert labels["0.0"] == ["previous-token"]
    assert "induction" in labels["1.0"]
    assert any("resting" in has for has in labels.values())


def test_encoder_heads_are_labelled(capsys: Capture) -> None:
    labels = _labels("demo-bert", capsys)
    assert labels["0.0"] == ["previous-token"]
    assert labels["0.1"] == ["next-token"]
    assert not any("induction" in has for has in labels.values())


def test_the_default_says_what_it_is(capsys: Capture) -> None:
    assert run(["heads", LESSON]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("demo-gpt2  GPT-2 type, 3 layers × 4 heads")
    assert "--model takes a real one" in err


def test_the_environment_names_another(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNSCOPE_MODEL", "demo-llama")
    assert run(["heads", LESSON]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("demo-llama  Llama type")
    assert "made-up stories" not in err


@pytest.mark.parametrize("name", NAMES)
def test_every_command_works(name: str, tmp_path: Path, capsys: Capture) -> None:
    figure, arrays = tmp_path / "head.png", tmp_path / "w.npz"
    assert run(["show", LESSON, "-m", name, "--head", "0.0", "--heatmap", str(figure)]) == 0
    assert run(["capture", LESSON, "-m", name, "-o", str(arrays)]) == 0
    assert run(["verify", "-m", name]) == 0
    assert run(["models", "info", name]) == 0
    assert figure.stat().st_size > 1000
    assert arrays.stat().st_size > 1000
