"""transformers' own caches weigh what the formula says."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel

from attnscope.attention.multihead import MultiHeadAttention
from attnscope.attention.rotary import Rotation
from attnscope.attention.spec import AttentionSpec
from attnscope.experiments import compare_model as compare_model_file
from attnscope.experiments.caches import contexts_to_weigh, measure_caches
from attnscope.experiments.compare_model import compare_model, shape_of
from attnscope.experiments.compare_result import CompareResult
from attnscope.experiments.decoding import decode_step, time_decoding
from attnscope.experiments.measured_result import CacheCheck
from attnscope.experiments.memory import FORMATS, kv_bytes
from attnscope.models.load import load
from attnscope.render.compare import compare_table
from tests import tiny

TOKENS = 40
MODELS = ["llama-mha", "llama-gqa", "llama-mqa", "gpt2", "mistral", "gemma2", "qwen2-window-on"]


_load = lru_cache(load)


def _checks(directory: Path, context: int = TOKENS, batch: int = 1) -> dict[str, CacheCheck]:
    model = _load(str(directory))
    return {c.cache: c for c in measure_caches(model, shape_of(model), context, batch)}


@pytest.mark.parametrize("name", MODELS)
def test_to_the_byte(name: str, checkpoint: Callable[[str], Path]) -> None:
    shape = shape_of(_load(str(checkpoint(name))))
    for context in (1, 7, 8, 9, TOKENS):
        found = _checks(checkpoint(name), context, batch=3)
        for check in (found["dynamic"], found["static"]):
            assert check.formula == kv_bytes(shape, context, 3, FORMATS["float32"])
            for layer in check.layers:
                assert layer.measured == layer.formula
                assert layer.allocated == layer.formula
            assert len(check.layers) == shape.n_layers


@pytest.mark.parametrize("name", MODELS)
def test_they_are_the_caches_that_a_model_fills(
    name: str, checkpoint: Callable[[str], Path]
) -> None:
    """transformers' own forward leaves a cache of as many bytes as ours, layer by layer."""
    network = AutoModel.from_pretrained(checkpoint(name)).eval()
    ids = torch.arange(TOKENS)[None]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the argument has two names, by version
        cache = network(input_ids=ids[:, :-1], use_cache=True).past_key_values
        cache = network(input_ids=ids[:, -1:], past_key_values=cache).past_key_values
    check = _checks(checkpoint(name))["dynamic"]
    for layer, ours in zip(cache.layers, check.layers, strict=True):
        assert layer.keys.nbytes + layer.values.nbytes == ours.kept


def test_between_steps_a_sliding_layer_keeps_one_token_less(
    checkpoint: Callable[[str], Path],
) -> None:
    found = _checks(checkpoint("mistral"))
    token = 2 * 2 * 12 * 4  # keys and values, two heads, their width, float32
    for layer in found["dynamic"].layers:
        assert (layer.window, layer.formula, layer.kept) == (8, 8 * token, 7 * token)
    for layer in found["static"].layers:
        assert layer.kept == 8 * token


@pytest.mark.parametrize(
    ("asked", "weighed"),
    [
        (None, (None,)),
        ([16, 64], (16, 64)),
        ([4096, 8192], (4096,)),
        ([32768, 8192], (8192,)),
    ],
)
def test_which_contexts_are_weighed(
    asked: list[int] | None, weighed: tuple[int | None, ...]
) -> None:
    assert contexts_to_weigh(asked) == weighed


def _measured(directory: Path, **options: Any) -> tuple[CompareResult, str]:
    result = CompareResult(**vars(compare_model(_load(str(directory)), measure=True, **options)))
    return result, " ".join(compare_table(result, 200).plain.split())


def test_every_small_context_is_weighed_for_all_texts(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_model_file, "time_decoding", lambda *_, **__: ())
    result, table = _measured(checkpoint("llama-gqa"), context="16,32,8k", batch=3, dtype="int8")
    assert result.measured is not None
    assert {c.context for c in result.measured.caches} == {16, 32}
    dynamic = result.measured.caches[0]
    assert dynamic.formula == kv_bytes(result.shapes[0], 16, 3, FORMATS["float32"])
    assert "own caches 16 and 32 tokens, batch 3, float32, bytes a layer" in table
    assert "Not weighed, as too long: 8 192 tokens." in table
    assert "Keys and values are float32 here" in table
    assert "random weights, float32, one text" in table
    _, table = _measured(checkpoint("llama-gqa"), context=16, dtype="float32")
    assert "Keys and values are" not in table
    assert "eighed" not in table
    _, table = _measured(checkpoint("mistral"))
    assert "Weighed at" not in table  # as many as it has positions, like the table above


def test_one_token_less_is_said_where_it_is_so(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_model_file, "time_decoding", lambda *_, **__: ())
    for context, said in ((7, False), (8, True)):
        _, table = _measured(checkpoint("mistral"), context=context)
        assert ("one token less" in table) == said


def test_what_was_not_weighed_is_null_and_decode_steps_are_rows(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_model_file, "ROUNDS", 2)
    result, _ = _measured(checkpoint("mistral"), context=8)
    assert result.measured is not None
    fp8 = result.measured.to_json()["caches"][2]
    assert fp8["skipped"]
    assert {fp8[name] for name in ("formula", "measured", "kept", "allocated")} == {None}
    frame = result.to_frame()
    assert set(frame["what"]) == {"cache", "decode"}
    assert frame[frame["what"] == "decode"]["seconds"].gt(0).all()
    assert ".0," not in frame[frame["what"] == "cache"].to_csv()


def test_quantised_caches(checkpoint: Callable[[str], Path]) -> None:
    """fp8 holds one byte a number and two scales; where a kind cannot be made, it says why."""
    found = _checks(checkpoint("llama-gqa"))
    fp8 = found["fp8"]
    if fp8.skipped is None:
        assert {layer.difference for layer in fp8.layers} == {8}
    for check in _checks(checkpoint("mistral")).values():
        assert (check.skipped is None) == bool(check.layers)
    assert _checks(checkpoint("mistral"))["fp8"].skipped


@pytest.mark.parametrize(
    "changes", [{}, {"n_kv_heads": 2}, {"n_kv_heads": 1, "window": 6}, {"qk_norm": "head"}]
)
def test_a_decode_step_is_the_last_row_of_a_forward(changes: dict[str, Any]) -> None:
    torch.manual_seed(0)
    spec = AttentionSpec(d_model=16, n_heads=4, causal=True, rotary=True, **changes)
    attention = MultiHeadAttention(spec).requires_grad_(False)
    angles = torch.arange(10.0)[None, :, None] * torch.tensor([0.3, 1.0])
    angles = torch.cat((angles, angles), -1)
    rotation = Rotation(angles.cos(), angles.sin())
    hidden = torch.randn(1, 10, 16)
    _, keys, values = attention.prepare(hidden, rotation)
    low = 0 if spec.window is None else 10 - spec.window
    keys, values = keys[:, :, low:].clone(), values[:, :, low:].clone()
    keys[:, :, -1], values[:, :, -1] = 0, 0  # the step writes them
    last = Rotation(rotation.cos[:, -1:], rotation.sin[:, -1:])
    step = decode_step(attention, hidden[:, -1:], keys, values, last)
    torch.testing.assert_close(step, attention(hidden, rotation=rotation)[:, -1:])


def test_decoding_is_timed_for_each_variant() -> None:
    spec = AttentionSpec(d_model=32, n_heads=4, n_kv_heads=2, causal=True, rotary=True)
    rows = time_decoding(spec, (8, 64), rounds=3)
    assert [(row.context, row.variant) for row in rows] == [
        (context, kind) for context in (8, 64) for kind in ("MHA", "GQA", "MQA")
    ]
    assert all(row.ratio == 1 for row in rows if row.variant == "MHA")
    assert all(row.seconds > 0 and row.low <= row.ratio <= row.high for row in rows)
    assert [row.cache_bytes for row in rows[:3]] == [2 * g * 8 * 8 * 4 for g in (4, 2, 1)]


def test_the_tiny_models_are_what_their_names_say() -> None:
    assert tiny.CONFIGS["mistral"]().sliding_window == 8
