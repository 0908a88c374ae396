"""MultiHeadAttention on its own: what it refuses, what it computes, and that it can be trained."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from attnscope.attention.cores import Block
from attnscope.attention.lens import Lens
from attnscope.attention.multihead import MultiHeadAttention, Projections
from attnscope.attention.rotary import Rotation, rotate
from attnscope.attention.spec import AttentionSpec
from attnscope.errors import UsageError


def weights_of(
    attention: MultiHeadAttention, hidden: Tensor, rotation: Rotation | None = None
) -> Tensor:
    """The weights (B, H, T, T) that one forward shows."""
    kept: list[Block] = []
    attention(hidden, rotation=rotation, lens=Lens(observers=(kept.append,)))
    return torch.cat([block.weights for block in kept], dim=2)


def hidden_states(length: int = 7, width: int = 32, texts: int = 2) -> Tensor:
    return torch.randn(texts, length, width, generator=torch.Generator().manual_seed(0))


def sharpen(attention: MultiHeadAttention) -> MultiHeadAttention:
    """Large weights, so that a wrong scale or head would show."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return attention


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"d_model": 512, "n_heads": 7}, ["d_model 512", "n_heads 7", "d_head"]),
        ({"d_model": 512, "n_heads": 8, "n_kv_heads": 3}, ["n_heads 8", "n_kv_heads 3"]),
        ({"d_model": 512, "n_heads": 8, "n_kv_heads": 16}, ["n_heads 8", "n_kv_heads 16"]),
        ({"d_model": 512, "n_heads": 8, "n_kv_heads": 0}, ["n_kv_heads", "0"]),
        ({"d_model": 512, "n_heads": 0}, ["n_heads", "0"]),
        ({"d_model": -4, "n_heads": 2}, ["d_model", "-4"]),
        ({"d_model": 512, "n_heads": 8, "window": 0}, ["window", "0"]),
        ({"d_model": 30, "n_heads": 2, "rotary": True}, ["d_head 15", "odd"]),
    ],
)
def test_it_refuses_by_name_and_number(sizes: dict[str, int], told: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        MultiHeadAttention(AttentionSpec(**sizes))  # type: ignore[arg-type]
    for words in told:
        assert words in str(caught.value)


def test_an_explicit_head_width_need_not_divide_the_model() -> None:
    attention = MultiHeadAttention(AttentionSpec(d_model=30, n_heads=4, d_head=12))
    assert attention(hidden_states(width=30)).shape == (2, 7, 30)


@pytest.mark.parametrize(
    ("n_kv_heads", "kind", "heads"),
    [(None, "MHA", [0, 1, 2, 3]), (4, "MHA", [0, 1, 2, 3]), (2, "GQA", [0, 0, 1, 1]),
     (1, "MQA", [0, 0, 0, 0])],
)  # fmt: skip
def test_kind_and_head_map(n_kv_heads: int | None, kind: str, heads: list[int]) -> None:
    spec = AttentionSpec(d_model=32, n_heads=4, n_kv_heads=n_kv_heads)
    assert spec.kind == kind
    assert [spec.kv_head(head) for head in range(4)] == heads
    attention = MultiHeadAttention(spec)
    assert attention.W_K.weight.shape == (spec.kv_heads * 8, 32)
    assert attention.W_V.weight.shape == (spec.kv_heads * 8, 32)


def test_it_is_the_textbook_formula() -> None:
    """Head by head, as a loop would write it; scaled by the head's width, not the model's."""
    spec = AttentionSpec(d_model=32, n_heads=4, causal=True, bias=True)
    attention = sharpen(MultiHeadAttention(spec))
    hidden = hidden_states()
    found = weights_of(attention, hidden)
    mixed = []
    for head in range(4):
        part = slice(8 * head, 8 * head + 8)
        query, key, value = (
            hidden @ layer.weight[part].T + layer.bias[part]
            for layer in (attention.W_Q, attention.W_K, attention.W_V)
        )
        scores = query @ key.transpose(1, 2) / math.sqrt(8)
        later = torch.ones(7, 7, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, -torch.inf).softmax(-1)
        torch.testing.assert_close(found[:, head], weights, atol=1e-6, rtol=0)
        assert not found[:, head][:, later].any()
        mixed.append(weights @ value)
    expected = torch.cat(mixed, -1) @ attention.W_O.weight.T + attention.W_O.bias
    torch.testing.assert_close(attention(hidden), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("n_kv_heads", [1, 2])
def test_grouped_heads_equal_their_mha_twin(n_kv_heads: int) -> None:
    """The twin repeats each key/value head for the query heads that share it: h reads h // R."""
    spec = AttentionSpec(d_model=32, n_heads=4, n_kv_heads=n_kv_heads, causal=True)
    grouped = sharpen(MultiHeadAttention(spec))

    def repeated(layer: nn.Module) -> nn.Linear:
        heads = layer.weight.view(n_kv_heads, 8, 32)
        twin = nn.Linear(32, 32, bias=False)
        twin.weight = nn.Parameter(heads.repeat_interleave(4 // n_kv_heads, 0).reshape(32, 32))
        return twin

    twin = MultiHeadAttention(
        spec.with_changes(n_kv_heads=4),
        Projections(grouped.W_Q, repeated(grouped.W_K), repeated(grouped.W_V), grouped.W_O),
    )
    hidden = hidden_states()
    torch.testing.assert_close(
        weights_of(grouped, hidden), weights_of(twin, hidden), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(grouped(hidden), twin(hidden), atol=1e-5, rtol=0)


def test_it_can_be_trained() -> None:
    attention = MultiHeadAttention(AttentionSpec(d_model=512, n_heads=8))
    hidden = torch.randn(1, 4, 512, generator=torch.Generator().manual_seed(0)).requires_grad_()
    attention(hidden).square().mean().backward()
    gradients = [hidden.grad, *(parameter.grad for parameter in attention.parameters())]
    assert len(gradients) == 5
    for gradient in gradients:
        assert gradient is not None
        assert torch.isfinite(gradient).all()
        assert gradient.abs().max() > 0


@pytest.mark.parametrize("window", [None, 3])
def test_gradients_are_those_of_the_formula(window: int | None) -> None:
    """Checked by finite differences, in blocks and at once."""
    spec = AttentionSpec(d_model=8, n_heads=2, causal=True, window=window)
    attention = sharpen(MultiHeadAttention(spec))
    hidden = hidden_states(5, 8, 1)
    gradients = []
    for rows in (None, 2):
        attention.block_rows = rows
        attention.zero_grad()
        attention(hidden).square().sum().backward()
        gradients.append([p.grad.clone() for p in attention.parameters()])
    for at_once, blocked in zip(*gradients, strict=True):
        torch.testing.assert_close(at_once, blocked, atol=1e-5, rtol=1e-5)
    weight, step = attention.W_Q.weight, 1e-2
    with torch.no_grad():
        values = []
        for sign in (1, -1):
            weight[0, 0] += sign * step
            values.append(float(attention(hidden).double().square().sum()))
            weight[0, 0] -= sign * step
    slope = (values[0] - values[1]) / (2 * step)
    assert float(gradients[0][0][0, 0]) == pytest.approx(slope, rel=2e-2)


def test_padding_changes_nothing_for_the_text_beside_it() -> None:
    spec = AttentionSpec(d_model=32, n_heads=4, n_kv_heads=2)
    attention = sharpen(MultiHeadAttention(spec))
    hidden = hidden_states(9, texts=1)
    valid = torch.arange(9)[None] < 6
    torch.testing.assert_close(
        attention(hidden, valid=valid)[:, :6], attention(hidden[:, :6]), atol=1e-5, rtol=0
    )
    assert torch.isfinite(attention(hidden, valid=valid)).all()


def test_a_rotary_layer_wants_its_angles() -> None:
    attention = MultiHeadAttention(AttentionSpec(d_model=32, n_heads=4, rotary=True))
    with pytest.raises(ValueError, match="rotation"):
        attention(hidden_states())


def test_rotation_shows_only_how_far_apart_two_tokens_are() -> None:
    """Su et al. 2021, equation 16: the score of two rotated vectors depends on the offset."""
    angles = torch.arange(9)[:, None] * 10000.0 ** (-torch.arange(4) / 4)
    both = torch.cat([angles, angles], -1)[None]
    rotation = Rotation(both.cos(), both.sin())
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(8, generator=generator).expand(1, 1, 9, 8) for _ in range(2))
    scores = (rotate(query, rotation) @ rotate(key, rotation).mT)[0, 0]
    for offset in range(9):
        along = scores.diagonal(-offset)
        torch.testing.assert_close(along, along[:1].expand_as(along), atol=1e-5, rtol=0)
    assert scores[0, 0] != pytest.approx(float(scores[4, 0]), abs=1e-2)
    length = rotate(query, rotation).norm(dim=-1)
    torch.testing.assert_close(length, query.norm(dim=-1))
