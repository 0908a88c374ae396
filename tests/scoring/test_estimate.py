"""From sums to scores: the laws that hold for any numbers, and an interval known by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnscope.scoring.estimate import NUMBERS, RESAMPLES, Scores, estimate, mean, score
from attnscope.scoring.sums import HeadSums, concatenate

Numbers = Sequence[float]
MEANS = ("raw", "chance", "lift", "sink_free", "sink_free_chance", "live_mass")


def random_sums(texts: int, seed: int, layers: int = 2, heads: int = 3) -> HeadSums:
    """Two questions; some texts have no row to ask the second one of."""
    draw = np.random.default_rng(seed)
    rows = draw.integers(1, 20, (texts, layers, 2))
    rows[::2, :, 1] = 0
    share = draw.random((texts, layers, heads, 2))
    chance = draw.random((texts, layers, 2)) * 0.9
    live = draw.random(share.shape) * rows[:, :, None]
    free, even = (draw.random(share.shape) * live for _ in range(2))
    return HeadSums(("one", "two"), share * rows[:, :, None], chance * rows, rows, free, even, live)


def single(
    raw: Numbers, chance: Numbers, rows: list[int], free: Numbers = (), even: Numbers = (),
    live: Numbers = (),
) -> HeadSums:  # fmt: skip
    """One layer, one head, one question; a number for each text."""
    nothing = [0.0] * len(rows)
    each = [np.array(part or nothing)[:, None, None, None] for part in (raw, free, even, live)]
    return HeadSums(
        ("one",),
        each[0],
        np.array(chance)[:, None, None],
        np.array(rows)[:, None, None],
        *each[1:],
    )


def numbers(scores: Scores, *names: str) -> list[Any]:
    return [getattr(scores, name) for name in names or (*MEANS, "n")]


def test_a_mean_over_rows_not_over_texts() -> None:
    found = score(single([9.0, 1.0], [2.0, 0.5], [9, 1]), "one")
    assert found.raw[0, 0] == pytest.approx(1.0)
    assert found.chance[0, 0] == pytest.approx(0.25)
    assert found.lift[0, 0] == pytest.approx(1.0)
    assert found.n[0, 0] == 10


@pytest.mark.parametrize(
    ("raw", "chance", "lift"),
    [(0.5, 0.5, 0.0), (1.0, 0.2, 1.0), (0.0, 0.2, -0.25), (0.6, 0.2, 0.5)],
)
def test_lift(raw: float, chance: float, lift: float) -> None:
    found = score(single([10 * raw], [10 * chance], [10]), "one")
    assert found.lift[0, 0] == pytest.approx(lift)


@settings(deadline=None)
@given(texts=st.integers(1, 6), seed=st.integers(0, 2**20))
def test_a_text_counted_twice_changes_no_mean(texts: int, seed: int) -> None:
    once = random_sums(texts, seed)
    twice = once + once
    assert len(twice) == 2 * texts
    for name in once.names:
        before, after = score(once, name), score(twice, name)
        for first, second in zip(numbers(before, *MEANS), numbers(after, *MEANS), strict=True):
            np.testing.assert_allclose(first, second, atol=1e-12)
        np.testing.assert_array_equal(2 * before.n, after.n)
        np.testing.assert_allclose(mean(once, name), mean(twice, name), atol=1e-12)


@settings(deadline=None)
@given(texts=st.integers(1, 6), seed=st.integers(0, 2**20), order=st.randoms())
def test_the_order_of_texts_changes_no_mean(texts: int, seed: int, order: Any) -> None:
    sums = random_sums(texts, seed)
    shuffled = list(range(texts))
    order.shuffle(shuffled)
    for name in sums.names:
        pairs = zip(
            numbers(score(sums, name)), numbers(score(sums.take(shuffled), name)), strict=True
        )
        for first, second in pairs:
            np.testing.assert_allclose(first, second, atol=1e-12)


@settings(deadline=None, max_examples=20)
@given(texts=st.integers(1, 5), seed=st.integers(0, 2**20))
def test_permuting_heads_permutes_results(texts: int, seed: int) -> None:
    """Interval included: every head sees the same resamples."""
    sums = random_sums(texts, seed)
    order = [2, 0, 1]
    by_head = {
        name: array[:, :, order] if array.ndim == 4 else array
        for name, array in sums.arrays().items()
    }
    permuted = HeadSums(sums.names, **by_head)
    for name in sums.names:
        before, after = score(sums, name), score(permuted, name)
        for first, second in zip(
            numbers(before, *NUMBERS, "n"),
            numbers(after, *NUMBERS, "n"),
            strict=True,
        ):
            np.testing.assert_allclose(first[:, order], second, rtol=1e-12)  # sums round


@settings(deadline=None, max_examples=20)
@given(first=st.integers(1, 4), second=st.integers(1, 4), seed=st.integers(0, 2**20))
def test_sums_add(first: int, second: int, seed: int) -> None:
    whole = random_sums(first + second, seed)
    parts = whole.take(range(first)) + whole.take(range(first, first + second))
    assert set(whole.arrays()) == {"raw", "chance", "rows", "free", "free_chance", "live"}
    for name, array in whole.arrays().items():
        np.testing.assert_array_equal(parts.arrays()[name], array)


def test_sums_of_other_questions_do_not_add() -> None:
    one = random_sums(1, 0)
    with pytest.raises(ValueError, match="same questions"):
        concatenate([one, HeadSums(("one", "three"), **one.arrays())])


def test_one_text_has_no_interval() -> None:
    found = score(single([6.0], [2.0], [10]), "one")
    assert all(np.isnan(part).all() for part in numbers(found, "low", "high", "bound"))
    entry = found.entry(0, 0)
    assert entry is not None
    assert entry["low"] is entry["high"] is entry["bound"] is None
    assert set(entry) == {
        "raw", "chance", "lift", "low", "high", "bound", "sink_free", "sink_free_chance",
        "live_mass", "n",
    }  # fmt: skip


def test_the_interval_of_two_texts_is_from_the_one_to_the_other() -> None:
    """Resamples are AA, AB, BB in shares 1:2:1, so the outer 2.5 % are the texts themselves."""
    found = score(single([2.0, 6.0], [2.0, 2.0], [10, 10]), "one")
    assert found.lift[0, 0] == pytest.approx(0.25)
    assert found.low[0, 0] == pytest.approx(0.0)
    assert found.high[0, 0] == pytest.approx(0.5)


def test_texts_that_agree_have_an_interval_without_width() -> None:
    found = score(single([6.0] * 4, [2.0] * 4, [10] * 4), "one")
    assert found.low[0, 0] == found.high[0, 0] == pytest.approx(0.5)
    assert found.bound[0, 0] == pytest.approx(0.5)


def test_the_interval_is_as_wide_as_a_mean_is_uncertain() -> None:
    """100 texts of 0 or 1, half and half: the standard error of their mean is 0.05."""
    raw = [float(n % 2) for n in range(100)]
    found = score(single(raw, [0.0] * 100, [1] * 100), "one")
    assert found.high[0, 0] - found.low[0, 0] == pytest.approx(2 * 1.96 * 0.05, rel=0.1)
    assert RESAMPLES == 2000


def test_the_seed_decides_the_resamples() -> None:
    sums = random_sums(7, 3)
    again = numbers(score(sums, "one", seed=5), "low", "high", "bound")
    for first, second in zip(
        numbers(score(sums, "one", seed=5), "low", "high", "bound"), again, strict=True
    ):
        np.testing.assert_array_equal(first, second)
    assert not np.array_equal(score(sums, "one", seed=6).low, again[0])


def test_nothing_to_score_is_null_and_never_nan() -> None:
    found = score(single([0.0, 0.0], [0.0, 0.0], [0, 0]), "one")
    assert found.entry(0, 0) is None
    no_room = score(single([4.0], [4.0], [4]), "one").entry(0, 0)  # each row sees its target only
    assert no_room is not None
    assert no_room["lift"] is None
    assert no_room["raw"] == 1.0
    json.dumps(no_room, allow_nan=False)


def test_texts_without_a_row_do_not_spoil_the_interval() -> None:
    found = score(single([0.0, 6.0, 6.0], [0.0, 2.0, 2.0], [0, 10, 10]), "one")
    assert found.lift[0, 0] == pytest.approx(0.5)
    assert found.low[0, 0] == found.high[0, 0] == pytest.approx(0.5)


# What is not parked on resting places


def test_sink_free_is_a_ratio_of_sums_and_no_mean_of_ratios() -> None:
    sums = single(
        [5.0, 3.0], [2.0, 2.0], [10, 10], free=[3.0, 1.0], even=[2.0, 0.5], live=[8.0, 2.0]
    )
    found = score(sums, "one")
    assert found.sink_free[0, 0] == pytest.approx((3 + 1) / (8 + 2))  # not (3/8 + 1/2) / 2
    assert found.sink_free_chance[0, 0] == pytest.approx((2 + 0.5) / (8 + 2))
    assert found.live_mass[0, 0] == pytest.approx((8 + 2) / (10 + 10))


def test_nothing_but_resting_places_is_no_sink_free_score() -> None:
    """All targets are such places: even an even head would find nothing else."""
    entry = score(single([5.0], [2.0], [10], live=[8.0]), "one").entry(0, 0)
    assert entry is not None
    assert entry["sink_free"] is entry["sink_free_chance"] is None
    assert entry["live_mass"] == pytest.approx(0.8)
    parked = score(single([5.0], [2.0], [10], even=[1e-3], live=[0.0]), "one").entry(0, 0)
    assert parked is not None
    assert parked["live_mass"] == 0.0
    json.dumps([entry, parked], allow_nan=False)


@settings(deadline=None, max_examples=20)
@given(texts=st.integers(1, 7), seed=st.integers(0, 2**20))
def test_taking_neighbours_together_changes_no_mean(texts: int, seed: int) -> None:
    sums = random_sums(texts, seed)
    folded = sums.folded()
    assert len(folded) == (texts + 1) // 2
    for name in sums.names:
        for first, second in zip(
            numbers(score(sums, name)), numbers(score(folded, name)), strict=True
        ):
            np.testing.assert_allclose(first, second, atol=1e-12)


# One bound for all heads and questions


@settings(deadline=None, max_examples=20)
@given(texts=st.integers(2, 30), seed=st.integers(0, 2**20))
def test_the_bound_is_under_the_lift_and_falls_with_the_family(texts: int, seed: int) -> None:
    sums = random_sums(texts, seed)
    alone, together = score(sums, "one"), estimate(sums)["one"]
    strict = estimate(sums, error=0.01)["one"]
    for found in (alone, together, strict):
        known = np.isfinite(found.bound)
        assert (found.bound[known] <= found.lift[known] + 1e-12).all()
    for name in ("raw", "chance", "lift", "low", "high"):
        np.testing.assert_array_equal(getattr(alone, name), getattr(together, name))
    known = np.isfinite(together.bound)
    assert (together.bound[known] <= alone.bound[known] + 1e-12).all()
    assert (strict.bound[known] <= together.bound[known] + 1e-12).all()


def test_heads_that_never_vary_are_bounded_by_themselves() -> None:
    """They also add nothing to what the others may deviate."""
    still, moving = _family(3, "normal", heads=2), _family(4, "normal", heads=2)
    still.raw[:] = still.chance[:, :, None] + 0.4 * (still.rows - still.chance)[:, :, None]
    both = HeadSums(("still",), **still.arrays()).beside(HeadSums(("moving",), **moving.arrays()))
    found = estimate(both)
    np.testing.assert_allclose(found["still"].bound, 0.4, atol=1e-9)
    np.testing.assert_array_equal(found["moving"].bound, estimate(both, ["moving"])["moving"].bound)
    assert (found["moving"].bound < found["moving"].lift - 0.01).all()


TRUE, TEXTS = 0.3, 40


def _family(seed: int, noise: str, heads: int = 60) -> HeadSums:
    """Heads whose lift is TRUE over all texts there could be; 40 texts of unequal length."""
    draw = np.random.default_rng(seed)
    rows = draw.integers(20, 60, (TEXTS, 1, 1))
    size = (TEXTS, 1, heads, 1)
    kinds = {
        "normal": lambda: draw.normal(0, 0.1, size),
        "skewed": lambda: 0.05 * (4 - draw.gamma(4, 1, size)),  # mostly high, now and then low
        "counts": lambda: draw.binomial(10, TRUE, size) / 10 - TRUE,
    }
    chance = 0.1 * rows
    raw = chance[:, :, None] + (TRUE + kinds[noise]()) * (rows - chance)[:, :, None]
    nothing = np.zeros_like(raw)
    return HeadSums(("one",), raw, chance, rows, nothing, nothing, nothing)


@pytest.mark.parametrize(("noise", "heads"), [("normal", 120), ("skewed", 60), ("counts", 60)])
def test_hardly_any_family_has_a_bound_above_the_truth(noise: str, heads: int) -> None:
    """One family of heads in twenty: 10 of 200, and 8 more by chance at most (p < .01)."""
    families = [score(_family(seed, noise, heads), "one", seed=seed) for seed in range(200)]
    wrong = sum(bool((found.bound > TRUE).any()) for found in families)
    below = np.mean([(found.bound <= found.low).mean() for found in families])
    assert below > 0.999
    assert wrong <= 18
