"""The forced choice: chance is one half, no item chooses its own view, simple rules are counted."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest

from attnscope.scoring.coreference import Readings, baselines, rule_answers, share_beaten
from attnscope.scoring.estimate import sign_test
from attnscope.scoring.passages import Item, times_named


def readings(won: np.ndarray) -> Readings:
    """Readings of which only `won` is asked for."""
    return Readings(won, won, won, np.full(len(won), 2))


def test_ties_count_half_for_any_number_of_candidates() -> None:
    even = np.ones((5, 2, 3))
    assert (share_beaten(even, 2) == 0.5).all()
    ranked = np.arange(4.0)[:, None, None]
    assert [float(share_beaten(ranked, gold)[0, 0]) for gold in range(4)] == [0, 1 / 3, 2 / 3, 1]


def test_no_item_chooses_its_own_view() -> None:
    """Heads flip coins in 3 views: chosen on the items themselves the best would look good."""
    draw = np.random.default_rng(0)
    won = draw.integers(2, size=(400, 3, 10, 100)).astype(float)
    read = readings(won)
    fold = np.arange(400) % 2
    honest = read.at(read.best_elsewhere(fold)[fold]).won.mean()
    own = read.at(read.best_view()).won.mean()
    assert abs(honest - 0.5) < 0.003
    assert own > 0.515


def test_views_of_a_fold_do_not_change_with_its_items() -> None:
    draw = np.random.default_rng(1)
    won = draw.random((20, 2, 3, 4))
    fold = np.arange(20) % 2
    before = readings(won).best_elsewhere(fold)[0]
    won[fold == 0] = draw.random((10, 2, 3, 4))
    assert (readings(won).best_elsewhere(fold)[0] == before).all()


def test_sums_add_up_by_unit() -> None:
    won = np.random.default_rng(2).random((6, 1, 2, 3))
    answers = readings(won).at(np.zeros((2, 3), dtype=int))
    unit, counted = np.array([0, 0, 1, 2, 2, 2]), np.array([1, 1, 1, 0, 1, 1], dtype=bool)
    sums = answers.sums("coreference", unit, 3, counted)
    assert sums.rows[..., 0].tolist() == [[2, 2], [1, 1], [2, 2]]
    assert sums.raw[2, ..., 0] == pytest.approx(won[4:, 0].sum(0))
    assert (sums.chance == sums.rows / 2).all()


def test_simple_rules() -> None:
    items = [
        Item(0, 9, (2, 8), gold=1, nearest=1, named=(3, 1)),
        Item(0, 9, (2, 5), gold=0, nearest=1, named=(1, 1)),
        Item(0, 9, (2, 5, 7), gold=1, nearest=2, named=(0, 2, 5)),
    ]
    found = {name: answers.tolist() for name, answers in rule_answers(items).items()}
    assert found == {
        "nearest candidate": [1, 0, 0.25],
        "first candidate": [0, 1, 0.25],
        "more often named": [0, 0.5, 0.5],
        "previous token": [1, 0.5, 0.5],
    }
    assert baselines(items)["nearest candidate"] == pytest.approx(1.25 / 3)


def test_a_name_is_named_as_often_as_its_most_frequent_word() -> None:
    text = "Ann Lee saw the bowl. Lee took the bowl; the Lee house fell."
    assert times_named(text, "Ann Lee") == 3
    assert times_named(text, "the bowl") == 2
    assert times_named(text, "the") == 0


def test_the_sign_test_is_exact() -> None:
    wins, losses = np.array([[0, 1, 5, 12, 700]]), np.array([[0, 1, 0, 3, 600]])

    def exact(won: int, lost: int) -> float:
        n, least = won + lost, min(won, lost)
        tail = Fraction(sum(comb(n, k) for k in range(least + 1)), 2**n)
        return float(min(Fraction(1), 2 * tail))

    found = sign_test(wins, losses)[0]
    for n, (won, lost) in enumerate(zip(wins[0], losses[0], strict=True)):
        assert found[n] == pytest.approx(exact(int(won), int(lost)), rel=1e-9)
