"""What the seam reads from transformers: masks, windows, and what it cannot describe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import Llama4TextConfig
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)

import attnscope
from attnscope.attention.visibility import Visibility
from attnscope.errors import CheckpointError
from attnscope.models.reading import read_visibility
from tests import tiny
from tests.attention.test_visibility import full_mask


def table(allows: Callable[..., Any], length: int) -> Tensor:
    """What a mask function allows, (T, T)."""
    zero = torch.tensor(0)
    rows = [
        [bool(allows(zero, zero, torch.tensor(query), torch.tensor(key))) for key in range(length)]
        for query in range(length)
    ]
    return torch.tensor(rows)


@pytest.mark.parametrize(
    ("allows", "found"),
    [
        (causal_mask_function, (True, None)),
        (bidirectional_mask_function, (False, None)),
        (sliding_window_causal_mask_function(8), (True, 8)),
        (sliding_window_causal_mask_function(1), (True, 1)),
        (sliding_window_causal_mask_function(4096), (True, 4096)),
        (sliding_window_bidirectional_mask_function(8), (False, None)),
    ],
)
def test_masks_of_transformers(allows: Callable[..., Any], found: tuple[bool, Any]) -> None:
    causal, window = read_visibility(allows)
    assert causal is found[0]
    if causal:
        assert window == found[1]
    seen = Visibility(torch.ones(1, 20, dtype=torch.bool), causal, window)
    assert torch.equal(full_mask(seen)[0], table(allows, 20))


@settings(deadline=None)
@given(window=st.integers(2, 1 << 30), causal=st.booleans())
def test_any_window_is_read_back(window: int, causal: bool) -> None:
    def allows(_: Tensor, __: Tensor, query: Tensor, key: Tensor) -> Tensor:
        near = (query - key).abs() < window
        return near & (key <= query) if causal else near

    assert read_visibility(allows) == (causal, window)


@settings(deadline=None)
@given(size=st.integers(2, 1 << 20))
def test_chunks_are_refused(size: int) -> None:
    with pytest.raises(CheckpointError, match="chunks"):
        read_visibility(chunked_causal_mask_function(size, torch.zeros(1, dtype=torch.int64)))


@settings(deadline=None)
@given(back=st.integers(2, 1000), ahead=st.integers(2, 1000))
def test_lopsided_windows_are_refused(back: int, ahead: int) -> None:
    def allows(_: Tensor, __: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query - key < back) & (key - query < ahead)

    if back == ahead:
        assert read_visibility(allows) == (False, back)
    else:
        with pytest.raises(CheckpointError, match="lopsided"):
            read_visibility(allows)


def test_a_mask_that_hides_a_token_from_itself_is_refused() -> None:
    with pytest.raises(CheckpointError, match="itself"):
        read_visibility(lambda _, __, query, key: key < query)


@pytest.mark.parametrize(
    ("name", "windows"),
    [
        ("mistral-window", [8, 8, 8]),
        ("mistral-open", [None] * 3),
        ("qwen2-window-off", [None] * 3),
        ("qwen2-window-on", [None, None, 8, 8]),
        ("bert", [None] * 3),
    ],
)
def test_windows_layer_by_layer(
    name: str, windows: list[int | None], checkpoint: Callable[[str], Path]
) -> None:
    """W means exactly W keys with the query itself, in the layers that apply it."""
    directory = checkpoint(name)
    model = attnscope.load(str(directory))
    assert [spec.window for spec in model.specs] == windows
    captured = model.capture_ids(range(5, 45))
    for layer, window in enumerate(windows):
        seen = [int((row > 0).sum()) for row in captured[layer][:, -1]]
        assert seen == [window or 40] * 4


SMALL: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "head_dim": 8, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip


def test_attention_in_chunks_is_refused(tmp_path: Path) -> None:
    config = Llama4TextConfig(
        **SMALL, intermediate_size_mlp=48, num_local_experts=1, attention_chunk_size=8,
        use_qk_norm=False, attn_temperature_tuning=False,
    )  # fmt: skip
    directory = tiny.save(config, tmp_path)
    with pytest.raises(CheckpointError, match="chunks"):
        attnscope.load(str(directory))
