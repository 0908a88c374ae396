"""The known models: read from configs/models, complete, and as the literature has them."""

from __future__ import annotations

from typing import Any

import pytest

from attnscope.config_files import config_files
from attnscope.errors import RunError, UsageError
from attnscope.models.shapes import AttentionShape, known_shape, known_shapes, read_row

ROW: dict[str, Any] = {
    "n_layers": 6,
    "n_heads": 8,
    "n_kv_heads": 2,
    "d_head": 16,
    "d_model": 128,
    "source": "a test",
}


def shape(**changes: Any) -> AttentionShape:
    return read_row("toy", ROW | changes, "toy.yaml")


def test_there_are_many_and_each_has_a_source() -> None:
    known = known_shapes()
    assert len(known) >= 25
    for each in known.values():
        assert each.source
        assert each.hub.count("/") == 1
        assert each.family
    families = {each.family for each in known.values()}
    wanted = "gpt2 gpt_neox bert llama mistral mixtral gemma gemma2 gemma3_text qwen2 qwen3 phi3"
    assert {*wanted.split(), "gpt_oss", "deepseek_v2", "deepseek_v3"} <= families


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt2", 124_439_808),
        ("bert-base", 109_482_240),
        ("llama-2-7b", 6_738_415_616),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3.1-405b", 405_853_388_800),
        ("mistral-7b-v0.1", 7_241_732_096),
        ("mixtral-8x7b", 46_702_792_704),
        ("phi-3-mini-4k", 3_821_079_552),
        ("qwen2.5-7b", 7_615_616_512),
        ("deepseek-v3", 671_026_419_200),
    ],
)
def test_parameters_are_those_that_the_models_are_known_for(name: str, parameters: int) -> None:
    assert known_shape(name).parameters == parameters


def test_a_model_is_known_by_its_hub_id_and_in_any_case() -> None:
    wanted = known_shape("llama-3-8b")
    assert known_shape("meta-llama/meta-llama-3-8B") is wanted
    assert known_shape("Llama-3-8B") is wanted


def test_another_name_is_told_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"'gpt-2'.*Did you mean 'gpt2'"):
        known_shape("gpt-2")


def test_windows_are_counted_by_layer() -> None:
    assert shape(window=4).sliding_layers == 6
    assert shape(window=4, full_every=2).sliding_layers == 3
    assert known_shape("gemma-3-1b").sliding_layers == 26 - 4
    assert known_shape("gpt-oss-20b").sliding_layers == 12
    assert known_shape("llama-3-8b").sliding_layers == 0


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (ROW | {"n_kv_head": 2}, "unknown key 'n_kv_head'. Did you mean 'n_kv_heads'"),
        ({**ROW, "latent": {"kv_rank": 4, "ropes": 2}}, "latent: unknown key 'ropes'"),
        ({**ROW, "latent": {"kv_rank": 4}}, "nope, rope, value is missing"),
        ({key: value for key, value in ROW.items() if key != "source"}, "source is missing"),
        (ROW | {"n_kv_heads": 3}, "do not fit"),
        (ROW | {"full_every": 2}, "do not fit"),
    ],
)
def test_a_row_that_is_wrong_is_refused(row: dict[str, Any], told: str) -> None:
    with pytest.raises(RunError, match=told):
        read_row("toy", row, "toy.yaml")


def test_a_twin_differs_in_its_key_value_heads_and_what_follows() -> None:
    model = shape(parameters=1_000_000)
    twin = model.twin(8)
    assert (model.kind, twin.kind, model.twin(1).kind) == ("GQA", "MHA", "MQA")
    assert model.twin(2) is model
    grown = 6 * 2 * 128 * 16 * (8 - 2)  # L · 2·C·D · (G' - G)
    assert twin.attention_parameters - model.attention_parameters == grown
    assert twin.parameters == 1_000_000 + grown


def test_biases_are_parameters_too() -> None:
    plain, biased = shape(), shape(qkv_bias=True, output_bias=True)
    more = 6 * (16 * (8 + 2 * 2) + 128)
    assert biased.attention_parameters == plain.attention_parameters + more
    assert biased.projection_weights == plain.projection_weights


def test_latent_attention_has_the_parameters_that_its_network_has() -> None:
    """Counted from transformers' networks: all of self_attn, its norms among them."""
    for name, counted in (("deepseek-v2", 8_953_651_200), ("deepseek-v2-lite", 371_602_944)):
        model = known_shape(name)
        assert model.latent is not None
        norms = model.n_layers * model.latent.norms()
        assert model.attention_parameters + norms == counted
        assert model.kind == "MLA"
        assert model.twin(model.n_heads).kind == "MHA"


@pytest.mark.parametrize("count", [3, 0, -1, 16])
def test_heads_that_cannot_be_shared_evenly_are_told(count: int) -> None:
    with pytest.raises(UsageError, match=rf"share {count} key/value.*1, 2, 4, 8\."):
        shape().twin(count)


def test_a_folder_that_is_missing_is_told() -> None:
    with pytest.raises(RunError, match="configs/nothing"):
        config_files("nothing")
