"""`attnscope capture`: arrays that equal transformers' eager attention, in files that are whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor

import attnscope
from attnscope.cli.app import run
from tests import tiny

Checkpoint = Callable[[str], Path]
TEXT = (  # 40 tokens or more on every tokenizer: longer than any window
    "The chef dropped the glass bowl on the tile floor because it was slippery. "
    "the cat the cat the dog , and then she sang a song about the floor . café 東京"
)


def arrays(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What a file of either kind holds, and its document."""
    if path.suffix == ".npz":
        with np.load(path) as stored:
            found = {name: torch.from_numpy(stored[name]) for name in stored if name != "meta"}
            return found, json.loads(str(stored["meta"]))
    with safe_open(path, "pt") as stored:
        found = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        return found, json.loads(stored.metadata()["meta"])


def capture(path: Path, directory: Path, *arguments: str) -> tuple[dict[str, Tensor], Any]:
    assert run(["capture", TEXT, "-m", str(directory), "-o", str(path), "-q", *arguments]) == 0
    return arrays(path)


@pytest.mark.parametrize(
    "name",
    ["bert", "gpt2", "llama-mha", "llama-gqa", "llama-mqa", "mistral-window", "qwen2-window-on",
     "granite", "llama-llama3", "llama-yarn"],
)  # fmt: skip
def test_weights_equal_eager_attention(name: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    directory = checkpoint(name)
    found, meta = capture(tmp_path / "w.safetensors", directory)
    ids = found["input_ids"]
    assert ids.dtype == torch.int64
    assert len(ids) >= 40
    theirs = tiny.eager(directory, ids[None]).attentions
    assert set(found) == {"input_ids", *(f"attention.{layer}" for layer in range(len(theirs)))}
    for layer, weights in enumerate(theirs):
        mine = found[f"attention.{layer}"]
        assert mine.dtype == torch.float32
        assert mine.shape == (4, len(ids), len(ids))
        assert (mine - weights[0]).abs().max() <= 1e-5, layer
        assert (mine.sum(-1) - 1).abs().max() <= 1e-6
        if meta["model"]["causal"]:
            assert not mine.triu(1).any()


@pytest.mark.parametrize("ending", [".safetensors", ".npz", ".NPZ", ".SafeTensors"])
def test_both_kinds_of_file(ending: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    directory = checkpoint("gpt2")
    path = tmp_path / f"w{ending}"
    assert run(["capture", "the cat", "-m", str(directory), "-o", str(path), "-q"]) == 0
    found, meta = arrays(path.rename(tmp_path / f"w{ending.lower()}"))
    assert meta["schema"] == "attnscope.capture/1"
    assert {"attnscope", "model", "settings", "tokens"} <= set(meta)
    assert [token["id"] for token in meta["tokens"]] == found["input_ids"].tolist()
    assert torch.equal(found["attention.1"], attnscope.load(str(directory)).capture("the cat")[1])


def test_repeated_words_keep_their_places(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    arguments = ["capture", "the cat the cat the", "-m", str(checkpoint("gpt2")), "-o", str(path)]
    assert run([*arguments, "-q"]) == 0
    found, meta = arrays(path)
    assert found["attention.0"].shape == (4, 5, 5)
    assert [token["text"] for token in meta["tokens"]] == ["the", "·cat", "·the", "·cat", "·the"]


def test_selected_heads_say_which_they_are(checkpoint: Checkpoint, tmp_path: Path) -> None:
    directory = checkpoint("llama-gqa")
    whole, _ = capture(tmp_path / "whole.npz", directory)
    some, _ = capture(tmp_path / "some.npz", directory, "--heads", "2.3,L0H1,2:0")
    assert set(some) == {"input_ids", "attention.0", "attention.2", "heads.0", "heads.2"}
    assert some["heads.0"].tolist() == [1]
    assert some["heads.2"].tolist() == [0, 3]
    assert some["heads.2"].dtype == torch.int64
    assert torch.equal(some["attention.2"], whole["attention.2"][[0, 3]])
    layers, _ = capture(tmp_path / "layers.npz", directory, "--layers", "0,2")
    assert set(layers) == {"input_ids", "attention.0", "attention.2"}
    assert torch.equal(layers["attention.2"], whole["attention.2"])
    both, _ = capture(tmp_path / "both.npz", directory, "--layers", "1-2", "--heads", "0.1,1.1")
    assert set(both) == {"input_ids", "attention.1", "heads.1"}


def test_the_share_of_a_learned_sink(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Rows keep what the sink leaves: they are never brought back to 1."""
    directory = checkpoint("gpt_oss")
    extra = "sink,query,key"
    found, _ = capture(tmp_path / "w.npz", directory, "--include", extra, "--heads", "1.1,1.2")
    share, weights = found["sink.1"], found["attention.1"]
    assert share.shape == weights.shape[:2] == (2, len(found["input_ids"]))
    torch.testing.assert_close(weights.sum(-1) + share, torch.ones_like(share))
    attention = attnscope.load(str(directory)).seats[1].attention
    key = found["key.1"].repeat_interleave(2, 0)[[1, 2]]
    scores = found["query.1"] @ key.mT * attention.spec.scaling
    scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf)
    sink = attention.sink[[1, 2]][:, None, None].expand(-1, scores.shape[1], 1)
    by_hand = torch.cat((scores, sink), dim=-1).softmax(-1)[..., -1]
    assert (share - by_hand).abs().max() <= 1e-5
    assert share.min() > 0


def test_no_learned_sink_no_share(
    checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = str(checkpoint("bert"))
    words = ["capture", "the cat", "-o", str(tmp_path / "w.npz"), "--include", "sink"]
    assert run([*words, "--model", directory]) == 2
    assert "learned sink" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["llama-gqa", "bert", "gpt2"])
def test_what_stands_around_the_weights(name: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    """z is weights · value by key/value head; the weights come back from query and key."""
    directory = checkpoint(name)
    extra = "z,contribution_norm,query,key,value"
    found, meta = capture(tmp_path / "w.safetensors", directory, "--include", extra)
    model = attnscope.load(str(directory))
    shared = model.shape.n_heads // model.shape.n_kv_heads
    assert meta["settings"]["include"] == extra.split(",")
    n = len(found["input_ids"])
    for layer in range(3):
        weights, value = found[f"attention.{layer}"], found[f"value.{layer}"]
        assert value.shape == (4 // shared, n, 8)
        z = weights @ value.repeat_interleave(shared, 0)
        assert found[f"z.{layer}"].shape == (4, n, 8)
        assert (found[f"z.{layer}"] - z).abs().max() <= 2e-5
        key = found[f"key.{layer}"].repeat_interleave(shared, 0)
        scores = found[f"query.{layer}"] @ key.mT * model.specs[layer].scaling
        if model.shape.causal:
            later = torch.ones(n, n, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        assert (scores.softmax(-1) - weights).abs().max() <= 2e-5
        output = model.seats[layer].attention.W_O.weight
        for head in range(4):
            part = z[head] @ output[:, 8 * head : 8 * head + 8].T
            norm = found[f"contribution_norm.{layer}"][head]
            torch.testing.assert_close(norm, part.norm(dim=-1), atol=1e-4, rtol=1e-4)


def test_it_says_what_it_wrote(
    checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "w.npz"
    assert run(["capture", "the cat", "-m", str(checkpoint("gpt2")), "-o", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "12 heads" in err
    assert "2 tokens" in err
    assert str(path) in " ".join(err.split())


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["-o", "w.txt"], 2, ".safetensors or .npz"),
        (["-o", "nowhere/w.npz"], 1, "nowhere"),
        ([], 2, "--output"),
        (["-o", "w.npz", "--include", "zz"], 2, "zz"),
        (["-o", "w.npz", "--heads", "5.5"], 2, "Unknown head '5.5'"),
        (["-o", "w.npz", "--heads", "0.4"], 2, "heads 0-3"),
        (["-o", "w.npz", "--heads", "five"], 2, "five"),
        (["-o", "w.npz", "--heads", "0.1,"], 2, "''"),
        (["-o", "w.npz", "--layers", "3"], 2, "layers 0-2"),
        (["-o", "w.npz", "--layers", "2-1"], 2, "2-1"),
        (["-o", "w.npz", "--layers", "a"], 2, "'a'"),
        (["-o", "w.npz", "--layers", "0", "--heads", "1.1"], 2, "leave no head"),
    ],
)
def test_used_wrongly(
    arguments: list[str],
    code: int,
    told: str,
    checkpoint: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    assert run(["capture", "the cat", "-m", str(checkpoint("gpt2")), *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert len(err.splitlines()) <= 2
    assert "Unexpected" not in err
    assert list(work.iterdir()) == []


def test_a_write_that_fails_leaves_nothing(
    checkpoint: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import safetensors.torch

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"before")
    assert run(["capture", "the cat", "-m", str(checkpoint("gpt2")), "-o", str(path)]) == 1
    assert "No space left" in capsys.readouterr().err
    assert path.read_bytes() == b"before"
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_file()] == [path.name]


def test_too_much_is_refused_before_it_starts(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr("attnscope.experiments.room.free_memory", lambda: 1000)
    path = tmp_path / "w.npz"
    assert run(["capture", TEXT, "-m", str(checkpoint("gpt2")), "-o", str(path)]) == 1
    err = capsys.readouterr().err
    assert "12 heads" in err
    assert "KiB" in err
    assert not path.exists()


def test_one_token_has_all_its_weight_on_itself(checkpoint: Checkpoint) -> None:
    captured = attnscope.load(str(checkpoint("gpt2"))).capture("the")
    for layer in range(3):
        assert captured[layer].tolist() == [[[1.0]]] * 4


def test_python_selects_as_the_command_does(checkpoint: Checkpoint) -> None:
    model = attnscope.load(str(checkpoint("gpt2")))
    whole = model.capture("the cat sang")
    some = model.capture("the cat sang", layers="1", heads="L1H2", include=["z"])
    assert list(some) == [1]
    assert torch.equal(some[1], whole[1][[2]])
    assert some.extras["z.1"].shape == (1, 3, 8)
    assert len(whole) == 3
