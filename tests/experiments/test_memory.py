"""Bytes and arithmetic of attention: hand-checked figures, laws, and sums done the long way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.experiments.memory import (
    FORMATS,
    NumberFormat,
    Paging,
    allocated_bytes,
    flops_per_byte,
    kv_bytes,
    longest_context,
    prefill_flops,
    token_bytes,
    token_flops,
)
from attnscope.models.shapes import AttentionShape, Latent, known_shape

BF16 = FORMATS["bfloat16"]
GIB = 1024**3

HEADS = [(h, g) for h in (1, 2, 3, 8, 12) for g in range(1, h + 1) if h % g == 0]


@st.composite
def shapes(draw: st.DrawFn) -> AttentionShape:
    heads, kv_heads = draw(st.sampled_from(HEADS))
    layers = draw(st.integers(1, 5))
    window = draw(st.none() | st.integers(1, 40))
    return AttentionShape(
        name="any",
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=kv_heads,
        d_head=draw(st.sampled_from([8, 12, 64, 80])),
        d_model=draw(st.sampled_from([16, 96])),
        window=window,
        sliding_layers=0 if window is None else draw(st.integers(1, layers)),
    )


contexts = st.integers(1, 120)
formats = st.sampled_from([*FORMATS.values()])
pagings = st.builds(Paging, st.integers(1, 20), st.booleans())


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("gpt2", 36_864),
        ("pythia-1b", 131_072),
        ("smollm2-135m", 23_040),
        ("llama-2-7b", 524_288),
        ("llama-2-70b", 327_680),
        ("llama-3-70b", 327_680),
        ("llama-3-8b", 131_072),
        ("llama-3.2-1b", 32_768),
        ("mistral-7b-v0.1", 131_072),
        ("gemma-2b", 18_432),
        ("gemma-2-2b", 106_496),
        ("gemma-2-9b", 344_064),
        ("gemma-3-1b", 26_624),
        ("qwen2.5-0.5b", 12_288),
        ("qwen2.5-7b", 57_344),
        ("qwen3-0.6b", 114_688),
        ("qwen3-8b", 147_456),
        ("deepseek-v2", 69_120),
        ("deepseek-v3", 70_272),
        ("bert-base", 0),
    ],
)
def test_bytes_of_a_token_as_checked_by_hand(name: str, taken: int) -> None:
    assert token_bytes(known_shape(name), BF16) == taken


@pytest.mark.parametrize(
    ("name", "kept", "full"),
    [
        ("mistral-7b-v0.1", GIB // 2, 4 * GIB),  # 4 096 of 32 768 tokens in every layer
        ("gemma-2-9b", 6_341_787_648, 11_274_289_152),  # 5.91 GiB: 21 of 42 layers slide
        ("gemma-3-1b", 145_752_064, 872_415_232),  # 0.14 GiB: 22 of 26 layers see 512
        ("llama-3-8b", 4 * GIB, 4 * GIB),
        ("bert-base", 0, 0),
    ],
)
def test_windows_at_32k_as_checked_by_hand(name: str, kept: int, full: int) -> None:
    shape = known_shape(name)
    assert kv_bytes(shape, 32_768, 1, BF16) == kept
    assert allocated_bytes(shape, 32_768, 1, BF16, Paging()) == full


@pytest.mark.parametrize(
    ("name", "bytes_of_128", "bytes_of_80"),
    [
        ("float32", 512, 320),
        ("bfloat16", 256, 160),
        ("fp8", 128, 80),
        ("int8", 128 + 4 * 2, 80 + 3 * 2),  # a float16 scale for every 32
        ("int4", 64 + 2 * 4, 40 + 2 * 4),  # a scale and a zero point for every 64
    ],
)
def test_scales_are_counted(name: str, bytes_of_128: int, bytes_of_80: int) -> None:
    assert FORMATS[name].bytes(128) == bytes_of_128
    assert FORMATS[name].bytes(80) == bytes_of_80


def test_an_odd_number_of_half_bytes_takes_a_whole_one() -> None:
    assert NumberFormat("four", 4).bytes(7) == 4


@given(shapes(), contexts, st.integers(1, 9), formats, pagings)
def test_bytes_are_linear_in_texts(
    shape: AttentionShape, context: int, batch: int, kept: NumberFormat, paging: Paging
) -> None:
    assert kv_bytes(shape, context, batch, kept) == batch * kv_bytes(shape, context, 1, kept)
    several = allocated_bytes(shape, context, batch, kept, paging)
    assert several == batch * allocated_bytes(shape, context, 1, kept, paging)


@given(shapes(), contexts, formats)
def test_the_ratio_to_mha_is_that_of_the_heads(
    shape: AttentionShape, context: int, kept: NumberFormat
) -> None:
    ours = kv_bytes(shape, context, 1, kept)
    mha = kv_bytes(shape.twin(shape.n_heads), context, 1, kept)
    assert ours * shape.n_heads == mha * shape.n_kv_heads


@given(shapes(), contexts, formats, pagings)
def test_needed_is_at_most_reserved_is_at_most_full_pages(
    shape: AttentionShape, context: int, kept: NumberFormat, paging: Paging
) -> None:
    needed = kv_bytes(shape, context, 1, kept)
    reserved = allocated_bytes(shape, context, 1, kept, paging)
    pages = -(-context // paging.page_size) * paging.page_size
    assert needed <= reserved <= pages * token_bytes(shape, kept)
    assert needed <= context * token_bytes(shape, kept)


@given(shapes(), contexts, formats)
def test_bytes_as_a_sum_over_layers(
    shape: AttentionShape, context: int, kept: NumberFormat
) -> None:
    """2·G·D numbers for each of min(T, W) tokens, added up layer by layer."""
    total = 0
    for layer in range(shape.n_layers):
        window = shape.window if layer < shape.sliding_layers else None
        tokens = context if window is None else min(context, window)
        total += 2 * shape.n_kv_heads * kept.bytes(shape.d_head) * tokens
    assert kv_bytes(shape, context, 1, kept) == total


@pytest.mark.parametrize(
    ("context", "window", "tokens"),
    [
        (1, None, 16),
        (16, None, 16),
        (17, None, 32),
        (1000, 16, 32),  # a window of a page lies in two of them, mostly
        (1000, 17, 32),
        (1000, 18, 48),
        (1000, 1, 16),
        (10, 500, 16),
    ],
)
def test_pages_that_a_window_can_touch(context: int, window: int | None, tokens: int) -> None:
    assert Paging(16, full_windows=False).tokens(context, window) == tokens
    touched = {
        len({place // 16 for place in range(start, start + min(window or context, context))})
        for start in range(16)
    }
    if window is not None and window < context:
        assert tokens == 16 * max(touched)


@given(shapes(), contexts)
def test_a_text_read_at_once_costs_what_its_tokens_cost_one_by_one(
    shape: AttentionShape, context: int
) -> None:
    one_by_one = sum(token_flops(shape, seen) for seen in range(1, context + 1))
    assert prefill_flops(shape, context, 1) == one_by_one


def test_flops_as_checked_by_hand() -> None:
    """Llama-3-8B at 8 192 tokens: 4·C·D·(H+G) and 4·H·D·T in each of 32 layers."""
    shape = known_shape("llama-3-8b")
    assert token_flops(shape, 8192) == 32 * (4 * 4096 * 128 * 40 + 4 * 32 * 128 * 8192)
    scores = [token_flops(shape.twin(g), 8192) - token_flops(shape.twin(g), 1) for g in (1, 8, 32)]
    assert len(set(scores)) == 1  # what is left without the projections does not depend on G


def test_an_encoder_reads_everything_for_every_token() -> None:
    shape = known_shape("bert-base")
    projections = 2 * shape.projection_weights
    assert prefill_flops(shape, 100, 2) == 2 * (100 * projections + 4 * 768 * 12 * 100 * 100)
    assert flops_per_byte(shape, BF16) is None


@pytest.mark.parametrize(("kv_heads", "ratio"), [(32, 1), (8, 4), (1, 32)])
def test_a_new_token_takes_h_over_g_flops_a_byte(kv_heads: int, ratio: float) -> None:
    shape = known_shape("llama-3-8b").twin(kv_heads)
    assert flops_per_byte(shape, BF16) == ratio
    assert flops_per_byte(shape, FORMATS["fp8"]) == 2 * ratio


def test_latent_attention_as_checked_by_hand() -> None:
    """DeepSeek-V2: 576 numbers a token; scores over all of them, values over 512, 128 heads."""
    shape = known_shape("deepseek-v2")
    assert flops_per_byte(shape, BF16) == 2 * 128 * (576 + 512) / (576 * 2)
    seen = token_flops(shape, 2) - token_flops(shape, 1)
    assert seen == 60 * 2 * 128 * (576 + 512)
    small = AttentionShape("x", 1, 2, 2, 4, 8, latent=Latent(kv_rank=3, rope=2, nope=4, value=4))
    query, down, up, out = 8 * 2 * 6, 8 * 5, 3 * 2 * 8, 2 * 4 * 8
    assert small.projection_weights == query + down + up + out
    assert prefill_flops(small, 3, 1) == 3 * 2 * small.projection_weights + 6 * 2 * 2 * (6 + 4)


@given(shapes(), st.integers(0, 10**7), formats, st.integers(1, 3), pagings)
def test_the_longest_context_fits_and_the_next_does_not(
    shape: AttentionShape, room: int, kept: NumberFormat, batch: int, paging: Paging
) -> None:
    longest = longest_context(shape, room, batch, kept, paging)
    if longest is None:  # then any number of tokens fits
        assert allocated_bytes(shape, 10**12, batch, kept, paging) <= room
        return
    if longest:
        assert allocated_bytes(shape, longest, batch, kept, paging) <= room
    assert allocated_bytes(shape, longest + 1, batch, kept, paging) > room


def test_huge_contexts_are_exact() -> None:
    shape = known_shape("llama-3-8b")
    assert kv_bytes(shape, 10**12, 10**6, BF16) == 131_072 * 10**18
    pairs = 10**12 * (10**12 + 1) // 2
    exact = 10**12 * 2 * shape.projection_weights + 32 * 4 * 4096 * pairs
    assert prefill_flops(shape, 10**12, 1) == exact
    assert longest_context(shape, 131_072 * 16 * 10**12, 1, BF16, Paging()) == 16 * 10**12
