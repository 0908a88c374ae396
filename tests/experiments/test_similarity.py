"""How alike heads are: planted likeness is found, and grouping follows it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnscope
from attnscope.api import Model
from attnscope.attention.alignment import Moments
from attnscope.attention.cores import Block
from attnscope.attention.spec import AttentionSpec
from attnscope.experiments import held_out
from attnscope.experiments.grouping import alike, pair_losses, sharing_loss
from attnscope.experiments.held_out import read_moments
from attnscope.experiments.similarity import Overlaps
from attnscope.experiments.similarity_result import SimilarityResult
from attnscope.models.text import batch_of
from tests import tiny


@pytest.fixture(autouse=True)
def _few_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "SEQUENCES", 3)
    monkeypatch.setattr(held_out, "CONTROLS", 2)


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    @lru_cache
    def get(name: str) -> Model:
        directory = tiny.save(tiny.CONFIGS[name](), tmp_path_factory.mktemp(name), causal_lm=True)
        return attnscope.load(str(directory), logits=True)

    return get


def _similarity(model: Model, **options: Any) -> SimilarityResult:
    found = model.compare(similarity=True, passages=3, **options).similarity
    assert found is not None
    return found


def _moments(features: torch.Tensor) -> Moments:
    """Of keys (= values) (T, G·D)."""
    seen = features.double().T @ features.double()
    return Moments(seen, seen)


SPEC = AttentionSpec(d_model=16, n_heads=4, d_head=4, causal=True, rotary=True)


def _paired(pairs: list[tuple[int, int]]) -> Moments:
    """Four heads of width 4; in each pair one is the other, turned and stretched pair by pair."""
    torch.manual_seed(0)
    heads: dict[int, torch.Tensor] = {}
    for one, other in pairs:
        base = torch.randn(50, 4)
        z = torch.complex(base[:, :2], base[:, 2:]) * torch.tensor([0.5 + 1j, -2j])
        heads[one], heads[other] = base, torch.cat((z.real, z.imag), -1)
    return _moments(torch.cat([heads[n] for n in range(4)], -1))


@pytest.mark.parametrize("pairs", [[(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]])
def test_heads_that_are_one_another_s_image_are_grouped(pairs: list[tuple[int, int]]) -> None:
    moments = _paired(pairs)
    for one, other in pairs:
        loss = sharing_loss(SPEC, moments, (one, other))
        assert loss.key == pytest.approx(0, abs=1e-9)
        assert loss.value == pytest.approx(0, abs=1e-9)
    assert set(alike(SPEC, moments, 2).groups) == set(pairs)


def test_heads_with_nothing_in_common_lose_half() -> None:
    loss = sharing_loss(SPEC, _moments(torch.eye(16)), (0, 1))  # each at times of its own
    assert loss.key == pytest.approx(0.5)
    assert loss.value == pytest.approx(0.5)


def test_normed_keys_are_compared_as_they_are() -> None:
    moments = _paired([(0, 1), (2, 3)])
    spec = SPEC.with_changes(qk_norm="head")
    assert sharing_loss(spec, moments, (0, 1)).key > 0.1
    same = torch.randn(30, 4).repeat(1, 4)
    assert sharing_loss(spec, _moments(same), (0, 1)).key == pytest.approx(0, abs=1e-12)


def test_nothing_but_zeros_loses_nothing() -> None:
    loss = sharing_loss(SPEC, _moments(torch.zeros(5, 16)), (0, 1))
    assert (loss.key, loss.value) == (0, 0)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([2, 3, 4, 6]))
def test_exchanging_never_costs_more_than_neighbours(seed: int, n_groups: int) -> None:
    spec = AttentionSpec(d_model=24, n_heads=12, d_head=2, causal=True)
    generator = torch.Generator().manual_seed(seed)
    moments = _moments(torch.randn(20, 24, generator=generator))
    grouping = alike(spec, moments, n_groups)
    assert sorted(grouping.order) == list(range(12))
    assert {len(group) for group in grouping.groups} == {12 // n_groups}
    costs = np.array([[loss.mean for loss in row] for row in pair_losses(spec, moments)])

    def total(groups: Any) -> float:
        return sum(costs[one, other] for group in groups for one in group for other in group)

    size = 12 // n_groups
    neighbours = [range(n, n + size) for n in range(0, 12, size)]
    assert total(grouping.groups) <= total(neighbours) + 1e-9


def test_query_heads_go_with_their_key_value_head() -> None:
    spec = AttentionSpec(d_model=32, n_heads=8, n_kv_heads=4, d_head=4, causal=True, rotary=True)
    assert alike(spec, _paired([(0, 2), (1, 3)]), 2).groups == ((0, 1, 4, 5), (2, 3, 6, 7))
    assert alike(spec, _paired([(0, 2), (1, 3)]), 8).groups == tuple((n,) for n in range(8))


def test_overlap_by_hand(causal: Callable[[str], Model]) -> None:
    """Two rows of two keys: heads 0 and 1 share .5 and 1, of which 0 and 0 lie off the first."""
    model = causal("llama-mha")
    batch = batch_of([model.reader.read("ab")])
    batch = batch.rows(0, 1)
    weights = torch.zeros(1, 4, batch.ids.shape[1], batch.ids.shape[1])
    weights[..., 0] = 1
    weights[0, 0, 1, :2] = torch.tensor([0.5, 0.5])
    overlaps = Overlaps(model)
    overlaps.begin(batch, [0])
    overlaps.see(Block(0, 0, 0, weights, weights))
    n_rows = batch.ids.shape[1] - 1
    assert float(overlaps.shared[0, 0, 1]) / overlaps.rows == pytest.approx(1 - 0.5 / n_rows)
    assert float(overlaps.shared[0, 1, 2]) / overlaps.rows == 1
    assert float(overlaps.awake[0, 0, 1]) == 0
    assert float(overlaps.mass[0, 0, 1]) == 0.5
    assert float(overlaps.mass[0, 1, 2]) == 0


@pytest.mark.parametrize("name", ["llama-mha", "llama-gqa", "gpt_oss", "gemma2"])
def test_every_pair_is_there_and_a_share(name: str, causal: Callable[[str], Model]) -> None:
    found = _similarity(causal(name))
    assert len(found.queries) == found.n_layers * 6
    n = found.n_kv_heads
    assert len(found.shared) == found.n_layers * n * (n - 1) // 2
    for pair in found.queries:
        assert 0 <= pair.overlap <= 1
        assert pair.awake is None or 0 <= pair.awake <= 1
        assert pair.shares == (pair.heads[0] * n // 4 == pair.heads[1] * n // 4)
    for shared in found.shared:
        assert 0 <= shared.key <= 0.5 + 1e-9
        assert 0 <= shared.value <= 0.5 + 1e-9
    assert [one.n_kv_heads for one in found.suggestions] == ([2] if n == 4 else [])
    assert len(found.to_frame()) == len(found.queries) + len(found.shared)


def test_what_is_suggested_is_what_converting_so_costs(causal: Callable[[str], Model]) -> None:
    model = causal("llama-mha")
    (suggested,) = _similarity(model).suggestions
    for grouping, delta in zip(("neighbours", "alike"), suggested.deltas, strict=True):
        converted = model.compare(
            convert=[2], methods="best-aligned", grouping=grouping, passages=3
        ).conversion
        assert converted is not None
        assert converted.conversions[0].loss_delta == pytest.approx(delta, abs=1e-9)
    assert suggested.lost[1] <= suggested.lost[0]


def test_moments_do_not_depend_on_where_the_tokens_stand(
    causal: Callable[[str], Model],
) -> None:
    """What is read off keys behind the rotary embedding is the same before it."""
    model = causal("llama-mha")
    text = model.reader.read("the cat sang a song about the floor")
    after = read_moments(model, [text])[0]
    attention = model.seats[0].attention
    spec = attention.spec
    kept: list[torch.Tensor] = []
    hook = attention.W_K.register_forward_hook(lambda *given: kept.append(given[2]))
    model.run(batch_of([text]))
    hook.remove()
    flat = kept[0][0].double()
    before = Moments(flat.T @ flat, after.value)
    for one, other in ((0, 1), (1, 3)):
        assert sharing_loss(spec, after, (one, other)).key == pytest.approx(
            sharing_loss(spec, before, (one, other)).key, abs=1e-6
        )
