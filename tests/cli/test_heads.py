"""`attnscope heads`, from the command line's edge and from Python."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import attnscope
from attnscope.api import Model
from attnscope.cli.app import run
from attnscope.scoring import scan as scanning
from attnscope.scoring.roles import ROLES
from attnscope.scoring.scan import scan
from tests import tiny

pytestmark = pytest.mark.usefixtures("shared_cache")
Checkpoint = Callable[[str], Path]
TEN = "the cat sang a song , the dog sang ."
FIFTEEN = "The chef dropped the glass bowl on the tile floor because it was slippery ."


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The JSON that `heads` prints; it must hold nothing that JSON does not know."""
    assert run(["heads", *arguments, "--format", "json"]) == 0
    out, _ = capsys.readouterr()
    return dict(json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} in JSON")))


def by_place(found: dict[str, Any]) -> dict[tuple[int, int], dict[str, Any]]:
    return {(entry["layer"], entry["head"]): entry for entry in found["heads"]}


def raw(entry: dict[str, Any], role: str) -> float | None:
    return None if entry["scores"][role] is None else entry["scores"][role]["raw"]


def test_the_document_has_the_agreed_keys(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = str(checkpoint("llama-gqa"))
    found = document(capsys, FIFTEEN, "--model", directory)
    assert found["schema"] == "attnscope.heads/1"
    assert found["attnscope"] == attnscope.__version__
    assert found["texts"] == 1
    assert found["labels_from"] == "battery"
    model = found["model"]
    assert {**model, "parity": None} == {
        "id": directory, "family": "llama", "n_layers": 3, "n_heads": 4, "n_kv_heads": 2,
        "d_head": 8, "d_model": 32, "causal": True, "dtype": "float32", "parity": None,
    }  # fmt: skip
    assert 0 <= model["parity"]["max_abs_attention"] <= 1e-5
    assert {"seed", "dtype", "device", "bos", "block_rows", "thresholds"} <= set(found["settings"])
    assert [(e["layer"], e["head"]) for e in found["heads"]] == [
        (layer, head) for layer in range(3) for head in range(4)
    ]
    for entry in found["heads"]:
        assert {
            "layer", "head", "kv_head", "labels", "rests_on", "scores", "battery", "live_mass",
            "entropy", "distance", "top_keys", "random_tokens", "resting", "reach",
        } <= set(entry)  # fmt: skip
        assert entry["kv_head"] == entry["head"] // 2
        assert set(entry["scores"]) == set(entry["battery"]) == set(ROLES)
        assert entry["scores"]["next_token"] is None  # causal: does not apply
        assert entry["scores"]["coreference"] is None
        for scores in (entry["scores"], entry["battery"]):
            for numbers in filter(None, scores.values()):
                assert set(numbers) == {
                    "raw", "chance", "lift", "low", "high", "n",
                    "bound", "sink_free", "sink_free_chance", "live_mass",
                }  # fmt: skip
        alone, many = entry["scores"]["current_token"], entry["battery"]["current_token"]
        for name in ("low", "high", "bound"):
            assert alone[name] is None  # one text: no interval
            assert many[name] <= many["lift"] or name == "high"


@pytest.mark.parametrize("name", ["llama-gqa", "bert", "gpt2"])
def test_scores_are_those_of_eager_attention(
    name: str, checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each role by its definition, from transformers' own weights."""
    directory = checkpoint(name)
    found = document(capsys, TEN, "--model", str(directory), "--no-battery")
    ids = [token["id"] for token in found["tokens"]]
    special = np.array([token["special"] for token in found["tokens"]])
    weights = torch.cat(tiny.eager(directory, torch.tensor([ids])).attentions).double().numpy()
    n, causal = len(ids), found["model"]["causal"]
    punctuation = np.array([t["text"].strip("·") in (",", ".") for t in found["tokens"]])
    first = np.arange(n) == 0
    apart = np.arange(n)[None, :] - np.arange(n)[:, None]  # key - query
    seen = apart <= 0 if causal else np.ones((n, n), bool)
    same = (np.array(ids)[:, None] == np.array(ids)[None, :]) & ~special[:, None] & ~special
    earlier = same & (apart < 0)
    rows = np.ones(n, bool)
    targets = {
        "previous_token": (apart == -1, np.arange(n) >= 2),
        "second_previous": (apart == -2, np.arange(n) >= 3),
        "current_token": (apart == 0, rows),
        "first_token": (np.broadcast_to(first, (n, n)), ~first),
        "special_token": (np.broadcast_to(special & ~first, (n, n)), ~special),
        "punctuation": (np.broadcast_to(punctuation, (n, n)), ~punctuation),
        "duplicate_token": (earlier if causal else same & (apart != 0), rows),
        "induction": (np.roll(earlier, 1, axis=1), rows),
    }
    if not causal:
        targets["next_token"] = (apart == 1, rows)
    for role, (keys, asked) in targets.items():
        wanted = keys & seen
        asked = asked & wanted.any(1)
        for (layer, head), entry in by_place(found).items():
            if not asked.any():
                assert entry["scores"][role] is None, role
                continue
            share = (weights[layer, head] * wanted).sum(1)[asked].mean()
            chance = (wanted.sum(1) / seen.sum(1))[asked].mean()
            numbers = entry["scores"][role]
            assert numbers["n"] == asked.sum(), role
            assert numbers["raw"] == pytest.approx(share, abs=1e-5), role
            assert numbers["chance"] == pytest.approx(chance, abs=1e-6), role
            assert numbers["lift"] == pytest.approx((share - chance) / (1 - chance), abs=1e-4)
    for (layer, head), entry in by_place(found).items():
        mine = weights[layer, head][~special]
        entropy = -(mine * np.log(np.clip(mine, 1e-30, None))).sum(1).mean()
        assert entry["entropy"] == pytest.approx(entropy, abs=1e-4)
        distance = (mine * np.abs(apart)[~special]).sum(1).mean()
        assert entry["distance"] == pytest.approx(distance, abs=1e-4)
        resting = weights[layer, head][~special & ~first][:, special | first].sum(1).mean()
        assert entry["live_mass"] == pytest.approx(1 - resting, abs=1e-5)
        top = entry["top_keys"][0]
        received = mine.mean(0)
        assert top["weight"] == pytest.approx(received.max(), abs=1e-5)
        assert found["tokens"][top["index"]]["text"] == top["text"]


@pytest.mark.parametrize(
    ("name", "side"),
    [("bert", "left"), ("bert", "right"), ("bert", None), ("llama-mqa", None), ("gpt2", "left")],
)
def test_a_file_scores_as_its_lines_alone(
    name: str,
    side: str | None,
    checkpoint: Checkpoint,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever side the tokenizer pads on, and if it has nothing to pad with."""
    directory = Path(shutil.copytree(checkpoint(name), tmp_path / "it"))
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    settings.pop("pad_token", None)
    if side is not None:
        settings |= {"padding_side": side, "pad_token": "[PAD]" if name == "bert" else "<s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    path = tmp_path / "texts.txt"
    path.write_text(f"{TEN}\n{FIFTEEN}\n")
    both = document(capsys, "-f", str(path), "-m", str(directory), "--no-battery")
    alone = [
        document(capsys, text, "-m", str(directory), "--no-battery") for text in (TEN, FIFTEEN)
    ]
    assert both["texts"] == 2
    assert "tokens" not in both
    assert len(alone[0]["tokens"]) < len(alone[1]["tokens"])
    for place, entry in by_place(both).items():
        for role, numbers in entry["scores"].items():
            parts = [
                part for one in alone if (part := by_place(one)[place]["scores"][role]) is not None
            ]
            if numbers is None:
                assert parts == []
                continue
            n = sum(part["n"] for part in parts)
            assert numbers["n"] == n
            for key in ("raw", "chance"):
                expected = sum(part[key] * part["n"] for part in parts) / n
                assert numbers[key] == pytest.approx(expected, abs=1e-6), (place, role, key)


def _sums(model: Model, texts: list[str]) -> Any:
    return scan(model, [model.reader.read(text) for text in texts])


@pytest.mark.parametrize("name", ["bert", "llama-gqa"])
def test_neither_the_order_of_texts_nor_the_batch_matters(
    name: str, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = attnscope.load(str(checkpoint(name)))
    texts = [TEN, FIFTEEN, "the cat", FIFTEEN + " the dog .", "a song"]
    together = _sums(model, texts)
    order = [3, 1, 4, 0, 2]
    shuffled = _sums(model, [texts[n] for n in order])
    monkeypatch.setattr(scanning, "BATCH_TOKENS", 1)
    one_by_one = _sums(model, texts)
    for other in (shuffled, one_by_one.take(order)):
        np.testing.assert_array_equal(together.rows[order], other.rows)
        np.testing.assert_allclose(together.raw[order], other.raw, atol=2e-5)
        np.testing.assert_allclose(together.chance[order], other.chance, atol=1e-6)


def test_the_size_of_a_block_does_not_matter(checkpoint: Checkpoint) -> None:
    model = attnscope.load(str(checkpoint("mistral-window")))
    whole = model.heads([TEN, FIFTEEN])
    model.set_block_rows(3)
    blocked = model.heads([TEN, FIFTEEN])
    for role in whole.scores:
        np.testing.assert_allclose(
            whole.scores[role].raw, blocked.scores[role].raw, atol=1e-6, equal_nan=True
        )
    np.testing.assert_allclose(whole.entropy, blocked.entropy, atol=1e-5)
    np.testing.assert_allclose(whole.distance, blocked.distance, atol=1e-5)


def test_permuting_heads_permutes_results(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Key/value groups change places with their query heads; the network computes the same."""
    source = checkpoint("llama-gqa")
    directory = Path(shutil.copytree(source, tmp_path / "it"))
    tensors = load_file(directory / "model.safetensors")
    order = [3, 2, 1, 0]
    for key, tensor in tensors.items():
        if "q_proj" in key:
            tensors[key] = tensor.view(4, 8, 32)[order].reshape(32, 32).contiguous()
        elif "k_proj" in key or "v_proj" in key:
            tensors[key] = tensor.view(2, 8, 32).flip(0).reshape(16, 32).contiguous()
        elif "o_proj" in key:
            tensors[key] = tensor.view(32, 4, 8)[:, order].reshape(32, 32).contiguous()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    before = attnscope.load(str(source)).heads(FIFTEEN)
    after = attnscope.load(str(directory)).heads(FIFTEEN)
    for role, scores in before.scores.items():
        np.testing.assert_allclose(
            scores.raw[:, order], after.scores[role].raw, atol=2e-5, equal_nan=True
        )
    for layer in range(3):
        assert [before.labels[layer][h].labels for h in order] == [
            found.labels for found in after.labels[layer]
        ]


def test_the_same_command_gives_the_same_answer(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [TEN, "-m", str(checkpoint("gpt2")), "--seed", "3"]
    first = document(capsys, *arguments)
    assert document(capsys, *arguments) == first  # from the cache
    assert document(capsys, *arguments, "--refresh") == first
    assert first["settings"]["seed"] == 3
    other = document(capsys, TEN, "-m", str(checkpoint("gpt2")), "--seed", "4")
    assert other["heads"][0]["scores"] == first["heads"][0]["scores"]
    assert other["heads"][0]["battery"] != first["heads"][0]["battery"]


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_encoders_get_no_induction_label(
    name: str, checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, FIFTEEN, "-m", str(checkpoint(name)))
    labels = {label for entry in found["heads"] for label in entry["labels"]}
    assert "coreference" not in labels
    if name == "bert":
        assert "induction" not in labels
        assert all(entry["scores"]["next_token"] is not None for entry in found["heads"])


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_one_token_has_no_labels_and_no_nan(
    name: str, checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = str(checkpoint(name))
    found = document(capsys, "the", "-m", directory, "--no-battery")
    general = document(capsys, "the", "-m", directory)
    other = document(capsys, FIFTEEN, "-m", directory)
    for one, longer in zip(general["heads"], other["heads"], strict=True):
        assert one["labels"] == longer["labels"]  # the battery's, whatever the text
        assert one["battery"] == longer["battery"]
    for one, alone in zip(general["heads"], found["heads"], strict=True):
        assert one["scores"] == alone["scores"]
    if name == "gpt2":
        assert len(found["tokens"]) == 1
        assert all(entry["labels"] == [] for entry in found["heads"])
        assert all(entry["scores"]["current_token"]["raw"] == 1.0 for entry in found["heads"])
        assert all(entry["scores"]["current_token"]["lift"] is None for entry in found["heads"])
        assert all(entry["scores"]["first_token"] is None for entry in found["heads"])
    assert run(["heads", "the", "-m", str(checkpoint(name)), "--all"]) == 0
    assert "nan" not in capsys.readouterr().out.lower()


def test_a_table_says_it_first_and_fits(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    directory = str(checkpoint("llama-gqa"))
    assert run(["heads", FIFTEEN, "-m", directory, "--all"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == ""
    assert directory in lines[0]
    assert "no BOS" in out
    assert "What the heads do" in lines
    assert all(len(line) <= 80 for line in lines if directory not in line)
    shown = {line.split()[0] for line in lines if re.match(r"  \d\.\d  ", line)}
    assert shown == {f"{layer}.{head}" for layer in range(3) for head in range(4)}
    assert "One text is weak evidence" in " ".join(out.split())


def test_csv_has_a_row_per_head_and_agrees_with_json(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [TEN, "-m", str(checkpoint("bert"))]
    found = by_place(document(capsys, *arguments))
    assert run(["heads", *arguments, "-F", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 12
    for row in rows:
        entry = found[int(row["layer"]), int(row["head"])]
        assert float(row["previous_token_raw"]) == pytest.approx(raw(entry, "previous_token"))
        assert row["labels"] == " ".join(entry["labels"])
        assert row["coreference_raw"] == ""


def test_markdown_has_a_row_per_head(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["heads", "a | b | a", "-m", str(checkpoint("gpt2")), "-F", "markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 12
    cells = [len(re.findall(r"(?<!\\)\|", line)) for line in lines]
    assert set(cells) == {cells[0]}  # a bar in a token is no cell's end


def test_python_gives_what_the_command_gives(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = str(checkpoint("gpt2"))
    found = document(capsys, TEN, "-m", directory)
    result = attnscope.load(directory).heads(TEN)
    assert json.loads(json.dumps(result.to_json())) == found
    assert len(result.to_frame()) == 12


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
def test_the_map_of_heads(ending: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = tmp_path / f"map{ending}"
    assert run(["heads", TEN, "-m", str(checkpoint("gpt2")), "--heatmap", str(path), "-q"]) == 0
    start = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[ending]
    assert path.read_bytes().startswith(start)
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_file()] == [path.name]


# Options that were used wrongly


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["heads"], 2, "one text"),
        (["heads", "x", "-f", "y"], 2, "not both"),
        (["heads", ""], 2, "empty"),
        (["heads", " \n\t"], 2, "empty"),
        (["heads", "the cat", "--seed", "-1"], 2, "--seed"),
        (["heads", "the cat", "--format", "jsn"], 2, "jsn"),
        (["heads", "the cat", "--dtype", "int8"], 2, "int8"),
        (["heads", "the cat", "--device", "nowhere"], 2, "nowhere"),
        (["heads", "the cat", "--heatmap", "x.gif"], 2, ".png"),
        (["heads", "the cat", "-o", "no-such-place/x"], 1, "no-such-place"),
        (["heads", "the cat", "-o", "."], 1, "directory"),
        (["heads", "the cat", "--pair", "the dog"], 2, "--pair"),
        (["heads", "the cat", "--bogus"], 2, "--bogus"),
        (["heads", "the cat " * 80], 2, "128 positions"),
        (["heads", "the cat", "--seed", "99999999999999999999999"], 2, "seed"),
    ],
)
def test_used_wrongly(
    arguments: list[str],
    code: int,
    told: str,
    checkpoint: Checkpoint,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([*arguments, "--model", str(checkpoint("gpt2"))]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert 1 <= len(err.splitlines()) <= 2
    assert "Traceback" not in err
    assert "Unexpected" not in err


def test_a_long_text_is_cut_when_asked_and_said_so(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["heads", "the cat " * 80, "-m", str(checkpoint("gpt2")), "--truncate"]
    assert run([*arguments, "-F", "json"]) == 0
    out, err = capsys.readouterr()
    assert len(json.loads(out)["tokens"]) == 128
    assert "128 positions" in err


def test_models_that_are_not_there(
    tmp_path: Path, checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    misspelt = str(checkpoint("gpt2"))[:-1]
    for name in ("no-such-model", misspelt, str(tmp_path)):
        assert run(["heads", "the cat", "-m", name]) == 3
        out, err = capsys.readouterr()
        assert out == ""
        assert name in err
        assert len(err.splitlines()) <= 2


def test_an_output_is_whole_or_not_there(
    checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    path.write_text("before")
    assert run(["heads", "", "-m", str(checkpoint("gpt2")), "-o", str(path)]) == 2
    assert path.read_text() == "before"
    capsys.readouterr()
    assert run(["heads", TEN, "-m", str(checkpoint("gpt2")), "-F", "json", "-o", str(path)]) == 0
    assert capsys.readouterr().out == ""
    assert json.loads(path.read_text())["schema"] == "attnscope.heads/1"
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_file()] == ["out.json"]


def test_induction_settings_need_two_tokens(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    """The battery of a model with a few positions is shortened, and that is said."""
    found = document(capsys, TEN, "-m", str(checkpoint("mistral-window")))
    assert found["settings"]["battery"]["length"] == 3
    assert any("50 to 3" in note for note in found["notes"])
