"""Every architecture against transformers' own eager attention, where a fault would show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attnscope import api
from attnscope.attention.cores import Block
from attnscope.attention.lens import Lens
from attnscope.models.supported import SUPPORTED
from attnscope.models.text import batch_of
from tests import tiny

T = 40  # longer than any window in tiny.CONFIGS
SHORT = 25


def ids_of(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, tiny.VOCABULARY, (length,), generator=generator).tolist()


def run(model: api.Model, texts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Weights (L, B, H, T, T) and the last hidden state (B, T, C) of some texts in one batch."""
    longest = max(map(len, texts))
    shape = model.shape
    weights = torch.zeros(shape.n_layers, len(texts), shape.n_heads, longest, longest)

    def keep(block: Block) -> None:
        rows, keys = slice(block.start, block.stop), slice(block.low, block.high)
        weights[block.layer][:, :, rows, keys] = block.weights

    batch = batch_of([model.reader.from_ids(ids) for ids in texts], model.pad_id)
    return weights, model.run(batch, Lens(observers=(keep,)))


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_attention_and_hidden_state(name: str, checkpoint: Callable[[str], Path]) -> None:
    directory = checkpoint(name)
    model = api.load(str(directory))
    ids, other = ids_of(T, 1), ids_of(SHORT, 2)
    theirs = tiny.eager(directory, torch.tensor([ids]))
    expected, hidden = torch.stack(theirs.attentions), theirs.last_hidden_state
    scale = max(1.0, float(hidden.abs().max()))
    for rows in (None, 7):
        model.set_block_rows(rows)
        ours, last = run(model, [ids])
        apart = (ours - expected).abs().amax((1, 2, 3, 4))
        assert apart.max() <= 1e-5, apart
        assert (last - hidden).abs().max() <= 1e-5 * scale
    assert model.parity.max_abs_attention <= 1e-5
    if model.mixes_lengths:
        alone, last_alone = run(model, [other])
        together, last_together = run(model, [ids, other])
        assert (together[:, :1] - ours).abs().max() <= 1e-5
        assert (together[:, 1:, :, :SHORT, :SHORT] - alone).abs().max() <= 1e-5
        assert (last_together[:1] - last).abs().max() <= 1e-5 * scale
        assert (last_together[1:, :SHORT] - last_alone).abs().max() <= 1e-5 * scale


@pytest.mark.parametrize("model_type", SUPPORTED)
def test_the_table_tells_the_layout(model_type: str, checkpoint: Callable[[str], Path]) -> None:
    model = api.load(str(checkpoint(model_type)))
    assert model.family == model_type
    assert model.layout == SUPPORTED[model_type]


def test_every_supported_architecture_is_tested_and_no_other() -> None:
    assert set(SUPPORTED) == set(tiny.SUPPORTED)
    assert {make().model_type for make in tiny.CONFIGS.values()} == set(SUPPORTED)
    assert list(SUPPORTED) == sorted(SUPPORTED)
    assert len(SUPPORTED) >= 60
