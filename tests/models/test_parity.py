"""Every layout against transformers' own eager attention, on weights where a fault would show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attnscope import api
from attnscope.models.text import batch_of
from tests import tiny

T = 40  # longer than any window in tiny.CONFIGS


@pytest.mark.parametrize("name", tiny.CONFIGS)
@pytest.mark.parametrize("rows", [None, 7])
def test_attention_and_hidden_state(
    name: str, rows: int | None, checkpoint: Callable[[str], Path]
) -> None:
    directory = checkpoint(name)
    model = api.load(str(directory))
    model.set_block_rows(rows)
    ids = torch.randint(5, tiny.VOCABULARY, (T,), generator=torch.Generator().manual_seed(1))
    theirs = tiny.eager(directory, ids[None])
    captured = model.capture_ids(ids.tolist())
    for layer, weights in enumerate(theirs.attentions):
        assert (captured[layer] - weights[0]).abs().max() <= 1e-5, layer
    hidden = model.run(batch_of([model.reader.from_ids(ids.tolist())]))
    scale = max(1.0, float(theirs.last_hidden_state.abs().max()))
    assert (hidden - theirs.last_hidden_state).abs().max() <= 1e-5 * scale
    assert model.parity.max_abs_attention <= 1e-5
