"""The two cores: one answer, whatever the block; and the formula in its order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnscope.attention.cores import Block, attention_scores, blocked, dense
from attnscope.attention.spec import AttentionSpec
from attnscope.attention.visibility import Visibility
from tests.attention.test_visibility import full_mask, visibilities


def draw(seen: Visibility, groups: int, shared: int, width: int, seed: int) -> tuple[Tensor, ...]:
    """query (B, G, R, T, D), key and value (B, G, T, D), large enough that softmax is sharp."""
    generator = torch.Generator().manual_seed(seed)
    texts, length = seen.valid.shape
    query = torch.randn(texts, groups, shared, length, width, generator=generator) * 2
    key, value = (
        torch.randn(texts, groups, length, width, generator=generator) * 2 for _ in range(2)
    )
    return query, key, value


def by_hand(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    spec: AttentionSpec,
    mask: Tensor,
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """scale, then cap, then mask, then softmax, in float64: weights (B, G, R, T, T) and heads."""
    scores = torch.einsum("bgrtd,bgsd->bgrts", query.double(), key.double()) * spec.scaling
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
    if sink is not None:  # one more column, dropped again
        column = sink.double()[None, :, :, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = torch.nan_to_num(scores.softmax(-1))[..., : mask.shape[-1]]
    return weights, torch.einsum("bgrts,bgsd->bgrtd", weights, value.double())


@settings(max_examples=60, deadline=None)
@given(
    seen=visibilities(),
    groups=st.integers(1, 2),
    shared=st.integers(1, 3),
    softcap=st.sampled_from([None, 5.0]),
    with_sink=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_every_block_gives_the_formula(
    seen: Visibility,
    groups: int,
    shared: int,
    softcap: float | None,
    with_sink: bool,
    seed: int,
) -> None:
    width = 4
    spec = AttentionSpec(
        d_model=groups * shared * width, n_heads=groups * shared, n_kv_heads=groups, d_head=width,
        softcap=softcap,
    )  # fmt: skip
    query, key, value = draw(seen, groups, shared, width, seed)
    mask = full_mask(seen)
    sink = torch.randn(groups, shared) * 3 if with_sink else None
    expected, mixed = by_hand(query, key, value, spec, mask, sink)
    real = seen.valid & mask.any(-1)  # a row of padding may hold anything
    for rows in range(1, seen.n_keys + 1):
        found = torch.zeros_like(expected, dtype=torch.float32)

        shares = []

        def show(
            start: int,
            low: int,
            weights: Tensor,
            _: Tensor,
            share: Tensor | None,
            into: Tensor = found,
            keep: list[Tensor | None] = shares,
        ) -> None:
            stop, high = start + weights.shape[3], low + weights.shape[4]
            into[:, :, :, start:stop, low:high] = weights
            keep.append(share)

        heads = blocked(query, key, value, spec, seen, show, rows, sink)
        if sink is not None:
            total = found.sum(-1) + torch.cat(shares, dim=3)
            torch.testing.assert_close(total, torch.ones_like(total), atol=1e-5, rtol=0)
        else:
            assert set(shares) == {None}
        assert torch.isfinite(heads).all()
        where = real[:, None, None, :, None]
        assert ((found - expected) * where).abs().max() <= 1e-5
        assert ((heads - mixed) * where).abs().max() <= 5e-5


def test_dense_is_one_block() -> None:
    seen = Visibility(torch.ones(2, 9, dtype=torch.bool), causal=True, window=3)
    spec = AttentionSpec(d_model=16, n_heads=4, n_kv_heads=2)
    blocks: list[tuple[int, int, tuple[int, ...]]] = []
    query, key, value = draw(seen, 2, 2, 4, 1)
    whole = dense(query, key, value, spec, seen, lambda *b: blocks.append((*b[:2], b[2].shape)))
    assert blocks == [(0, 0, (2, 2, 2, 9, 9))]
    parts = blocked(query, key, value, spec, seen, lambda *_: None, 2)
    torch.testing.assert_close(whole, parts, atol=1e-6, rtol=0)


def test_a_block_is_never_wider_than_its_window() -> None:
    seen = Visibility(torch.ones(1, 64, dtype=torch.bool), causal=True, window=8)
    spec = AttentionSpec(d_model=8, n_heads=2)
    widths = []
    query, key, value = draw(seen, 2, 1, 4, 0)
    blocked(query, key, value, spec, seen, lambda _, __, w, *___: widths.append(w.shape[-1]), 4)
    assert max(widths) == 4 + 8 - 1


def test_scores_are_float32_whatever_comes_in() -> None:
    seen = Visibility(torch.ones(1, 5, dtype=torch.bool), causal=True)
    spec = AttentionSpec(d_model=8, n_heads=2)
    kinds = []
    half = [part.bfloat16() for part in draw(seen, 2, 1, 4, 0)]
    heads = dense(*half, spec, seen, lambda _, __, w, *___: kinds.append(w.dtype))
    assert kinds == [torch.float32]
    assert heads.dtype == torch.float32


def test_huge_scores_stay_finite() -> None:
    spec = AttentionSpec(d_model=4, n_heads=1, scale=1.0)
    query = torch.full((1, 1, 1, 3, 4), 1e4)
    key = torch.full((1, 1, 3, 4), -1e4)
    visible = torch.ones(3, 3, dtype=torch.bool).tril()[None]
    weights = attention_scores(query, key, spec, visible).softmax(-1)
    torch.testing.assert_close(weights[0, 0, 0], visible[0] / visible[0].sum(-1, keepdim=True))


def entropy_of(scores: Tensor) -> Tensor:
    """What a block says of rows with these scores (t, S)."""
    return Block(0, 0, 0, scores.softmax(-1)[None, None], scores[None, None]).entropy[0, 0]


def test_entropy_of_a_block() -> None:
    lowest = torch.finfo(torch.float32).min
    scores = torch.tensor([[3.0, lowest, lowest], [1.0, 1.0, lowest], [2.0, 2.0, 2.0]])
    expected = torch.tensor([1.0, 2.0, 3.0]).log()
    torch.testing.assert_close(entropy_of(scores), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("shift", [0.0, 100.0, -3e3, 6e4])
def test_entropy_does_not_depend_on_what_all_scores_share(shift: float) -> None:
    """Checkpoints with large key biases have scores of some ten thousand (Qwen2)."""
    scores = torch.randn(50, 40, generator=torch.Generator().manual_seed(0)) * 2 + shift
    weights = scores.double().softmax(-1)
    expected = -(weights * weights.log()).sum(-1)
    assert (entropy_of(scores) - expected).abs().max() <= 1e-4
