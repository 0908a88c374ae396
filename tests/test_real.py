"""The two real checkpoints: known heads, parity, and what capture writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from attnscope import api
from attnscope.cli.app import run
from attnscope.models.sources import resolve
from tests import tiny

TEXT = "The chef dropped the glass bowl on the tile floor because it was slippery."
NAMES = ("minilm-l6", "smollm2-135m-instruct")
pytestmark = pytest.mark.real


def _labels(name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    assert run(["heads", TEXT, "--model", name, "--format", "json", "--quiet"]) == 0
    document = json.loads(capsys.readouterr().out)
    return {f"{head['layer']}.{head['head']}": head["labels"] for head in document["heads"]}


def test_smollm2_has_its_known_heads(pulled: None, capsys: pytest.CaptureFixture[str]) -> None:
    labels = _labels("smollm2-135m-instruct", capsys)
    assert {"16.0", "11.1"} <= {head for head, has in labels.items() if "previous-token" in has}
    induction = {head for head, has in labels.items() if "induction" in has}
    assert {"18.6", "17.3", "17.4", "18.7"} <= induction
    assert len(induction) < 20


def test_an_encoder_has_no_induction_heads(
    pulled: None, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = _labels("minilm-l6", capsys)
    assert not any("induction" in has for has in labels.values())
    assert "previous-token" in labels["0.2"]


@pytest.mark.parametrize("name", NAMES)
def test_capture_equals_eager(name: str, pulled: None, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    assert run(["capture", TEXT, "--model", name, "-o", str(path), "--quiet"]) == 0
    arrays = load_file(path)
    theirs = tiny.eager(resolve(name).directory, arrays["input_ids"][None])
    for layer, weights in enumerate(theirs.attentions):
        assert (arrays[f"attention.{layer}"] - weights[0]).abs().max() <= 5e-5


@pytest.mark.parametrize("name", NAMES)
def test_verify_holds(name: str, pulled: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--model", name, "--format", "json", "--quiet"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"]
    assert max(layer["max_abs_attention"] for layer in document["layers"]) <= 5e-5


def test_blocks_change_nothing(pulled: None) -> None:
    model = api.load("smollm2-135m-instruct")
    ids = torch.randint(1000, 40000, (200,), generator=torch.Generator().manual_seed(3)).tolist()
    whole = model.capture_ids(ids)
    model.set_block_rows(32)
    for layer, weights in model.capture_ids(ids).attention.items():
        assert (weights - whole[layer]).abs().max() <= 1e-5
