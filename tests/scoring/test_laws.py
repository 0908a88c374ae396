"""Laws of a scan through real tiny models: what must not matter does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import attnscope
from attnscope.api import Model
from attnscope.scoring import scan as scanning
from attnscope.scoring.estimate import NUMBERS, estimate
from attnscope.scoring.scan import scan, scan_many
from attnscope.scoring.sums import HeadSums
from tests import english as knowing

WORDS = [
    *"abc",
    "the",
    "chef",
    "dropped",
    "glass",
    "bowl",
    "on",
    "floor",
    ",",
    "because",
    "was",
    ".",
]
FEW = settings(
    max_examples=7, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
TEXTS = st.lists(
    st.lists(st.sampled_from(WORDS), min_size=2, max_size=25).map(" ".join),
    min_size=2, max_size=7,
)  # fmt: skip
NAMES = ["mistral-window", "bert"]


@pytest.fixture(scope="module")
def models(checkpoint: Callable[[str], Path]) -> dict[str, Model]:
    return {name: attnscope.load(str(checkpoint(name))) for name in NAMES}


@pytest.fixture(autouse=True)
def _as_it_was(models: dict[str, Model]) -> Iterator[None]:
    yield
    for model in models.values():
        model.set_block_rows(None)


def sums_of(model: Model, texts: Sequence[str], **options: Any) -> HeadSums:
    return scan(model, [model.reader.read(text) for text in texts], **options)


def same(one: HeadSums, other: HeadSums, tolerance: float = 3e-5) -> None:
    assert one.names == other.names
    for name, array in one.arrays().items():
        np.testing.assert_allclose(
            array, other.arrays()[name], rtol=1e-5, atol=tolerance, err_msg=name
        )


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(texts=TEXTS, order=st.randoms(use_true_random=False))
def test_the_order_of_texts(name: str, texts: list[str], order: Any, models: Any) -> None:
    shuffled = list(range(len(texts)))
    order.shuffle(shuffled)
    sums = sums_of(models[name], texts)
    same(sums.take(shuffled), sums_of(models[name], [texts[n] for n in shuffled]))


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(texts=TEXTS, tokens=st.sampled_from([1, 20, 40, 100]))
def test_the_size_of_a_batch(
    name: str, texts: list[str], tokens: int, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = sums_of(models[name], texts)
    with monkeypatch.context() as changed:
        changed.setattr(scanning, "BATCH_TOKENS", tokens)
        same(together, sums_of(models[name], texts))


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(texts=TEXTS, rows=st.sampled_from([1, 2, 3, 10]))
def test_the_size_of_a_block(name: str, texts: list[str], rows: int, models: Any) -> None:
    models[name].set_block_rows(None)
    whole = sums_of(models[name], texts)
    models[name].set_block_rows(rows)
    same(whole, sums_of(models[name], texts))


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(texts=TEXTS)
def test_a_text_given_twice(name: str, texts: list[str], models: Any) -> None:
    once, twice = sums_of(models[name], texts), sums_of(models[name], [*texts, *texts])
    befores, afters = estimate(once), estimate(twice)
    for role, before in befores.items():
        after = afters[role]
        for number in ("raw", "chance", "lift", "sink_free", "sink_free_chance", "live_mass"):
            np.testing.assert_allclose(
                getattr(before, number), getattr(after, number), atol=1e-4, err_msg=number
            )
        np.testing.assert_array_equal(2 * before.n, after.n)


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(texts=TEXTS, cut=st.integers(1, 6))
def test_parts_add_up_to_the_whole(name: str, texts: list[str], cut: int, models: Any) -> None:
    cut = min(cut, len(texts) - 1)
    parts = sums_of(models[name], texts[:cut]) + sums_of(models[name], texts[cut:])
    same(parts, sums_of(models[name], texts))


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(texts=TEXTS, chunk=st.integers(1, 4))
def test_texts_that_stream(
    name: str, texts: list[str], chunk: int, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few at a time they are the same; folded, as little memory as is allowed, the same means."""
    whole = sums_of(models[name], texts)
    read = [models[name].reader.read(text) for text in texts]
    with monkeypatch.context() as changed:
        changed.setattr(scanning, "CHUNK", chunk)
        same(whole, scan_many(models[name], iter(read)))
        changed.setattr(scanning, "MAX_UNITS", 2)
        changed.setattr(scanning, "SUMS_BYTES", 1)
        folded = scan_many(models[name], iter(read))
    assert len(folded) <= 2 or len(folded) < len(texts)
    befores, afters = estimate(whole), estimate(folded)
    for role, before in befores.items():
        after = afters[role]
        for number in ("raw", "chance", "lift", "sink_free", "live_mass", "n"):
            np.testing.assert_allclose(
                getattr(before, number), getattr(after, number), atol=1e-4, err_msg=number
            )


def _permuted(order: list[int]) -> Callable[[nn.Module], None]:
    """The heads of every layer of a GPT-2 in another order; the network computes the same."""

    def change(network: nn.Module) -> None:
        for name, parameter in network.named_parameters():
            width = parameter.shape[-1]
            if "c_attn" in name:  # query, key, value: (…, 3·H·D)
                parts = parameter.reshape(-1, 3, 4, 8)[:, :, order]
                parameter.copy_(parts.reshape(parameter.shape))
            elif "attn.c_proj.weight" in name:  # (H·D, C)
                parameter.copy_(parameter.reshape(4, 8, width)[order].reshape(parameter.shape))

    return change


@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(order=st.permutations(range(4)), seed=st.integers(0, 2**20))
def test_permuting_heads_permutes_labels_and_scores(
    order: list[int], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """On the battery, the bounds and all."""
    results = []
    for change in (None, _permuted(list(order))):
        directory = tmp_path_factory.mktemp("permuted")
        knowing.save("gpt2", directory, seed=seed, std=0.22, change=change)
        results.append(attnscope.load(str(directory)).heads(knowing.TEXT))
    before, after = results
    assert before.battery is not None
    assert after.battery is not None
    for role, scores in before.battery.items():
        for number in (*NUMBERS, "n"):
            np.testing.assert_allclose(
                getattr(scores, number)[:, order], getattr(after.battery[role], number),
                atol=3e-4 if role != "coreference" else 5e-3, err_msg=f"{role} {number}",
            )  # fmt: skip
    for layer in range(3):
        for old, new in zip(order, range(4), strict=True):
            assert set(before.labels[layer][old].labels) == set(after.labels[layer][new].labels)
    np.testing.assert_array_equal(before.general.reach[:, order], after.general.reach)
