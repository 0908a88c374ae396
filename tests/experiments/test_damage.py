"""Numbers that are not finite are told, never shown."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from attnscope.cli.app import run
from tests import tiny


@pytest.mark.parametrize(
    "arguments", [["heads"], ["heads", "-F", "json"], ["show", "--head", "1.1"]]
)
def test_a_damaged_row_of_the_embedding(
    arguments: list[str],
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = tmp_path / "damaged"
    shutil.copytree(checkpoint("llama-gqa"), other)
    tensors = load_file(other / "model.safetensors")
    word = tiny.byte_tokenizer()("zqzq")["input_ids"][0]
    tensors["embed_tokens.weight"][word] = float("nan")
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    assert run([*arguments, "zqzq", "-m", str(other)]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "not finite" in err


def test_a_tiny_text_alone_makes_no_induction_heads(
    checkpoint: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["heads", "the the", "-m", str(checkpoint("llama-gqa")), "--no-battery"]) == 0
    out = capsys.readouterr().out
    assert "induction" not in out
    assert "duplicate-token" not in out
    assert "Labels rest on the given texts alone." in out
