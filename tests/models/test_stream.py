"""The residual stream: which norms are found on the way, and that they are the right ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from attnscope import api
from attnscope.errors import CheckpointError
from attnscope.models.stream import positions_in, read_stream, rotations_at

Checkpoint = Callable[[str], Path]

# How many norms: before a layer's attention, behind it, and in the stream between two layers.
WAYS = {
    "gpt2": (1, 0, 0),
    "llama-gqa": (1, 0, 0),
    "gemma": (1, 0, 0),
    "gemma2": (1, 1, 0),
    "gemma3_text": (1, 1, 0),
    "glm4": (1, 1, 0),
    "olmo": (1, 0, 0),  # a norm without weights
    "olmo2": (0, 1, 0),
    "cohere": (1, 0, 0),  # attention and MLP side by side
    "gpt_neox": (1, 0, 0),
    "gpt_neox-sequential": (1, 0, 0),
    "gptj": (1, 0, 0),
    "nanochat": (1, 0, 0),
    "opt": (1, 0, 0),
    "mixtral": (1, 0, 0),
    "gpt_oss": (1, 0, 0),
    "granite-multipliers": (1, 0, 0),
    "roberta-prelayernorm": (1, 0, 0),
    "bert": (0, 0, 2),
    "bert-causal": (0, 0, 2),
    "distilbert": (0, 0, 2),
    "electra": (0, 0, 2),
    "nomic_bert": (0, 0, 2),
}


@pytest.mark.parametrize("name", WAYS)
def test_ways(name: str, checkpoint: Checkpoint) -> None:
    stream = read_stream(api.load(str(checkpoint(name))))
    before, behind, between = WAYS[name]
    assert [len(norms) for norms in stream.reads] == [before] * len(stream.reads)
    assert [len(norms) for norms in stream.writes] == [behind] * len(stream.reads)
    assert [len(norms) for norms in stream.passes[1:-1]] == [between] * (len(stream.reads) - 1)
    assert stream.plain is (between == 0)
    factor = 0.4 if name == "granite-multipliers" else 1.0
    assert stream.factors == pytest.approx([factor] * len(stream.reads), rel=1e-4)


def test_a_first_layer_without_a_norm(checkpoint: Checkpoint) -> None:
    stream = read_stream(api.load(str(checkpoint("modernbert"))))
    assert [len(norms) for norms in stream.reads] == [0, 1, 1]


@pytest.mark.parametrize(
    ("name", "gains"),
    [
        ("gpt2", lambda net: [block.ln_1.weight for block in net.h]),
        ("llama-gqa", lambda net: [layer.input_layernorm.weight for layer in net.layers]),
        ("gemma2", lambda net: [1 + layer.input_layernorm.weight for layer in net.layers]),
        ("phimoe", lambda net: [layer.input_layernorm.weight for layer in net.layers]),
    ],
)
def test_the_gains_before_attention(
    name: str, gains: Callable[[nn.Module], list[torch.Tensor]], checkpoint: Checkpoint
) -> None:
    model = api.load(str(checkpoint(name)))
    stream = read_stream(model)
    for (fold,), gain in zip(stream.reads, gains(model.network), strict=True):
        assert torch.allclose(fold.gain.float(), gain, rtol=1e-5, atol=1e-6)
        assert fold.centred is (name in ("gpt2", "phimoe"))


def test_the_gains_behind_attention_and_in_the_stream(checkpoint: Checkpoint) -> None:
    model = api.load(str(checkpoint("gemma2")))
    for (fold,), layer in zip(read_stream(model).writes, model.network.layers, strict=True):
        assert torch.allclose(fold.gain.float(), 1 + layer.post_attention_layernorm.weight)
    model = api.load(str(checkpoint("bert")))
    for folds, layer in zip(
        read_stream(model).passes[1:], model.network.encoder.layer, strict=True
    ):
        norms = layer.attention.output.LayerNorm, layer.output.LayerNorm
        for fold, norm in zip(folds, norms, strict=True):
            assert torch.allclose(fold.gain.float(), norm.weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["gpt2", "bert", "mixtral"])
def test_nothing_is_left_behind(name: str, checkpoint: Checkpoint) -> None:
    """The network computes the same before and after, and no hook stays."""
    model = api.load(str(checkpoint(name)))
    ids = [5, 9, 200, 9]
    before = model.capture_ids(ids)
    versions = [parameter._version for parameter in model.network.parameters()]
    read_stream(model)
    positions_in(model)
    assert [parameter._version for parameter in model.network.parameters()] == versions
    after = model.capture_ids(ids)
    assert all(torch.equal(before[layer], after[layer]) for layer in before)
    assert not any(module._forward_hooks for module in model.network.modules())
    assert not any(module._forward_pre_hooks for module in model.network.modules())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype: str, checkpoint: Checkpoint) -> None:
    exact = read_stream(api.load(str(checkpoint("llama-gqa"))))
    half = read_stream(api.load(str(checkpoint("llama-gqa")), dtype=dtype))
    for (fold,), (rounded,) in zip(exact.reads, half.reads, strict=True):
        assert torch.allclose(fold.gain, rounded.gain, rtol=1e-2, atol=1e-2)


def test_what_cannot_be_followed_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match="another width"):
        read_stream(api.load(str(checkpoint("opt-norm-after"))))
    model = api.load(str(checkpoint("llama-gqa")))

    class Twice(nn.Module):
        """Adds what it is given to what the norm makes of it."""

        def __init__(self, norm: nn.Module) -> None:
            super().__init__()
            self.norm = norm

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x) + x

    layer = model.network.layers[1]
    layer.input_layernorm = Twice(layer.input_layernorm)
    with pytest.raises(CheckpointError, match="norms and additions"):
        read_stream(model)


def test_learned_positions(checkpoint: Checkpoint) -> None:
    model = api.load(str(checkpoint("gpt2")))
    found = positions_in(model)
    assert found is not None
    table, norm = model.network.wpe.weight[: len(found[0])], model.network.h[1].ln_1
    centred = table - table.mean(-1, keepdim=True)  # over features, as the norm does
    expected = (centred - centred.mean(0)) * norm.weight
    assert torch.allclose(found[1], expected, atol=1e-4)
    for name in ("llama-gqa", "mixtral", "modernbert"):
        assert positions_in(api.load(str(checkpoint(name)))) is None
    for name in ("opt", "roberta", "ctrl", "distilbert"):
        assert positions_in(api.load(str(checkpoint(name)))) is not None


def test_rotations(checkpoint: Checkpoint) -> None:
    model = api.load(str(checkpoint("llama-gqa")))
    for turns in rotations_at(model, 3):
        assert turns is not None
        here, there = turns
        assert here.cos.shape == (1, 1, 8)
        assert torch.equal(here.cos, torch.ones(1, 1, 8))
        assert float(there.cos[0, 0, 0]) == pytest.approx(torch.tensor(3.0).cos().item())
    turned = [turn is not None for turn in rotations_at(api.load(str(checkpoint("smollm3"))), 1)]
    assert turned == [True, False, True]
