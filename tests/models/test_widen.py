"""Runs that part ways in a middle layer are what they are when each is run alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import attnscope
from attnscope.attention.ablation import Ablation
from attnscope.attention.lens import Lens
from attnscope.models.widen import find_blocks, run_widened
from attnscope.types import TokenBatch
from tests import tiny

Checkpoint = Callable[[str], Path]


def batch(n: int) -> TokenBatch:
    generator = torch.Generator().manual_seed(6)
    ids = torch.randint(5, tiny.VOCABULARY, (n, 16), generator=generator)
    nothing = torch.zeros_like(ids, dtype=torch.bool)
    return TokenBatch(ids, ~nothing, nothing, nothing)


@pytest.mark.parametrize(
    "name",
    ["gpt2", "llama-gqa", "gemma2", "gemma3_text", "gptj", "phi", "opt", "mixtral", "gpt_oss",
     "bert-causal"],
)  # fmt: skip
@pytest.mark.parametrize("frozen", [False, True])
def test_widened_is_whole(name: str, frozen: bool, checkpoint: Checkpoint) -> None:
    model = attnscope.load(str(checkpoint(name)))
    ablation = Ablation("resample", ({1: (0,)}, {1: (1, 3)}), frozen=frozen)
    rows = [0, 0, 0, 1]
    given = batch(2)
    found = run_widened(model, given, rows, 1, Lens(ablation=ablation))
    whole = model.run(
        TokenBatch(*(t[rows] for t in (given.ids, given.valid, given.special, given.punctuation))),
        Lens(ablation=ablation),
    )
    assert model.memory["block 1 widens"] is not None
    torch.testing.assert_close(found, whole, atol=1e-4, rtol=1e-3)
    assert (found[0] - found[1]).abs().max() > 1e-3
    assert model.running.valid is None


def test_a_network_that_does_not_widen_gets_all_rows_from_the_start(
    checkpoint: Checkpoint,
) -> None:
    model = attnscope.load(str(checkpoint("llama-gqa")))
    blocks = find_blocks(model)
    assert blocks is not None

    def refuse(module: Any, args: Any, result: Any) -> None:
        states = result[0] if isinstance(result, tuple) else result
        assert len(states) != 3

    hook = blocks[2].register_forward_hook(refuse)
    ablation = Ablation("zero", ({1: (0,)},))
    found = run_widened(model, batch(1), [0, 0], 1, Lens(ablation=ablation))
    hook.remove()
    assert model.memory["block 1 widens"] is None
    twice = torch.cat([batch(1).ids] * 2)
    nothing = torch.zeros_like(twice, dtype=torch.bool)
    whole = model.run(TokenBatch(twice, ~nothing, nothing, nothing), Lens(ablation=ablation))
    torch.testing.assert_close(found, whole)
