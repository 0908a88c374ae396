"""Converting a model: nothing changes where nothing can, and the rest is what it is said to be."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import attnscope
from attnscope.api import Model
from attnscope.errors import UsageError
from attnscope.experiments import conversion, held_out
from attnscope.experiments.conversion import build, plan, sizes_of
from attnscope.experiments.conversion_result import ConversionResult
from attnscope.experiments.held_out import pick_texts, read_moments
from attnscope.models.shapes import AttentionShape
from attnscope.models.states import hidden_states, next_token_losses, seated
from attnscope.models.text import batch_of
from attnscope.types import TokenBatch
from tests import tiny


@pytest.fixture(autouse=True)
def _few_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "SEQUENCES", 3)
    monkeypatch.setattr(held_out, "CONTROLS", 2)


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """A tiny checkpoint with its head, loaded once: by its name in `tiny.CONFIGS`."""

    @lru_cache
    def get(name: str) -> Model:
        directory = tiny.save(tiny.CONFIGS[name](), tmp_path_factory.mktemp(name), causal_lm=True)
        return attnscope.load(str(directory), logits=True)

    return get


def _ids(seed: int = 1, texts: int = 1) -> TokenBatch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, tiny.VOCABULARY, (texts, 30), generator=generator)
    yes = torch.ones_like(ids, dtype=torch.bool)
    return TokenBatch(ids, yes, ~yes, ~yes)


def _converted(model: Model, **options: Any) -> ConversionResult:
    found = model.compare(passages=3, **options).conversion
    assert found is not None
    return found


CAUSAL = ["gpt2", "opt", "llama-gqa", "gemma2", "cohere", "granite", "gpt_oss", "phi3", "gpt_neox"]


@pytest.mark.parametrize("name", CAUSAL)
def test_losses_in_slices_are_those_of_the_logits(
    name: str, causal: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = causal(name), _ids(texts=2)
    monkeypatch.setattr("attnscope.models.states.LOGITS_BYTES", 2 * tiny.VOCABULARY * 4 * 7)
    states = hidden_states(model, batch)
    assert len(states) == model.shape.n_layers + 1
    assert torch.equal(states[-1], model.run(batch))
    losses = next_token_losses(model, batch, states[-1])
    network: Any = AutoModelForCausalLM.from_pretrained(
        model.source.directory, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        logits = network(input_ids=batch.ids).logits
    wanted = torch.nn.functional.cross_entropy(
        logits[:, :-1].mT, batch.ids[:, 1:], reduction="none"
    )
    torch.testing.assert_close(losses, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama-gqa", "gpt2", "gemma2", "gpt_oss"])
def test_as_many_heads_as_before_change_nothing(name: str, causal: Callable[[str], Model]) -> None:
    model = causal(name)
    found = _converted(model, convert=[model.shape.n_kv_heads])
    (only,) = found.conversions
    assert only.exact
    assert only.method == "as it is"
    assert only.loss_delta == 0.0
    assert only.attention_kl == 0.0
    assert set(only.hidden_error) == {0.0}
    assert all(
        head.attention_kl == 0.0 and head.labels == head.labels_before for head in only.heads
    )


@pytest.mark.parametrize("name", ["llama-gqa", "qwen3", "olmo2", "phi3", "mistral"])
def test_the_mha_twin_of_a_gqa_model_attends_the_same(
    name: str, causal: Callable[[str], Model]
) -> None:
    only = _converted(causal(name), convert="4").conversions[0]
    assert (only.n_kv_heads, only.method, only.exact) == (4, "repeated", True)
    assert abs(only.loss_delta) < 1e-5
    assert max(head.attention_kl for head in only.heads) < 1e-6
    assert max(only.hidden_error) < 1e-5


@pytest.mark.parametrize("name", ["llama-mha", "gpt2", "llama-biases", "stablelm"])
def test_what_is_measured_is_what_the_converted_model_does(
    name: str, causal: Callable[[str], Model]
) -> None:
    """KL, hidden error and loss, computed again from whole weights, states and logits."""
    model = causal(name)
    read = pick_texts(model, 2)
    moments = read_moments(model, read.aligned)
    variant = build(model, 1, "best-aligned", "neighbours", moments)
    found = model.compare(convert=[1], methods="best-aligned", passages=2).conversion
    assert found is not None
    only = found.conversions[0]
    divergence, apart, tokens, losses = 0.0, 0.0, 0, 0.0
    for text in read.measured:
        batch = batch_of([text])
        clean = model.capture_ids([token.id for token in text.tokens])
        states = hidden_states(model, batch)[-1]
        with seated(model, variant.layers):
            after = model.capture_ids([token.id for token in text.tokens])
            moved = hidden_states(model, batch)[-1]
            losses += float(next_token_losses(model, batch, moved).sum())
        ours, theirs = clean[1][2].double(), after[1][2].double()  # head 1.2
        rows = (ours * ((ours + 1e-300) / (theirs + 1e-300)).log()).tril().sum(-1)
        divergence += float(rows[1:].sum())
        apart += float(((moved - states).norm(dim=-1) / states.norm(dim=-1)).sum())
        tokens += len(text)
    n_rows = tokens - len(read.measured)
    (head,) = (head for head in only.heads if str(head.name) == "1.2")
    assert head.attention_kl == pytest.approx(divergence / n_rows, rel=1e-3)
    assert only.hidden_error[-1] == pytest.approx(apart / tokens, rel=1e-4)
    assert only.loss == pytest.approx(losses / n_rows, rel=1e-5)
    assert only.loss_delta != 0


def test_best_aligned_is_measured_on_texts_it_was_not_made_from(
    causal: Callable[[str], Model],
) -> None:
    read = pick_texts(causal("llama-mha"), 5)
    assert len(read.aligned) == len(read.measured) == 5
    assert not {text.tokens for text in read.aligned} & {text.tokens for text in read.measured}


def test_the_model_is_as_before_afterwards(causal: Callable[[str], Model]) -> None:
    model, batch = causal("llama-mha"), _ids()
    before = model.run(batch)
    seats = [seat.attention for seat in model.seats]
    _converted(model, convert="all")
    assert [seat.attention for seat in model.seats] == seats
    assert torch.equal(model.run(batch), before)


def test_all_and_each_method(causal: Callable[[str], Model]) -> None:
    found = _converted(causal("llama-gqa"), convert="all")
    assert [(one.n_kv_heads, one.method) for one in found.conversions] == [
        (4, "repeated"),
        (2, "as it is"),
        (1, "mean"),
        (1, "first"),
        (1, "best-aligned"),
    ]
    assert [one.ratio_to_mha for one in found.conversions] == [1, 0.5, 0.25, 0.25, 0.25]
    assert all(one.loss_delta for one in found.conversions[2:])
    assert found.best(1).loss == min(one.loss for one in found.conversions[2:])


def test_all_leaves_out_what_says_nothing() -> None:
    shape = AttentionShape("x", 1, 32, 8, 4, 128)
    assert sizes_of("all", shape) == (32, 8, 4, 2, 1)
    assert sizes_of("9,3,1,3", AttentionShape("x", 1, 9, 3, 4, 36)) == (9, 3, 1)


@pytest.mark.parametrize("name", ["llama-mha", "gpt2"])
def test_heads_grouped_otherwise_are_still_told_apart(
    name: str, causal: Callable[[str], Model]
) -> None:
    """Each head's numbers go to the head it was, wherever it came to stand."""
    model = causal(name)
    orders = [(2, 0, 3, 1)] * 3

    def shuffled(*arguments: Any, **_: Any) -> conversion.Variant:
        from attnscope.attention.pooling import Grouping, pool

        layers = [
            pool(seat.attention, Grouping(tuple((h,) for h in order)), "mean")
            for seat, order in zip(model.seats, orders, strict=True)
        ]
        return conversion.Variant("shuffled", layers, orders)

    read = pick_texts(model, 2)
    clean, moved = conversion.measure(model, [shuffled()], read.measured, read.stimulus)
    assert moved.loss == pytest.approx(clean.loss, abs=1e-4)
    assert moved.divergence.max() < 1e-6
    assert moved.labels == clean.labels
    other = conversion.Variant("told wrong", shuffled().layers, [(0, 1, 2, 3)] * 3)
    assert conversion.measure(model, [other], read.measured, None)[1].divergence.max() > 0.01


SAVED = ["llama-mha", "llama-gqa", "llama-biases", "qwen3", "olmo2", "phi3", "gpt_oss", "cohere"]


@pytest.mark.parametrize("name", SAVED)
@pytest.mark.parametrize("grouping", ["neighbours", "alike"])
def test_a_saved_checkpoint_gives_our_numbers(
    name: str, grouping: str, causal: Callable[[str], Model], tmp_path: Path
) -> None:
    model, batch, place = causal(name), _ids(), tmp_path / "converted"
    size = 2 if model.shape.n_kv_heads == 4 else 1
    found = _converted(
        model, convert=[size], methods=["best-aligned"], grouping=grouping, save=place
    )
    assert found.saved == str(place)
    read = pick_texts(model, 3)
    variant = build(model, size, "best-aligned", grouping, read_moments(model, read.aligned))
    with seated(model, variant.layers):
        hidden = hidden_states(model, batch)[-1]
        losses = next_token_losses(model, batch, hidden)
    network: Any = AutoModelForCausalLM.from_pretrained(place, attn_implementation="eager").eval()
    assert network.config.num_key_value_heads == size
    with torch.no_grad():
        logits = network(input_ids=batch.ids).logits
    wanted = torch.nn.functional.cross_entropy(
        logits[:, :-1].mT, batch.ids[:, 1:], reduction="none"
    )
    torch.testing.assert_close(losses, wanted, atol=1e-5, rtol=1e-5)
    again = attnscope.load(str(place))
    assert again.shape.n_kv_heads == size
    assert again.tokenizer("a cat")["input_ids"] == model.tokenizer("a cat")["input_ids"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["converted"]


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("llama-mha", {"convert": "3"}, "4 query heads cannot share 3 key/value heads evenly"),
        ("llama-mha", {"convert": "0"}, "share 0"),
        ("llama-mha", {"convert": "-1"}, "share -1"),
        ("llama-mha", {"convert": "many"}, "Cannot read 'many'"),
        ("llama-mha", {"convert": "1", "methods": "mea"}, "Did you mean 'mean'"),
        ("llama-mha", {"convert": "1", "grouping": "far"}, "Unknown grouping"),
        ("llama-mha", {"convert": "1", "passages": 0}, "at least 1"),
        ("llama-mha", {"convert": "2,1", "save": "x"}, "--save writes one model"),
        ("llama-mha", {"save": "x"}, "say which with --convert"),
        ("gpt2", {"convert": "1", "methods": "mean", "save": "x"}, "it can be measured, and not"),
    ],
)
def test_what_does_not_fit_is_said_plainly(
    name: str, options: dict[str, Any], told: str, causal: Callable[[str], Model]
) -> None:
    with pytest.raises(UsageError, match=told):
        causal(name).compare(**options)


def test_encoders_and_models_without_a_head_are_refused(
    checkpoint: Callable[[str], Path],
) -> None:
    bert = attnscope.load(str(checkpoint("bert")))
    for options in ({"convert": "1"}, {"similarity": True}, {"measure": True}):
        with pytest.raises(UsageError, match="encoder"):
            bert.compare(**options)
    headless = attnscope.load(str(checkpoint("llama-gqa")))
    with pytest.raises(UsageError, match="logits=True"):
        headless.compare(convert="1")


def test_a_taken_place_is_left_alone(causal: Callable[[str], Model], tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        causal("llama-mha").compare(convert="1", methods="mean", save=tmp_path)
    assert (tmp_path / "kept").read_text() == "mine"


def test_the_document_and_the_rows(causal: Callable[[str], Model]) -> None:
    result = causal("llama-gqa").compare(convert="2,1", passages=2)
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert [row["n_kv_heads"] for row in document["rows"]] == [4, 2, 1]
    assert document["settings"]["conversion"]["texts"] == 2
    assert document["model"]["parity"]["max_abs_attention"] < 1e-5
    first, *_ = document["conversion"]
    assert len(first["heads"]) == 12
    assert len(first["hidden_error"]) == 4
    frame = result.to_frame()
    assert len(frame) == 12 * len(document["conversion"])
    assert np.isfinite(frame[["loss", "attention_kl", "layer_hidden_error"]]).all().all()


def test_too_few_positions_for_random_tokens(tmp_path: Path) -> None:
    config = tiny.CONFIGS["llama-gqa"]()
    config.max_position_embeddings = 4
    model = attnscope.load(str(tiny.save(config, tmp_path / "short", causal_lm=True)), logits=True)
    found = _converted(model, convert="1")
    assert found.repeated is None
    assert any("random tokens" in note for note in found.notes)
    assert any("were cut" in note for note in found.notes)


def test_the_plan_of_a_model(causal: Callable[[str], Model]) -> None:
    assert plan(causal("llama-mha"), (4, 2), ("mean", "first")) == [
        (4, "as it is"),
        (2, "mean"),
        (2, "first"),
    ]
