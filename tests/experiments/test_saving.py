"""Saving a converted model: in which number format, and what a full disk is told as."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM

import attnscope
from attnscope.errors import RunError
from attnscope.experiments import held_out
from attnscope.experiments.conversion import build
from attnscope.render.compare import compare_table
from tests import tiny


@pytest.fixture(autouse=True)
def _few_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "SEQUENCES", 3)
    monkeypatch.setattr(held_out, "CONTROLS", 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_checkpoint_is_saved_in_its_own_number_format(dtype: torch.dtype, tmp_path: Path) -> None:
    first = tiny.save(tiny.CONFIGS["qwen3"](), tmp_path / "first", causal_lm=True)
    AutoModelForCausalLM.from_pretrained(first, dtype=dtype).save_pretrained(first)
    model, place = attnscope.load(str(first), logits=True), tmp_path / "converted"
    assert model.dtype == torch.float32
    found = model.compare(convert=1, methods="mean", passages=2, save=place)
    name = str(dtype).removeprefix("torch.")
    assert found.to_json()["settings"]["conversion"]["saved_dtype"] == name
    assert f"the weights in {name}." in " ".join(compare_table(found, 200).plain.split())
    config = json.loads((place / "config.json").read_text())
    assert config.get("dtype", config.get("torch_dtype")) == name
    with safe_open(place / "model.safetensors", "pt") as file:
        assert {file.get_tensor(key).dtype for key in file.keys()} == {dtype}  # noqa: SIM118
    again = attnscope.load(str(place))
    for seat, variant in zip(again.seats, build(model, 1, "mean").layers, strict=True):
        for ours, theirs in zip(seat.attention.parameters(), variant.parameters(), strict=True):
            assert torch.equal(ours, theirs.to(dtype).float())


def test_what_came_from_a_gguf_file_is_saved_in_float32(tmp_path: Path) -> None:
    first = tiny.save(tiny.CONFIGS["llama-gqa"](), tmp_path / "first", causal_lm=True)
    AutoModelForCausalLM.from_pretrained(first, dtype=torch.bfloat16).save_pretrained(first)
    model = attnscope.load(str(first), logits=True)
    model.source = replace(model.source, kind="gguf")
    save = tmp_path / "converted"
    found = model.compare(convert=1, methods="mean", passages=2, save=save).conversion
    assert found is not None
    assert found.settings["saved_dtype"] == "float32"


@pytest.mark.parametrize(
    "error",
    [
        SafetensorError("I/O error: No space left on device (os error 28)"),
        OSError(28, "No space left on device", "/somewhere/.made-abc/model.safetensors"),
    ],
)
def test_a_full_disk_is_told_plainly(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tiny.save(tiny.CONFIGS["llama-gqa"](), tmp_path / "first", causal_lm=True)
    model = attnscope.load(str(first), logits=True)

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", fail)
    with pytest.raises(RunError, match=r"^Cannot write .*/made: No space left on device\.$"):
        model.compare(convert=1, methods="mean", passages=1, save=tmp_path / "made")
    assert [entry.name for entry in tmp_path.iterdir()] == ["first"]
