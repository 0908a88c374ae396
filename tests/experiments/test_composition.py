"""Compositions: against (d_model, d_model) products, against chance, and by their laws."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attnscope import api
from attnscope.attention.rotary import rotate
from attnscope.experiments.composition import compare, compositions, head_weights
from attnscope.models.load import Model
from attnscope.models.stream import read_stream, rotations_at
from tests import tiny

Checkpoint = Callable[[str], Path]
Matrices = dict[str, Tensor]  # by kind, (L, H, C, C), in float64


def _gain(name: str, norm: Any) -> Tensor:
    return norm.weight.double() + (1 if name.startswith("gemma") else 0)


def _centring(width: int) -> Tensor:
    return torch.eye(width).double() - 1 / width


def _naive(name: str, model: Model, offset: int = 0) -> tuple[Matrices, list[Tensor]]:
    """W_QK and W_OV of every head as whole matrices, and what the stream does between layers.

    Written by hand for each type, from the names that its checkpoint uses.
    """
    width, shape = model.shape.d_model, model.shape
    query_key, output_value, between = [], [], [torch.eye(width).double()]
    for layer in range(shape.n_layers):
        before, behind = torch.eye(width).double(), torch.eye(width).double()
        query_norm = key_norm = torch.ones(shape.d_head).double()
        if name == "gpt2":
            block = model.network.h[layer]
            fused = model.network.h[layer].attn.attention  # our seat holds the weights
            before = torch.diag(block.ln_1.weight.double()) @ _centring(width)
            parts = [fused.W_Q.weight, fused.W_K.weight, fused.W_V.weight, fused.W_O.weight]
        elif name == "bert":
            block = model.network.encoder.layer[layer]
            own = block.attention.self.attention
            parts = [own.W_Q.weight, own.W_K.weight, own.W_V.weight, own.W_O.weight]
            both = [block.attention.output.LayerNorm, block.output.LayerNorm]
            first, second = (torch.diag(n.weight.double()) @ _centring(width) for n in both)
            between.append(second @ first)
        else:
            block = model.network.layers[layer]
            own = block.self_attn.attention
            parts = [own.W_Q.weight, own.W_K.weight, own.W_V.weight, own.W_O.weight]
            before = torch.diag(_gain(name, block.input_layernorm))
            if name == "gemma2":
                behind = torch.diag(_gain(name, block.post_attention_layernorm))
            if name == "granite-multipliers":
                behind = 0.4 * behind
            if name == "qwen3":
                query_norm, key_norm = (n.weight.double() for n in (own.query_norm, own.key_norm))
        if len(between) < layer + 2:
            between.append(torch.eye(width).double())
        query, key, value = (part.double() @ before for part in parts[:3])
        for rows, norm in ((query, query_norm), (key, key_norm)):
            rows *= norm.repeat(len(rows) // shape.d_head)[:, None]
        query_key.append([])
        output_value.append([])
        turns = rotations_at(model, abs(offset))[layer]
        for head in range(shape.n_heads):
            one, group = (
                _rows(shape.d_head, head),
                _rows(shape.d_head, head // (shape.n_heads // shape.n_kv_heads)),
            )
            q, k = query[one], key[group]
            if turns is not None:
                here, there = turns
                q, k = (
                    _turned(q, there if offset < 0 else here),
                    _turned(k, here if offset < 0 else there),
                )
            query_key[-1].append(q.T @ k)
            output_value[-1].append(behind @ parts[3].double()[:, one] @ value[group])
    stacked = {"QK": query_key, "OV": output_value}
    return {
        kind: torch.stack([torch.stack(row) for row in rows]) for kind, rows in stacked.items()
    }, between


def _rows(width: int, head: int) -> slice:
    return slice(head * width, (head + 1) * width)


def _turned(rows: Tensor, turn: Any) -> Tensor:
    """(D, C) by the rotation of one position."""
    doubled = type(turn)(turn.cos.double(), turn.sin.double())
    return rotate(rows.T[None, None], doubled)[0, 0].T


NAMES = [
    "gpt2",
    "llama-gqa",
    "llama-wide-heads",
    "gemma",
    "gemma2",
    "granite-multipliers",
    "bert",
    "qwen3",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("offset", [0, -3])
def test_as_whole_matrices_say(name: str, offset: int, checkpoint: Checkpoint) -> None:
    model = api.load(str(checkpoint(name)))
    result = model.circuits(offset=offset)
    matrices, between = _naive(name, model, offset)
    qk, ov = matrices["QK"], matrices["OV"]
    if name != "qwen3":
        assert result.own.qk_norm == pytest.approx(qk.norm(dim=(2, 3)).flatten(), rel=1e-5)
    assert result.own.ov_norm == pytest.approx(ov.norm(dim=(2, 3)).flatten(), rel=1e-5)
    seen = 0
    for source in range(model.shape.n_layers):
        carry = torch.eye(model.shape.d_model).double()
        for target in range(model.shape.n_layers):
            found = result.compositions.score[:, source, :, target]
            if target <= source:
                assert found.isnan().all()
                continue
            carry = between[target] @ carry
            for h in range(model.shape.n_heads):
                written = carry @ ov[source, h]
                for t in range(model.shape.n_heads):
                    reading = (qk[target, t].T, qk[target, t], ov[target, t])
                    for kind, matrix in enumerate(reading):
                        expected = (matrix @ written).norm() / (matrix.norm() * written.norm())
                        assert float(found[kind, h, t]) == pytest.approx(float(expected), rel=1e-5)
                        seen += 1
    n_layers, n_heads = model.shape.n_layers, model.shape.n_heads
    assert seen == 3 * n_heads**2 * n_layers * (n_layers - 1) // 2


def test_an_offset_turns(checkpoint: Checkpoint) -> None:
    model = api.load(str(checkpoint("llama-gqa")))
    still, turned = (model.circuits(offset=offset).compositions.score for offset in (0, -3))
    moved = (still - turned).abs()
    assert moved[:2].nan_to_num().max() > 0.01
    assert moved[2].nan_to_num().max() == 0  # values do not turn


def _haar(width: int, generator: torch.Generator) -> Tensor:
    q, r = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))
    return q * r.diagonal().sign()


def test_chance_is_what_turning_at_random_gives() -> None:
    """z has mean 0, variance 1 and the right tails, for even and for uneven heads of low rank."""
    generator = torch.Generator().manual_seed(0)
    for width, depth, decay in ((48, 8, 0.0), (48, 8, 0.5), (96, 16, 0.2), (32, 2, 0.0)):
        sizes = (-decay * torch.arange(depth)).exp()[:, None]
        reader = sizes * torch.randn(depth, width, generator=generator)
        writer = sizes * torch.randn(depth, width, generator=generator)
        turned = torch.stack([writer @ _haar(width, generator).float() for _ in range(3000)])
        score, z = compare(reader.expand(3, 1, -1, -1).contiguous(), turned)
        squares, z = score[0, :, 0].square(), z[0, :, 0]
        assert float(squares.mean()) == pytest.approx(1 / width, rel=0.03)
        assert float(z.mean()) == pytest.approx(0, abs=0.08)
        assert float(z.std()) == pytest.approx(1, abs=0.1)
        assert float((z > 1.645).double().mean()) == pytest.approx(0.05, abs=0.016)
        assert float((z > 3.09).double().mean()) < 0.006  # .001, and four times its error


def test_random_weights_have_no_circuits(tmp_path: Path) -> None:
    """No pair beyond the family's bound in 19 of 20 models, and z as of a normal variable."""
    beyond, pooled = 0, []
    for seed in range(10):
        for name in ("gpt2", "llama-gqa"):
            directory = tmp_path / f"{name}-{seed}"
            tiny.save(tiny.CONFIGS[name](), directory, seed=seed)
            result = api.load(str(directory)).circuits()
            z = result.compositions.z
            z = z[z.isfinite()]
            assert len(z) == 3 * 48
            assert result.family_z == pytest.approx(3.39, abs=0.01)
            beyond += bool(z.max() > result.family_z)
            pooled.append(z)
    z = torch.cat(pooled).double()
    assert beyond <= 4  # of 20, where 1 is expected: more than 4 happens once in 400
    assert float(z.mean()) == pytest.approx(0, abs=0.15)
    assert float(z.std()) == pytest.approx(1, abs=0.12)


def test_no_whole_matrix_is_made(checkpoint: Checkpoint) -> None:
    made: list[tuple[int, ...]] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = function(*args, **(kwargs or {}))
            made.extend(
                tuple(r.shape)
                for r in (result if isinstance(result, (tuple, list)) else (result,))
                if isinstance(r, Tensor)
            )
            return result

    model = api.load(str(checkpoint("llama-wide-heads")))
    stream, width = read_stream(model), model.shape.d_model
    turns = rotations_at(model, 0)
    layers = [head_weights(model, stream, layer, turn) for layer, turn in enumerate(turns)]
    with Watch():
        compositions(model, stream, iter(layers))
    assert len(made) > 100
    assert not [shape for shape in made if shape[-2:] == (width, width)]


def _scores(model: Model) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    result = api.Model.circuits(model)
    own = (torch.tensor(norms) for norms in (result.own.qk_norm, result.own.ov_norm))
    return (result.compositions.score, result.compositions.z, *own)


def test_permuted_heads_permute_results(checkpoint: Checkpoint) -> None:
    model = api.load(str(checkpoint("llama-gqa")))  # 4 heads, 2 key/value heads
    before = _scores(model)
    groups, order, width = torch.tensor([1, 0]), torch.tensor([3, 2, 0, 1]), model.shape.d_head
    attention = model.seats[1].attention
    for part, heads in (("W_Q", order), ("W_K", groups), ("W_V", groups)):
        weight = getattr(attention, part).weight
        weight.copy_(weight.view(len(heads), width, -1)[heads].flatten(0, 1))
    weight = attention.W_O.weight
    weight.copy_(weight.view(-1, 4, width)[:, order].flatten(1))
    after = _scores(model)
    whole = torch.arange(4)
    for layer in range(3):
        heads = order if layer == 1 else whole
        for n in (2, 3):
            norms = before[n].view(3, 4)[layer, heads]
            assert torch.allclose(after[n].view(3, 4)[layer], norms, rtol=1e-5)
    for n in (0, 1):
        expected = before[n].clone()
        expected[:, 1] = expected[:, 1, order]
        expected[:, :, :, 1] = expected[:, :, :, 1, order]
        assert torch.allclose(after[n], expected, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_scale_changes_no_ratio(checkpoint: Checkpoint) -> None:
    model = api.load(str(checkpoint("gpt2")))
    before = _scores(model)
    for seat in model.seats:
        for part, factor in (("W_Q", 3.0), ("W_K", 0.01), ("W_V", 50.0), ("W_O", 0.2)):
            getattr(seat.attention, part).weight.mul_(factor)
    after = _scores(model)
    for n in (0, 1):
        assert torch.allclose(after[n], before[n], rtol=1e-3, atol=1e-4, equal_nan=True)
    assert torch.allclose(after[2], 0.03 * before[2], rtol=1e-4)
    assert torch.allclose(after[3], 10 * before[3], rtol=1e-4)


def test_heads_that_write_nothing_have_no_score(checkpoint: Checkpoint) -> None:
    model = api.load(str(checkpoint("gpt2")))
    width = model.shape.d_head
    model.seats[0].attention.W_O.weight[:, :width] = 0
    result = model.circuits(source="0.0")
    assert result.own.ov_norm[0] == 0
    assert result.top == []
    assert result.compositions.score[:, 0, 0].isnan().all()
    assert result.compositions.score[:, 0, 1, 1].isfinite().all()


def test_norms_of_query_and_key_in_half_precision(checkpoint: Checkpoint) -> None:
    exact, half = (
        api.load(str(checkpoint("qwen3")), dtype=dtype).circuits().compositions.score
        for dtype in ("float32", "bfloat16")
    )
    assert torch.allclose(exact, half, atol=5e-3, equal_nan=True)
    assert math.isnan(api.load(str(checkpoint("qwen3"))).circuits().own.qk_norm[0])


@pytest.mark.parametrize(
    "name", ["cohere", "olmo2", "phi", "nanochat", "minimax_m2", "stablelm", "persimmon"]
)
def test_every_kind_of_query_norm(name: str, checkpoint: Checkpoint) -> None:
    result = api.load(str(checkpoint(name))).circuits(offset=-2)
    assert result.compositions.score[:, 0, :, 1].isfinite().all()
