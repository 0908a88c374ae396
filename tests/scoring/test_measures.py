"""What stands beside the scores, by plain loops: reach, value norms, what each token receives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import attnscope
from attnscope.api import Capture, Model
from attnscope.scoring import scan as scanning
from attnscope.scoring.measures import PLACES, Reach, Received, ValueNorms
from attnscope.scoring.scan import scan

TEXTS = [
    "the cat sang a song , the dog sang .",
    "The chef dropped the glass bowl on the tile floor because it was slippery .",
    ". the floor",
]
NAMES = ["gpt2", "llama-gqa", "bert", "llama-biases"]


@pytest.fixture(scope="module")
def models(checkpoint: Callable[[str], Path]) -> dict[str, Model]:
    return {name: attnscope.load(str(checkpoint(name))) for name in NAMES}


@pytest.fixture(params=NAMES)
def model(request: pytest.FixtureRequest, models: dict[str, Model]) -> Model:
    return models[request.param]


def resting(captured: Capture) -> list[bool]:
    return [token.special or token.index == 0 for token in captured.tokens.tokens]


@pytest.mark.parametrize("tokens", [1, 2048])
def test_reach_is_where_half_of_the_live_mass_lies(
    tokens: int, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "BATCH_TOKENS", tokens)
    reach = Reach(model)
    scan(model, [model.reader.read(text) for text in TEXTS], watchers=[reach])
    mass = np.zeros((3, 4, 40))
    for text in TEXTS:
        captured = model.capture(text)
        parked = resting(captured)
        for head, weights in captured.heads():
            for query, token in enumerate(captured.tokens.tokens):
                for key in range(len(weights)):
                    if not token.special and not parked[key]:
                        at = head.layer, head.head, abs(query - key)
                        mass[at] += float(weights[query, key])
    found = reach.half()
    for layer in range(3):
        for head in range(4):
            whole, so_far, k = mass[layer, head].sum(), 0.0, -1
            while so_far < whole / 2:
                k += 1
                so_far += mass[layer, head, k]
            assert found[layer, head] == k


def test_reach_without_live_mass_is_none(models: dict[str, Model]) -> None:
    reach = Reach(models["gpt2"])
    scan(models["gpt2"], [models["gpt2"].reader.read("the")], watchers=[reach])
    assert np.isnan(reach.half()).all()


def _outputs(model: Model, layer: int) -> Tensor:
    """W_O of each query head, (H, D, C)."""
    attention = model.seats[layer].attention
    heads, width = attention.spec.n_heads, attention.spec.head_width
    basis = torch.eye(heads * width)
    with torch.no_grad():
        zero = attention.mix(torch.zeros(1, 1, heads * width))
        return (attention.mix(basis[None]) - zero)[0].reshape(heads, width, -1)


def test_value_norms_where_heads_rest(model: Model) -> None:
    """‖value · W_O‖ of each kind of key over that of all other keys, from the values themselves."""
    norms = ValueNorms(model)
    scan(model, [model.reader.read(text) for text in TEXTS], watchers=[norms])
    found = norms.ratios()
    assert set(found) == set(PLACES)
    kinds: dict[str, list[np.ndarray]] = {place: [] for place in (*PLACES, "elsewhere")}
    groups = model.shape.n_heads // model.shape.n_kv_heads
    for text in TEXTS:
        captured = model.capture(text, include=["value"])
        signs = captured.tokens.punctuation
        for n, token in enumerate(captured.tokens.tokens):
            place = "first-token" if n == 0 else "special-token" if token.special else (
                "punctuation" if signs[n] else "elsewhere")  # fmt: skip
            norm = np.zeros((3, 4))
            for layer in range(3):
                value = captured.extras[f"value.{layer}"]  # (G, T, D)
                output = _outputs(model, layer)
                for head in range(4):
                    norm[layer, head] = float((value[head // groups, n] @ output[head]).norm())
            kinds[place].append(norm)
    elsewhere = np.mean(kinds["elsewhere"], axis=0)
    for place in PLACES:
        if kinds[place]:
            expected = np.mean(kinds[place], axis=0) / elsewhere
            np.testing.assert_allclose(found[place], expected, rtol=2e-4, err_msg=place)
        else:
            assert np.isnan(found[place]).all()


def test_value_norms_follow_an_edited_weight(checkpoint: Callable[[str], Path]) -> None:
    """What is remembered of W_O is forgotten when it is edited."""
    model = attnscope.load(str(checkpoint("gpt2")))
    texts = [model.reader.read(text) for text in TEXTS]
    each = []
    for _ in range(2):
        norms = ValueNorms(model)
        scan(model, texts, watchers=[norms])
        each.append(norms.total.clone())
        weight = next(model.seats[0].attention.W_O.parameters())
        with torch.no_grad():
            weight.mul_(3)
    torch.testing.assert_close(each[1][0], 3 * each[0][0])


def test_what_each_token_receives(model: Model) -> None:
    text = model.reader.read(TEXTS[0])
    received = Received(model, text)
    model.set_block_rows(3)
    scan(model, [text], watchers=[received])
    model.set_block_rows(None)
    captured = model.capture(TEXTS[0])
    rows = [not token.special for token in text.tokens]
    for head, weights in captured.heads():
        np.testing.assert_allclose(
            received.shares()[head.layer, head.head], weights[rows].mean(0), atol=1e-6
        )
