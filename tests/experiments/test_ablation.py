"""What switching heads off costs: the arithmetic, the control sets, texts and corpora."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from attnscope.api import Model, load
from attnscope.errors import UsageError
from attnscope.experiments.ablation import ablate
from attnscope.experiments.choose import choose
from attnscope.experiments.head_sets import control_sets, siblings
from attnscope.types import Head
from tests import tiny
from tests.planted_copying import planted_copier

TEXT = "the cat sang a song , the dog sang ."
LONGER = "The chef dropped the glass bowl on the tile floor because it was slippery ."


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tiny.CONFIGS["llama-gqa"](), tmp_path_factory.mktemp("lm"), causal_lm=True)


@pytest.fixture(scope="module")
def model(directory: Path) -> Model:
    return load(str(directory), logits=True)


def test_the_effect_is_transformers_loss_without_the_heads(model: Model, directory: Path) -> None:
    found = model.ablate([TEXT, LONGER], heads="1.0,1.3,2.1", method="zero", controls=0)
    theirs: Any = AutoModelForCausalLM.from_pretrained(directory).eval()
    width = model.shape.d_head

    def logits(text: str) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.tensor([[token.id for token in model.reader.read(text).tokens]])
        with torch.no_grad():
            return theirs(ids).logits[0, :-1].double().log_softmax(-1), ids[0, 1:]

    clean = [logits(text) for text in (TEXT, LONGER)]
    with torch.no_grad():
        for layer, head in ((1, 0), (1, 3), (2, 1)):
            output = theirs.model.layers[layer].self_attn.o_proj
            output.weight[:, head * width : (head + 1) * width] = 0
    without = [logits(text) for text in (TEXT, LONGER)]

    def loss(found: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
        each = [-chances.gather(-1, ids[:, None])[:, 0] for chances, ids in found]
        return float(torch.cat(each).mean())  # over all tokens of both texts

    kl = torch.cat(
        [(a.exp() * (a - b)).sum(-1) for (a, _), (b, _) in zip(clean, without, strict=True)]
    )
    [effect] = found.effects
    assert effect.clean == pytest.approx(loss(clean), abs=1e-4)
    assert effect.ablated == pytest.approx(loss(without), abs=1e-4)
    assert effect.delta == pytest.approx(effect.ablated - effect.clean, abs=1e-9)
    assert effect.kl == pytest.approx(float(kl.mean()), abs=1e-4)
    assert effect.low <= effect.delta <= effect.high
    assert effect.control is None


def test_many_sets_are_as_each_alone(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = model.ablate(LONGER, heads="0.1,2.2", controls=6)
    monkeypatch.setattr("attnscope.experiments.ablation.BATCH_TOKENS", 40)
    parted = model.ablate(LONGER, heads="0.1,2.2", controls=6)
    for one, other in zip(whole.effects, parted.effects, strict=True):
        assert one.delta == pytest.approx(other.delta, abs=1e-4)
        assert one.control is not None
        assert other.control is not None
        assert one.control.mean == pytest.approx(other.control.mean, abs=1e-4)


def test_control_sets_match_ours_by_layer_and_hold_none_of_it(model: Model) -> None:
    heads = [Head(0, 1), Head(2, 0), Head(2, 3)]
    found, overlap = control_sets(model, heads, 3, seed=0)
    assert not overlap
    assert len(set(found)) == len(found) == 3
    for drawn in found:
        assert [head.layer for head in drawn] == [0, 2, 2]
        assert not set(drawn) & set(heads)
    assert found == control_sets(model, heads, 3, seed=0)[0]
    everything, _ = control_sets(model, heads, 50, seed=0)
    assert len(everything) == 3  # three others in layer 0, one pair in layer 2


def test_large_sets_are_drawn_without_listing_all(tmp_path: Path) -> None:
    model = load("demo-llama", logits=True)
    heads = [Head(layer, head) for layer in range(3) for head in range(3)]
    found, overlap = control_sets(model, heads, 20, seed=1)
    assert not overlap
    assert len(set(found)) == 20
    assert all(len(drawn) == 9 and not set(drawn) & set(heads) for drawn in found)


def test_a_layer_without_enough_others_overlaps_and_a_whole_one_has_no_control(
    model: Model,
) -> None:
    three = [Head(1, 0), Head(1, 1), Head(1, 2)]
    found, overlap = control_sets(model, three, 20, seed=0)
    assert overlap
    assert len(found) == 3  # of four sets of three, all but ours
    assert set(three) not in [set(drawn) for drawn in found]
    assert control_sets(model, [*three, Head(1, 3)], 20, seed=0) == ([], True)
    result = model.ablate(TEXT, layer="1")
    assert result.to_json()["control"] is None
    assert any("no other set" in note for note in result.notes)


def test_siblings_are_named(model: Model) -> None:
    assert siblings(model, [Head(0, 0), Head(1, 2), Head(1, 3)]) == {
        Head(0, 0): (Head(0, 1),),
        Head(1, 2): (),
        Head(1, 3): (),
    }
    note = " ".join(model.ablate(TEXT, heads="0.0", controls=1).notes)
    assert "0.0 with 0.1" in note


def test_the_document_has_the_agreed_keys(model: Model) -> None:
    document = model.ablate(TEXT, heads="0.0,1.2", controls=4, mode="frozen").to_json()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["schema"] == "attnscope.ablate/1"
    assert (document["heads"], document["method"], document["mode"]) == (
        ["0.0", "1.2"], "mean", "frozen",
    )  # fmt: skip
    [effect] = document["effects"]
    assert {"on", "clean", "ablated", "delta", "low", "high"} <= set(effect)
    assert effect["low"] is None  # one text
    assert set(document["control"]) == {"mean", "low", "high", "draws"}


def test_a_corpus_is_read_as_it_comes(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "c.txt"
    path.write_text(f"{TEXT}\n{LONGER}\n\nthe cat\n", encoding="utf-8")
    found = model.ablate(corpus=path, heads="1.1", controls=2)
    assert found.n_texts == 3
    alone = model.ablate([TEXT, LONGER, "the cat"], heads="1.1", controls=2)
    assert found.main.delta == pytest.approx(alone.main.delta)


def test_a_text_of_one_token_has_nothing_to_predict(model: Model) -> None:
    with pytest.raises(UsageError, match="no next token"):
        model.ablate("a", heads="0.0")


def test_heads_are_chosen_by_name_layer_and_label(tmp_path: Path, model: Model) -> None:
    assert choose(model, "1.2,0.1", None, "0") == [
        Head(0, 1), Head(1, 2), Head(0, 0), Head(0, 2), Head(0, 3),
    ]  # fmt: skip
    copier = load(str(planted_copier(tmp_path)), logits=True)
    assert choose(copier, None, "induction", None) == [Head(1, 0)]
    with pytest.raises(UsageError, match=r"No head of .* is labelled shifted-induction"):
        choose(copier, None, "shifted-induction", None)
    with pytest.raises(UsageError, match="Did you mean 'induction'"):
        choose(model, None, "inducton", None)
    with pytest.raises(UsageError, match="which heads"):
        choose(model, None, None, None)


def test_labels_of_the_battery_count_too() -> None:
    model = load("demo-gpt2", logits=True)
    assert choose(model, None, "previous-token", None) == [Head(0, 0)]


def test_what_is_not_there_is_refused(model: Model) -> None:
    for options, message in (
        ({"method": "half"}, "Unknown method 'half'"),
        ({"mode": "frozn"}, "Did you mean 'frozen'"),
    ):
        with pytest.raises(UsageError, match=message):
            model.ablate(TEXT, heads="0.0", **options)
    with pytest.raises(UsageError, match="Unknown head"):
        model.ablate(TEXT, heads="9.0")
    with pytest.raises(UsageError, match="no head to switch off"):
        ablate(model, [])


def test_a_text_counted_twice_changes_no_mean(model: Model) -> None:
    once, twice = (model.ablate([LONGER] * n, heads="2.0", controls=3) for n in (1, 2))
    assert once.main.delta == pytest.approx(twice.main.delta, abs=1e-6)
    assert np.isnan(once.main.low)
    assert twice.main.low == pytest.approx(twice.main.high, abs=1e-6)


def test_the_mean_is_over_other_texts(model: Model, checkpoint: Callable[[str], Path]) -> None:
    """`mean` adds one vector, whatever is read: two texts lose it alike."""
    from attnscope.attention.lens import Lens
    from attnscope.scoring.reference import mean_outputs, reference_texts

    other = reference_texts(model, 3, 20, seed=0)
    seen: list[torch.Tensor] = []
    model.run(other, Lens(recorders=(lambda layer, around: seen.append(around["z"]),)))
    wanted = torch.stack(seen)[:, :, :, 1:].mean((1, 3))  # (L, H, D), without the first token
    torch.testing.assert_close(mean_outputs(model, other, 2), wanted, atol=1e-5, rtol=1e-4)
