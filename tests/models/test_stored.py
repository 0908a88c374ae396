"""The same weights, stored every way that people store them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
)

from attnscope import api
from attnscope.errors import CheckpointError
from tests import tiny

IDS = torch.randint(5, tiny.VOCABULARY, (20,), generator=torch.Generator().manual_seed(2)).tolist()
Change = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


def _copy(source: Path, target: Path, change: Change) -> Path:
    shutil.copytree(source, target)
    weights = target / "model.safetensors"
    save_file(change(load_file(weights)), weights, metadata={"format": "pt"})
    return target


def _same(first: Path, second: Path) -> None:
    one, two = (api.load(str(path)).capture_ids(IDS) for path in (first, second))
    for layer in one:
        assert torch.equal(one[layer], two[layer])


def _prefixed(prefix: str) -> Change:
    return lambda tensors: {prefix + name: tensor for name, tensor in tensors.items()}


def _old_norm_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    def old(name: str) -> str:
        if "LayerNorm" not in name:
            return name
        return name.replace(".weight", ".gamma").replace(".bias", ".beta")

    return {old(name): tensor for name, tensor in tensors.items()}


def _old_buffers(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    mask = torch.ones(1, 1, 8, 8, dtype=torch.bool).tril()
    extra = {f"h.{n}.attn.bias": mask.clone() for n in range(3)}
    return tensors | extra | {f"h.{n}.attn.masked_bias": torch.tensor(-1e4) for n in range(3)}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("bert", _prefixed("bert.")),
        ("bert", _old_norm_names),
        ("bert", lambda t: _prefixed("bert.")(_old_norm_names(t))),
        ("bert", lambda t: t | {"embeddings.position_ids": torch.arange(128)[None]}),
        ("gpt2", _prefixed("transformer.")),
        ("gpt2", _old_buffers),
        ("llama-gqa", _prefixed("model.")),
        ("llama-gqa", lambda t: t | {"lm_head.weight": torch.zeros(tiny.VOCABULARY, 32)}),
    ],
    ids=["bert.", "gamma", "bert.gamma", "position_ids", "transformer.", "masks", "model.", "head"],
)
def test_names(
    name: str, change: Change, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    _same(checkpoint(name), _copy(checkpoint(name), tmp_path / "other", change))


@pytest.mark.parametrize(
    "kind",
    [AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoModelForQuestionAnswering],
)
def test_task_heads(kind: Any, tmp_path: Path) -> None:
    """A body inside a task's model; that of a masked LM has no pooler."""
    network = tiny.randomise(kind.from_config(tiny.CONFIGS["bert"]()))
    network.save_pretrained(tmp_path)
    tiny.wordpiece_tokenizer().save_pretrained(tmp_path)
    captured = api.load(str(tmp_path)).capture_ids(IDS)
    theirs = tiny.eager(tmp_path, torch.tensor([IDS]))
    for layer, weights in enumerate(theirs.attentions):
        assert (captured[layer] - weights[0]).abs().max() <= 1e-5


def test_pickled_weights(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    other = tmp_path / "bin"
    shutil.copytree(checkpoint("gpt2"), other)
    torch.save(load_file(other / "model.safetensors"), other / "pytorch_model.bin")
    (other / "model.safetensors").unlink()
    _same(checkpoint("gpt2"), other)


class _Hostile:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def test_a_pickle_runs_nothing(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    other, marker = tmp_path / "bin", tmp_path / "ran"
    shutil.copytree(checkpoint("gpt2"), other)
    (other / "model.safetensors").unlink()
    torch.save({"wte.weight": _Hostile(marker)}, other / "pytorch_model.bin")
    with pytest.raises(CheckpointError):
        api.load(str(other))
    assert not marker.exists()


@pytest.mark.parametrize("method", ["bitsandbytes", "gptq", "awq"])
def test_quantised_checkpoints_are_refused_by_name(
    method: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    other = tmp_path / "quantised"
    shutil.copytree(checkpoint("llama-gqa"), other)
    config = json.loads((other / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method, "bits": 4, "load_in_4bit": True}
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=method):
        api.load(str(other), device="cpu")


def test_an_adapter_names_its_base(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "someone/base-model", "peft_type": "LORA"})
    )
    with pytest.raises(CheckpointError, match="someone/base-model"):
        api.load(str(tmp_path))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_stored_dtype_is_not_the_one_used(
    dtype: torch.dtype, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    other = _copy(
        checkpoint("gpt2"), tmp_path / "half", lambda t: {n: x.to(dtype) for n, x in t.items()}
    )
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"dtype": str(dtype)[6:]}))
    model = api.load(str(other))
    assert model.describe()["dtype"] == "float32"
    assert model.parity.max_abs_attention <= 1e-5
    assert api.load(str(other), dtype="auto").describe()["dtype"] == str(dtype)[6:]


@pytest.mark.parametrize(("complete", "code"), [(True, 0), (False, 3)])
def test_a_tokenizer_with_code_runs_none_and_asks_nothing(
    complete: bool, code: int, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """tokenizer.json alone is data, and enough. Standard input says yes to everything."""
    other, marker = tmp_path / "coded", tmp_path / "ran"
    shutil.copytree(checkpoint("gpt2"), other)
    (other / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "TheirOwn", "auto_map": {"AutoTokenizer": [None, "own.TheirOwn"]}}
        )
    )
    if not complete:
        (other / "tokenizer.json").unlink()
    (other / "own.py").write_text(f"import os\nos.mkdir({str(marker)!r})\nclass TheirOwn: ...\n")
    done = subprocess.run(
        [sys.executable, "-m", "attnscope", "heads", "the cat", "-m", str(other), "-q"],
        input="y\n" * 9,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not marker.exists()
    assert "[y/N]" not in done.stdout + done.stderr
    assert done.returncode == code
    assert len(done.stderr.splitlines()) <= 2
