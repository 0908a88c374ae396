"""What a query may see, against a mask written out in full."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnscope.attention.visibility import Visibility

LENGTHS = st.integers(1, 12)


@st.composite
def visibilities(draw: st.DrawFn) -> Visibility:
    """Any layer over one to three texts of up to twelve tokens, padded on either side."""
    length = draw(LENGTHS)
    texts = draw(st.integers(1, 3))
    valid = torch.zeros(texts, length, dtype=torch.bool)
    for text in range(texts):
        first = draw(st.integers(0, length - 1))
        valid[text, first : draw(st.integers(first + 1, length))] = True
    window = draw(st.one_of(st.none(), st.integers(1, 14)))
    return Visibility(valid, causal=draw(st.booleans()), window=window)


def full_mask(visibility: Visibility) -> Tensor:
    """The definition, key by key: (B, T, T)."""
    texts, length = visibility.valid.shape
    mask = torch.zeros(texts, length, length, dtype=torch.bool)
    for text in range(texts):
        for query in range(length):
            for key in range(length):
                near = visibility.window is None or abs(query - key) < visibility.window
                earlier = not visibility.causal or key <= query
                mask[text, query, key] = bool(visibility.valid[text, key]) and near and earlier
    return mask


@settings(deadline=None)
@given(visibilities(), st.integers(0, 11), st.integers(1, 12))
def test_a_block_is_a_cut_of_the_full_mask(seen: Visibility, start: int, rows: int) -> None:
    start %= seen.n_keys
    stop = min(start + rows, seen.n_keys)
    mask = full_mask(seen)
    low, high = seen.key_range(start, stop)
    block = seen.block(start, stop)
    cut = mask[:, start:stop, low:high]
    if block is None:
        assert mask.all()
    else:
        assert torch.equal(block.expand_as(cut), cut)
    outside = mask[:, start:stop].clone()
    outside[:, :, low:high] = False
    assert not outside.any()  # the key range leaves nothing visible out


@settings(deadline=None)
@given(visibilities(), st.integers(0, 2**32 - 1))
def test_counts_are_the_sums_of_the_full_mask(seen: Visibility, seed: int) -> None:
    mask = full_mask(seen)
    assert torch.equal(seen.count(), mask.sum(-1))
    marked = torch.rand(seen.valid.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    assert torch.equal(seen.count(marked), (mask & marked[:, None]).sum(-1))


@settings(deadline=None)
@given(visibilities())
def test_sees_is_the_full_mask_and_nothing_outside_it(seen: Visibility) -> None:
    mask = full_mask(seen)
    texts, length = seen.valid.shape
    around = torch.arange(-3, length + 3)
    batch, query = torch.arange(texts)[:, None, None], torch.arange(length)[None, :, None]
    answer = seen.sees(*torch.broadcast_tensors(batch, query, around[None, None, :]))
    assert torch.equal(answer[..., 3:-3], mask)
    assert not answer[..., :3].any()
    assert not answer[..., -3:].any()


def test_a_window_is_so_many_keys_with_the_query_itself() -> None:
    valid = torch.ones(1, 40, dtype=torch.bool)
    assert int(Visibility(valid, causal=True, window=8).count()[0, -1]) == 8
    assert int(Visibility(valid, causal=True).count()[0, -1]) == 40
    assert int(Visibility(valid, causal=False, window=8).count()[0, 20]) == 15
    assert Visibility(valid, causal=True, window=8).key_range(32, 40) == (25, 40)


def test_no_mask_is_made_when_all_is_visible() -> None:
    assert Visibility(torch.ones(2, 9, dtype=torch.bool), causal=False).block(0, 9) is None
