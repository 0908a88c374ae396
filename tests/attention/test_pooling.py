"""Pooling key/value heads, where what must come out is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnscope.attention.alignment import Moments, key_features, lost_share, value_features
from attnscope.attention.cores import Block
from attnscope.attention.lens import Lens
from attnscope.attention.linear import linear
from attnscope.attention.multihead import MultiHeadAttention, Projections
from attnscope.attention.pooling import METHODS, Grouping, pool
from attnscope.attention.rotary import Rotation
from attnscope.attention.spec import AttentionSpec
from attnscope.errors import UsageError

D_MODEL, WIDTH, TOKENS = 24, 8, 15


def _attention(**changes: Any) -> MultiHeadAttention:
    sizes: dict[str, Any] = {"d_model": D_MODEL, "n_heads": 4, "d_head": WIDTH, "causal": True}
    spec = AttentionSpec(**(sizes | changes))
    torch.manual_seed(0)
    attention = MultiHeadAttention(spec).requires_grad_(False)
    for parameter in attention.parameters():
        parameter.copy_(torch.randn(parameter.shape) * 0.4)
    return attention


def _rotation(spec: AttentionSpec) -> Rotation | None:
    if not spec.rotary:
        return None
    width = spec.turned_width
    angles = torch.arange(TOKENS)[:, None] * 0.7 ** torch.arange(width // 2)
    angles = (
        torch.cat((angles, angles), -1)
        if spec.rotary_pairs == "halves"
        else angles.repeat_interleave(2, -1)
    )
    return Rotation(angles.cos()[None], angles.sin()[None])


def _run(attention: MultiHeadAttention) -> tuple[Tensor, Tensor]:
    """The output (1, T, C) and the weights (H, T, T)."""
    torch.manual_seed(1)
    seen: list[Block] = []
    hidden = torch.randn(1, TOKENS, D_MODEL)
    with torch.no_grad():
        output = attention(
            hidden, rotation=_rotation(attention.spec), lens=Lens(observers=(seen.append,))
        )
    return output, seen[0].weights[0]


def _moments(attention: MultiHeadAttention) -> Moments:
    torch.manual_seed(2)
    hidden = torch.randn(1, TOKENS, D_MODEL)
    _, key, value = attention.prepare(hidden, _rotation(attention.spec))
    flat = [one[0].transpose(0, 1).flatten(1).double() for one in (key, value)]
    return Moments(*(one.T @ one for one in flat))


def _set_heads(module: nn.Module, heads: list[Tensor], biases: list[Tensor] | None) -> None:
    with torch.no_grad():
        module.weight.copy_(torch.cat(heads))  # type: ignore[operator, union-attr]
        if biases is not None:
            module.bias.copy_(torch.cat(biases))  # type: ignore[operator, union-attr]


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases": {"bias": True},
    "rotary": {"rotary": True, "bias": True},
    "neighbours": {"rotary": True, "rotary_pairs": "neighbours"},
    "partial": {"rotary": True, "rotary_width": 4, "bias": True},
    "one pair": {"rotary": True, "rotary_width": 2},
    "gqa": {"rotary": True, "n_kv_heads": 2},
    "norm by head": {"rotary": True, "qk_norm": "head"},
    "norm over all": {"rotary": True, "qk_norm": "projection"},
    "sink and softcap": {"sink": True, "softcap": 2.0},
    "window": {"window": 4, "rotary": True},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("method", METHODS)
def test_the_same_number_of_heads_is_the_same_layer(method: str, changes: dict[str, Any]) -> None:
    attention = _attention(**changes)
    neighbours = Grouping.neighbours(4, attention.spec.kv_heads)
    assert pool(attention, neighbours, method, _moments(attention)) is attention


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("method", METHODS)
def test_equal_heads_pool_to_the_same_attention(method: str, changes: dict[str, Any]) -> None:
    attention = _attention(**changes)
    n = attention.spec.kv_heads
    for module in (attention.W_K, attention.W_V):
        bias = module.bias
        _set_heads(
            module,
            [module.weight[:WIDTH].clone()] * n,
            None if bias is None else [bias[:WIDTH].clone()] * n,
        )
    if attention.key_norm is not None and attention.spec.qk_norm == "projection":
        attention.key_norm.weight.copy_(attention.key_norm.weight[:WIDTH].repeat(n))
    pooled = pool(attention, Grouping.neighbours(4, 1), method, _moments(attention))
    assert pooled.spec.kind == "MQA"
    assert pooled.W_K.weight.shape == (WIDTH, D_MODEL)
    for ours, theirs in zip(_run(pooled), _run(attention), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["gqa", "norm over all", "norm by head"])
@pytest.mark.parametrize("method", METHODS)
def test_the_mha_twin_attends_the_same(name: str, method: str) -> None:
    attention = _attention(**(VARIANTS[name] | {"n_kv_heads": 2}))
    twin = pool(attention, Grouping.neighbours(4, 4), method, _moments(attention))
    assert twin.spec.kind == "MHA"
    for head in range(4):
        rows = slice(head * WIDTH, (head + 1) * WIDTH)
        source = slice(head // 2 * WIDTH, (head // 2 + 1) * WIDTH)
        assert torch.equal(twin.W_K.weight[rows], attention.W_K.weight[source])
    for ours, theirs in zip(_run(twin), _run(attention), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def _turn(spec: AttentionSpec, angle: float, stretch: float) -> Tensor:
    """A matrix that commutes with the rotary embedding: each pair by another angle."""
    made = torch.eye(spec.head_width)
    for n, (x, y) in enumerate(key_features(spec).pairs.tolist()):
        turned = torch.tensor(angle * (n + 1))
        made[[[x], [y]], [x, y]] = stretch * torch.stack(
            (
                torch.stack((turned.cos(), -turned.sin())),
                torch.stack((turned.sin(), turned.cos())),
            )
        )
    return made


@pytest.mark.parametrize("name", ["rotary", "neighbours", "partial", "one pair", "plain", "window"])
def test_heads_that_are_each_other_s_image_pool_without_loss(name: str) -> None:
    attention = _attention(**VARIANTS[name])
    spec = attention.spec
    torch.manual_seed(3)
    keys = [_turn(spec, 0.5 * n, 1 + 0.3 * n) for n in range(4)]
    free = key_features(spec).free
    for turn in keys:  # what does not turn may go through any matrix
        turn[free[:, None], free] = torch.randn(len(free), len(free))
    values = [torch.randn(WIDTH, WIDTH) for _ in range(4)]
    for module, turns in ((attention.W_K, keys), (attention.W_V, values)):
        weight, bias = module.weight[:WIDTH].clone(), module.bias
        biases = None if bias is None else [turn @ bias[:WIDTH].clone() for turn in turns]
        _set_heads(module, [turn @ weight for turn in turns], biases)
    moments = _moments(attention)
    clean = _run(attention)
    pooled = pool(attention, Grouping.neighbours(4, 1), "best-aligned", moments)
    for ours, theirs in zip(_run(pooled), clean, strict=True):
        torch.testing.assert_close(ours, theirs, atol=5e-5, rtol=1e-4)
    by_mean = _run(pool(attention, Grouping.neighbours(4, 1), "mean"))
    assert (by_mean[0] - clean[0]).abs().max() > 0.1
    counts = dict.fromkeys(range(4), 1)
    assert lost_share(key_features(spec), moments.key, counts) < 1e-6
    assert lost_share(value_features(spec), moments.value, counts) < 1e-6


def test_a_rotation_that_mixes_pairs_is_not_undone() -> None:
    """It does not commute with the rotary embedding: were it undone, other numbers came out."""
    attention = _attention(rotary=True, n_heads=2)
    mixing, _ = torch.linalg.qr(torch.randn(WIDTH, WIDTH))
    weight = attention.W_K.weight[:WIDTH].clone()
    _set_heads(attention.W_K, [weight, mixing @ weight], None)
    moments = _moments(attention)
    assert lost_share(key_features(attention.spec), moments.key, {0: 1, 1: 1}) > 0.05
    pooled = pool(attention, Grouping.neighbours(2, 1), "best-aligned", moments)
    assert (_run(pooled)[1] - _run(attention)[1]).abs().max() > 0.01


def test_by_hand() -> None:
    """Two heads of width 1 over two inputs: the mean and the first can be read off."""
    spec = AttentionSpec(d_model=2, n_heads=2, d_head=1)
    key, value = torch.tensor([[1.0, 2.0], [3.0, 6.0]]), torch.tensor([[0.0, 4.0], [2.0, 0.0]])
    attention = MultiHeadAttention(
        spec,
        Projections(
            linear(torch.eye(2), None), linear(key, None), linear(value, None),
            linear(torch.eye(2), None),
        ),
    )  # fmt: skip
    both = Grouping.neighbours(2, 1)
    mean, first = pool(attention, both, "mean"), pool(attention, both, "first")
    assert mean.W_K.weight.tolist() == [[2.0, 4.0]]
    assert mean.W_V.weight.tolist() == [[1.0, 2.0]]
    assert first.W_K.weight.tolist() == [[1.0, 2.0]]
    assert first.W_V.weight.tolist() == [[0.0, 4.0]]
    assert mean.W_Q is attention.W_Q
    # The second key is three times the first: (1, 3)/√10 times √10·(1, 2), exactly.
    aligned = pool(attention, both, "best-aligned")
    torch.testing.assert_close(
        aligned.W_Q.weight.abs() @ torch.ones(2), torch.tensor([1.0, 3.0]) / 10**0.5
    )
    torch.testing.assert_close(aligned.W_K.weight.abs(), torch.tensor([[1.0, 2.0]]) * 10**0.5)


def test_the_mean_of_a_group_counts_query_heads() -> None:
    """Of three groups over four heads that read two key/value heads, the middle one is mixed."""
    attention = _attention(n_heads=6, n_kv_heads=2)
    pooled = pool(attention, Grouping(((0, 1), (2, 3), (4, 5))), "mean")
    one, other = attention.W_K.weight.view(2, WIDTH, D_MODEL)
    by_head = pooled.W_K.weight.view(3, WIDTH, D_MODEL)
    torch.testing.assert_close(by_head[1], (one + other) / 2)
    assert torch.equal(by_head[0], one)
    assert torch.equal(by_head[2], other)


@pytest.mark.parametrize("changes", [{}, {"sink": True}, {"qk_norm": "projection"}])
def test_heads_in_another_order_do_what_they_did(changes: dict[str, Any]) -> None:
    attention = _attention(rotary=True, bias=True, **changes)
    order = (2, 0, 3, 1)
    moved = pool(attention, Grouping(tuple((head,) for head in order)), "mean")
    (ours, weights), (theirs, before) = _run(moved), _run(attention)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(weights, before[list(order)])


@pytest.mark.parametrize("n_groups", [0, -1, 3, 5])
def test_odd_counts_are_refused(n_groups: int) -> None:
    with pytest.raises(UsageError, match="evenly"):
        Grouping.neighbours(4, n_groups)


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(UsageError, match="median"):
        pool(_attention(), Grouping.neighbours(4, 1), "median")
