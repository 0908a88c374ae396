"""Probes against the same question asked of a whole matrix, for every size of block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnscope.attention.cores import Block
from attnscope.attention.lens import LayerSums, Lens
from attnscope.attention.probes import (
    Breadth,
    Columns,
    Distance,
    Entropy,
    Offset,
    Pairs,
    Probe,
    read_all,
)
from attnscope.attention.visibility import Visibility
from tests.attention.test_visibility import full_mask, visibilities

HEADS = 2
Answer = Callable[[int, int, Tensor], Tensor | float]  # (text, query, row (H, T)) to (H,)


@dataclass(frozen=True)
class Asked:
    """A probe and the plain meaning of its question."""

    probe: Probe
    answer: Answer
    counts: Callable[[int, int, Tensor], bool]  # (text, query, visible (T,)): is the row asked?


def random_weights(seen: Visibility, seed: int) -> Tensor:
    """Rows that sum to 1 over what is visible, (B, H, T, T); nothing elsewhere."""
    mask = full_mask(seen)
    texts, length = seen.valid.shape
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(texts, HEADS, length, length, generator=generator) * 2
    scores = scores.masked_fill(~mask[:, None], -torch.inf)
    return torch.nan_to_num(scores.softmax(-1))


def block_of(weights: Tensor, start: int, stop: int, low: int, high: int, layer: int = 0) -> Block:
    """Some rows of whole weights (B, H, T, T), with scores that they are the softmax of."""
    part = weights[:, :, start:stop, low:high].contiguous()
    return Block(layer, start, low, part, part.clamp(min=1e-38).log())


def show(lens: Lens, weights: Tensor, seen: Visibility, rows: int, layer: int = 0) -> None:
    """Weights through a lens in blocks of `rows`."""
    for start in range(0, weights.shape[2], rows):
        stop = min(start + rows, weights.shape[2])
        low, high = seen.key_range(start, stop)
        lens.see(block_of(weights, start, stop, low, high, layer), seen)


def through_lens(
    probe: Probe, weights: Tensor, seen: Visibility, rows: int, resting: Tensor | None = None
) -> LayerSums:
    """What a lens makes of the weights when they come in blocks of `rows`: one question."""
    lens = Lens({"asked": probe}, resting)
    show(lens, weights, seen, rows)
    [layer] = lens.sums.values()
    return one_of(layer, 0)


def one_of(layer: LayerSums, question: int) -> LayerSums:
    """The answers to one question, without the axis of questions."""
    return LayerSums(**{f.name: getattr(layer, f.name)[..., question] for f in fields(LayerSums)})


def by_hand(asked: Asked, weights: Tensor, seen: Visibility) -> tuple[Tensor, Tensor, Tensor]:
    """raw (B, H), chance (B,) and rows (B,), row by row; chance by a head that looks evenly."""
    mask = full_mask(seen)
    texts, length = seen.valid.shape
    raw = torch.zeros(texts, HEADS, dtype=torch.float64)
    chance = torch.zeros(texts, dtype=torch.float64)
    rows = torch.zeros(texts, dtype=torch.int64)
    for text in range(texts):
        for query in range(length):
            visible = mask[text, query]
            asked_here = bool(asked.probe.rows[text, query] and seen.valid[text, query])
            if not asked_here or not asked.counts(text, query, visible):
                continue
            even = (visible.float() / visible.sum()).expand(HEADS, -1)
            raw[text] += torch.as_tensor(asked.answer(text, query, weights[text, :, query]))
            uniform = torch.as_tensor(asked.answer(text, query, even)).expand(HEADS)
            chance[text] += float(uniform[0])
            rows[text] += 1
    return raw, chance, rows


def _offset(rows: Tensor, marks: Tensor, generator: torch.Generator) -> Asked:
    offsets = (-2, -1, 1)

    def targets(query: int) -> list[int]:
        return [query + k for k in offsets if 0 <= query + k < rows.shape[1]]

    return Asked(
        Offset(rows, offsets),
        lambda text, query, row: row[:, targets(query)].sum(-1),
        lambda text, query, visible: bool(visible[targets(query)].any()),
    )


def _columns(rows: Tensor, marks: Tensor, generator: torch.Generator) -> Asked:
    return Asked(
        Columns(rows, marks),
        lambda text, query, row: (row * marks[text]).sum(-1),
        lambda text, query, visible: bool((visible & marks[text]).any()),
    )


def _pairs(rows: Tensor, marks: Tensor, generator: torch.Generator) -> Asked:
    texts, length = rows.shape
    listed = torch.rand(texts, length, length, generator=generator) < 0.3
    batch, query, key = listed.nonzero(as_tuple=True)
    shuffled = torch.randperm(len(batch), generator=generator)  # pairs come in any order
    return Asked(
        Pairs(rows, batch[shuffled], query[shuffled], key[shuffled]),
        lambda text, query, row: (row * listed[text, query]).sum(-1),
        lambda text, query, visible: bool((visible & listed[text, query]).any()),
    )


KINDS = {"offset": _offset, "columns": _columns, "pairs": _pairs}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(seen=visibilities(), seed=st.integers(0, 2**20))
def test_what_is_found_outside_resting_places(kind: str, seen: Visibility, seed: int) -> None:
    """Row by row: the targets that are no resting place, among what the row puts on no such."""
    generator = torch.Generator().manual_seed(seed)
    rows, marks, resting = (
        torch.rand(seen.valid.shape, generator=generator) < share for share in (0.8, 0.4, 0.3)
    )
    asked = KINDS[kind](rows, marks, generator)
    weights, mask = random_weights(seen, seed), full_mask(seen)
    texts, length = seen.valid.shape
    free, even, live = (torch.zeros(texts, HEADS, dtype=torch.float64) for _ in range(3))
    for text in range(texts):
        for query in range(length):
            visible, row = mask[text, query], weights[text, :, query]
            if not (asked.probe.rows[text, query] and seen.valid[text, query]):
                continue
            if not asked.counts(text, query, visible):
                continue
            awake = visible & ~resting[text]
            live[text] += 1 - row[:, resting[text]].sum(-1)
            free[text] += torch.as_tensor(asked.answer(text, query, row * ~resting[text]))
            if awake.any():
                uniform = (awake / awake.sum()).expand(HEADS, -1)
                share = torch.as_tensor(asked.answer(text, query, uniform))
                even[text] += share * (row * awake).sum(-1)
    for size in {1, 2, seen.n_keys}:
        sums = through_lens(asked.probe, weights, seen, size, resting)
        torch.testing.assert_close(sums.free, free, atol=3e-6, rtol=0)
        torch.testing.assert_close(sums.free_chance, even, atol=3e-6, rtol=0)
        torch.testing.assert_close(sums.live, live, atol=3e-6, rtol=0)
        without = through_lens(asked.probe, weights, seen, size)
        assert torch.equal(without.raw, sums.raw)
        assert not any(part.any() for part in (without.free, without.free_chance, without.live))


def test_layers_wait_for_each_other_and_are_not_mixed_up() -> None:
    """Short layers are read together; those that see otherwise, or in other blocks, apart."""
    wide = Visibility(torch.ones(2, 9, dtype=torch.bool), causal=True)
    near = Visibility(wide.valid, causal=True, window=4)
    layers = [(wide, 9), (wide, 9), (near, 9), (wide, 4), (near, 4), (wide, 9)]
    probes = {"back": Offset(wide.valid, (-1,)), "it": Columns(wide.valid, wide.valid)}
    resting = torch.zeros_like(wide.valid)
    resting[:, 0] = True
    lens = Lens(probes, resting)
    each = [random_weights(seen, n) for n, (seen, _) in enumerate(layers)]
    for n, (seen, rows) in enumerate(layers):
        show(lens, each[n], seen, rows, layer=n)
    assert sorted(lens.sums) == list(range(len(layers)))
    for n, (seen, rows) in enumerate(layers):
        for question, probe in enumerate(probes.values()):
            alone = through_lens(probe, each[n], seen, rows, resting)
            together = one_of(lens.sums[n], question)
            for part in fields(LayerSums):
                torch.testing.assert_close(
                    getattr(together, part.name).double(), getattr(alone, part.name).double(),
                    atol=2e-6, rtol=0,
                )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(seen=visibilities(), seed=st.integers(0, 2**20))
def test_shares_of_attention_and_their_chance(kind: str, seen: Visibility, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.rand(seen.valid.shape, generator=generator) < 0.8
    marks = torch.rand(seen.valid.shape, generator=generator) < 0.4
    asked = KINDS[kind](rows, marks, generator)
    weights = random_weights(seen, seed)
    raw, chance, counted = by_hand(asked, weights, seen)
    for size in range(1, seen.n_keys + 1):
        sums = through_lens(asked.probe, weights, seen, size)
        assert torch.equal(sums.rows, counted)
        torch.testing.assert_close(sums.raw, raw, atol=2e-6, rtol=0)
        torch.testing.assert_close(sums.chance, chance, atol=2e-6, rtol=0)


@settings(max_examples=60, deadline=None)
@given(seen=visibilities(), seed=st.integers(0, 2**20))
def test_entropy_breadth_and_distance(seen: Visibility, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.rand(seen.valid.shape, generator=generator) < 0.8
    mask = full_mask(seen)
    weights = random_weights(seen, seed)
    positions = torch.arange(seen.n_keys).double()

    def entropy(text: int, query: int, row: Tensor) -> Tensor:
        some = row.double()
        return -(some * some.clamp(min=1e-300).log()).sum(-1)

    def breadth(text: int, query: int, row: Tensor) -> Tensor:
        return entropy(text, query, row) / mask[text, query].sum().double().log()

    def distance(text: int, query: int, row: Tensor) -> Tensor:
        return (row.double() * (positions - query).abs()).sum(-1)

    for asked in (
        Asked(Entropy(rows), entropy, lambda *_: True),
        Asked(Breadth(rows, 3), breadth, lambda text, query, visible: int(visible.sum()) >= 3),
        Asked(Distance(rows), distance, lambda *_: True),
    ):
        raw, _, counted = by_hand(asked, weights, seen)
        for size in range(1, seen.n_keys + 1):
            sums = through_lens(asked.probe, weights, seen, size)
            assert torch.equal(sums.rows, counted)
            torch.testing.assert_close(sums.raw, raw, atol=2e-5, rtol=0)
            assert not sums.chance.any()  # not a share of attention


def test_breadth_asks_only_rows_that_see_eight_keys() -> None:
    seen = Visibility(torch.ones(1, 10, dtype=torch.bool), causal=True)
    even = full_mask(seen)[:, None].float()
    even = (even / even.sum(-1, keepdim=True)).expand(1, HEADS, -1, -1)
    sums = through_lens(Breadth(seen.valid), even, seen, 4)
    assert sums.rows.tolist() == [3]
    torch.testing.assert_close(sums.raw, torch.full((1, HEADS), 3.0).double())


def test_padding_is_asked_nothing_even_when_a_probe_names_it() -> None:
    valid = torch.tensor([[True, True, True, False, False]])
    seen = Visibility(valid, causal=True)
    everything = torch.ones_like(valid)
    weights = random_weights(seen, 0)
    for probe in (Offset(everything, (-1,)), Columns(everything, everything), Entropy(everything)):
        assert int(through_lens(probe, weights, seen, 5).rows) == 3 - isinstance(probe, Offset)


def test_an_observer_sees_every_weight_once() -> None:
    seen = Visibility(torch.ones(1, 11, dtype=torch.bool), causal=True, window=4)
    weights = random_weights(seen, 3)
    rebuilt = torch.zeros_like(weights)

    def put(block: Block) -> None:
        rebuilt[:, :, block.start : block.stop, block.low : block.high] += block.weights

    show(Lens(observers=(put,)), weights, seen, 3)
    assert torch.equal(rebuilt, weights)


def test_probes_of_one_kind_are_read_together_and_not_mixed_up() -> None:
    """Several Columns share a pass over the block; each keeps its own keys and rows."""
    seen = Visibility(torch.ones(2, 9, dtype=torch.bool), causal=True)
    weights = random_weights(seen, 5)
    generator = torch.Generator().manual_seed(6)
    probes: dict[str, Probe] = {"entropy": Entropy(seen.valid)}
    for name in "abc":
        rows, keys = (torch.rand(2, 9, generator=generator) < 0.5 for _ in range(2))
        probes[name] = Columns(rows, keys)
    lens = Lens(probes)
    show(lens, weights, seen, 4)
    assert list(lens.probes) == list(probes)
    for question, probe in enumerate(probes.values()):
        alone = through_lens(probe, weights, seen, 9)
        together = one_of(lens.sums[0], question)
        torch.testing.assert_close(together.raw, alone.raw, atol=1e-6, rtol=0)
        assert torch.equal(together.rows, alone.rows)
        assert torch.equal(together.chance, alone.chance)


def test_a_learned_sink_is_neither_spread_nor_distance() -> None:
    """Rows of half the weight: everything asked of the keys is half as much."""
    seen = Visibility(torch.ones(1, 6, dtype=torch.bool), causal=True)
    whole = torch.rand(1, 2, 6, 6, generator=torch.Generator().manual_seed(0)).tril()
    whole = whole / whole.sum(-1, keepdim=True)
    share = torch.full((1, 2, 6), 0.5)
    scores = whole.clamp(min=1e-38).log()
    plain, sunk = Block(0, 0, 0, whole, scores), Block(0, 0, 0, whole / 2, scores, share)
    rows, keys = torch.ones(1, 6, dtype=torch.bool), torch.zeros(1, 6, dtype=torch.bool)
    keys[0, 0] = True
    for probe in (Distance(rows), Columns(rows, keys), Offset(rows, (0, -1))):
        torch.testing.assert_close(probe.read(sunk, seen), probe.read(plain, seen) / 2)
    both = Columns(rows, keys, with_sink=True)
    torch.testing.assert_close(both.read(sunk, seen), whole[..., 0] / 2 + 0.5)
    assert torch.equal(read_all({"it": both}, sunk, seen)["it"], both.read(sunk, seen))
    by_hand = -torch.special.xlogy(whole / 2, whole / 2).sum(-1)
    torch.testing.assert_close(sunk.entropy, by_hand, atol=1e-5, rtol=0)
