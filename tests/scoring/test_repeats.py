"""Tokens that are said more than twice, and what heads that copy exactly score on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import attnscope
from attnscope.api import Model
from attnscope.attention.cores import Block
from attnscope.attention.lens import Lens
from attnscope.attention.visibility import Visibility
from attnscope.experiments.samples import half_rows
from attnscope.scoring.profile import SHIFTS, profile_probes, shift_name
from attnscope.scoring.stimuli import RepeatedTokens, repeated_tokens


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path]) -> Model:
    return attnscope.load(str(checkpoint("llama-gqa")))


def test_every_repeat_says_the_same(model: Model) -> None:
    made = repeated_tokens(model, length=12, sequences=3, controls=2, repeats=4)
    tokens = made.batch.ids[:, made.start : made.stop]
    assert tokens.shape == (5, 48)
    parts = tokens[:3].view(3, 4, 12)
    assert (parts == parts[:, :1]).all()
    assert all(len(set(row.tolist())) == 48 for row in tokens[3:])
    assert made.describe(0)["repeats"] == 4
    assert [len(made.repeated()), len(made.control())] == [3, 2]


def test_two_repeats_are_what_they_were(model: Model) -> None:
    """The battery's tokens, and so what is kept of it, do not depend on there being more."""
    made = repeated_tokens(model, length=10, sequences=2, controls=1)
    again = repeated_tokens(model, length=10, sequences=2, controls=1, repeats=2)
    assert torch.equal(made.batch.ids, again.batch.ids)


def test_more_repeats_of_a_small_vocabulary_are_shorter(model: Model) -> None:
    made = repeated_tokens(model, length=60, repeats=3)
    assert made.length == (128 - made.start) // 3
    assert made.shortened_from == 60


def naive_targets(made: RepeatedTokens, query: int, shift: int) -> list[int]:
    """The keys that lie so far past what follows each earlier copy of the query's token."""
    ids = made.batch.ids[0].tolist()
    span = range(made.start, query)
    return [key + 1 + shift for key in span if ids[key] == ids[query] and key + 1 + shift >= 0]


@pytest.mark.parametrize("repeats", [2, 3, 4])
def test_the_targets_are_those_of_the_definition(model: Model, repeats: int) -> None:
    made = repeated_tokens(model, length=11, sequences=1, controls=1, repeats=repeats)
    batch = made.batch
    seen = Visibility(batch.valid, causal=True)
    for shift in (-8, -1, 0, 3, 8):
        probe = profile_probes(made, batch)[shift_name(shift)]
        rows = probe.targets(seen)[0]
        for query in range(batch.ids.shape[1]):
            wanted = naive_targets(made, query, shift)
            wanted = [key for key in wanted if key <= query and key >= (1 if shift else 0)]
            assert int(probe.visible(seen)[0, query]) == len(wanted), (shift, query)  # type: ignore[attr-defined]
            assert bool(rows[query]) == bool(wanted)


def pattern(n: int, keys: Callable[[int], list[int]]) -> Tensor:
    weights = torch.zeros(1, 1, n, n)
    for query in range(n):
        for key in keys(query):
            weights[0, 0, query, key] = 1 / len(keys(query))
    return weights


@pytest.mark.parametrize("repeats", [2, 3])
@pytest.mark.parametrize("shift", [0, -3, 5])
def test_an_ideal_head_scores_exactly_one_at_its_shift(
    model: Model, repeats: int, shift: int
) -> None:
    made = repeated_tokens(model, length=20, sequences=1, controls=1, repeats=repeats)
    n = made.batch.ids.shape[1]
    first = 1 if shift else 0
    weights = pattern(
        n, lambda query: [k for k in naive_targets(made, query, shift) if k >= first] or [0]
    )
    batch = made.repeated()
    lens = Lens(profile_probes(made, batch))
    lens.see(Block(0, 0, 0, weights, torch.zeros_like(weights)), Visibility(batch.valid, True))
    sums = lens.sums[0]
    for place, k in enumerate(SHIFTS):
        raw = float(sums.raw[0, 0, place]) / int(sums.rows[0, place])
        if k == shift:
            assert raw == pytest.approx(1.0, abs=1e-6)
        else:
            assert raw < 0.2, k


def test_halves_leave_out_what_nobody_can_know(model: Model) -> None:
    """The last token of the first copy is followed by the first of the second: no repeat yet."""
    made = repeated_tokens(model, length=5, sequences=2, controls=1, repeats=3)
    rows = half_rows(made, made.batch)
    start = made.start
    assert rows["first half"][0].nonzero()[:, 0].tolist() == list(range(start, start + 4))
    assert rows["second half"][0].nonzero()[:, 0].tolist() == list(range(start + 5, start + 14))
