"""Two checkpoints whose heads are known: every weight is written by formula, none is trained.

`planted_gpt2` (learned positions, LayerNorm, no BOS) and `planted_llama` (rotary, RMSNorm, two
query heads per key/value head, BOS) hold the same twelve heads, `HEADS`, and return what each
must be called: those labels and no other, on the battery and on ordinary English (15 to 250 tokens
a text, punctuation in it, fewer than half of its tokens seen before in the same text).

How they work. The residual stream holds a token's code (64 numbers of ±1), marks (is it
punctuation? is it first?) and, in GPT-2, its place as the hands of four clocks; rotary attention
turns such hands itself. A head's score is a sum of three terms: do the codes match, do the clocks
agree, is the key marked. Wherever it matters two keys are 15 nats apart or more, so that a head
puts .999 of its weight where it should. Layer 0's previous-token head hands on the code of the
token before, which the induction heads of layer 1 look for. One unit of the MLP writes so much
into the first position that the norm leaves nothing else of it, as in trained models: layer 1 can
rest there, and matches it with no token.

A head that waits for repeats must look somewhere without them. Trained ones rest on the first
token, and so do two of these: they must be called what they do *and* `resting`. One induction
head waits at long words instead, which no label names, and one duplicate-token head at the
token itself. Waiting evenly was no choice: such a head is `broad` in texts with few repeats only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from attnscope.models.quiet import quiet_transformers
from attnscope.types import Head
from tests.planted_words import (
    BOS,
    CODE_WIDTH,
    UNKNOWN,
    codes,
    is_long,
    is_punctuation,
    vocabulary,
    word_tokenizer,
)

Labels = dict[Head, frozenset[str]]

# Where the residual stream holds what. Every feature stands there a second time, negated: the mean
# that LayerNorm takes off is zero. The sum of squares is the same for all tokens, the first one
# behind the MLP excepted, so that a norm gain can undo the norm.
TOKEN, BEFORE, SEEN = 0, CODE_WIDTH, 2 * CODE_WIDTH  # codes: its own, of the one before, of others
ONE, FIRST, SINK, PUNCTUATION, LONG = range(3 * CODE_WIDTH, 3 * CODE_WIDTH + 5)  # marks: ±1
HANDS = 200  # GPT-2: cosines, then sines
HALF, D_MODEL = 240, 480
POSITIONS = 256
LOUD = 300.0  # what the MLP writes into the first position
FAINT = 0.02  # what most heads write: it moves nothing

# Clocks turn as the first pairs of rotary attention do. Places that differ agree to .758 at most
# (neighbours) and to -.881 at least, of 1.
D_ROTARY, ROPE_THETA, CLOCKS = 128, 1e8, 4
SPEEDS = ROPE_THETA ** (-2 * torch.arange(CLOCKS).double() / D_ROTARY)  # radians per token


@dataclass(frozen=True)
class Planted:
    """One head: what adds to its scores, in nats, and the labels that it must get.

    `match` for keys whose code is the query's (`key`: their own, or that of the token before them),
    `agree` for keys `offset` tokens away, `marks` for keys with a mark.
    """

    name: str
    labels: frozenset[str]
    match: float = 0.0
    key: int = TOKEN
    agree: float = 0.0
    offset: int = 0
    marks: Mapping[int, float] = field(default_factory=dict)
    writes: int = SEEN


def _head(name: str, labels: str = "", **terms: Any) -> Planted:
    return Planted(name, frozenset(labels.split()), **terms)


# Codes that differ match to a quarter at most, of either sign. Neighbours share a key/value head.
HEADS = (
    (
        _head("previous", "previous-token", agree=80, offset=-1, writes=BEFORE),
        _head("two back", "local", agree=80, offset=-2),
        # A copy: over 200 - .758·70. Itself: 200 - 70. Others: under 200/4 + .881·70.
        _head("copy or itself", "duplicate-token current-token", match=200, agree=-70),
        _head("seven back", agree=80, offset=-7, marks={SINK: -160}),
        # Where the very first token is punctuation (in GPT-2), it takes all.
        _head("punctuation", "resting", marks={PUNCTUATION: 40, SINK: 20}),
        _head("long words", marks={LONG: 40, SINK: -80}),
    ),
    (
        _head("induction", "induction resting", match=60, key=BEFORE, marks={SINK: 37}),
        # A copy: 120. Long words: 75 ± 120/4. Others: under 120/4.
        _head("induction or long words", "induction", match=120, key=BEFORE,
              marks={LONG: 75, SINK: -120}),
        # A copy: over 400 - .758·140. Itself: 400 - 140. Others: under 400/4 + .881·140.
        _head("copy", "duplicate-token resting", match=400, agree=-140, marks={SINK: 277}),
        _head("itself", "current-token", agree=80),
        _head("first", "resting", marks={SINK: 40}),
        _head("uniform", "broad"),
    ),
)  # fmt: skip
N_LAYERS, N_HEADS, KV_GROUP = len(HEADS), len(HEADS[0]), 2


def labels() -> Labels:
    """What each head must be called; the empty set where that is nothing."""
    return {Head(i, j): head.labels for i, row in enumerate(HEADS) for j, head in enumerate(row)}


def planted_gpt2(directory: Path, texts: Sequence[str]) -> Labels:
    """Write a GPT-2 without BOS that knows the words of the texts; what its heads must be called.

    Raises ValueError for more than about 4000 words.
    """
    quiet_transformers()
    words = vocabulary(texts, [UNKNOWN])
    tokens, places = _tokens(words), torch.zeros(POSITIONS, HALF)
    angles = torch.arange(POSITIONS)[:, None] * SPEEDS  # (T, 4)
    places[:, HANDS : HANDS + 2 * CLOCKS] = torch.cat([angles.cos(), angles.sin()], -1).float()
    places[:, ONE], places[:, FIRST], places[0, FIRST] = 1, -1, 1
    slots = Slots(
        size=80, code=torch.arange(64), hands=torch.arange(64, 72), marks=72,
        clocks=torch.cat([_read(HANDS + n) for n in range(2 * CLOCKS)]),
    )  # fmt: skip
    network = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(words), n_positions=POSITIONS, n_embd=D_MODEL, n_inner=8,
            n_layer=N_LAYERS, n_head=D_MODEL // slots.size, bos_token_id=None, eos_token_id=None,
        )
    )  # fmt: skip
    body: Any = network.transformer
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        body.wte.weight.copy_(_doubled(tokens))
        body.wpe.weight.copy_(_doubled(places))
        for layer, block in enumerate(body.h):
            gain = _gain(tokens + places[1], layer)
            block.ln_1.weight.fill_(gain)
            block.ln_2.weight.fill_(_gain(tokens + places[1], 1))
            query, key, value, output = _attention(layer, gain, slots)
            block.attn.c_attn.weight.copy_(torch.cat([*query, *key, *value]).T)  # (C, 3·H·D)
            block.attn.c_proj.weight.copy_(torch.cat(output, dim=1).T)  # (H·D, C)
        body.ln_f.weight.fill_(1)
        first = body.h[0]
        first.mlp.c_fc.weight[:, :1] = 30 * _read(FIRST).T
        first.mlp.c_proj.weight[:1] = LOUD / 30 * _write(SINK).T
    network.save_pretrained(directory)
    word_tokenizer(words).save_pretrained(directory)
    return labels()


def planted_llama(directory: Path, texts: Sequence[str]) -> Labels:
    """Write a Llama with BOS that knows the words of the texts; what its heads must be called.

    Raises ValueError for more than about 4000 words.
    """
    quiet_transformers()
    words = vocabulary(texts, [UNKNOWN, BOS])
    tokens = _tokens(words)
    tokens[:, ONE], tokens[:, FIRST], tokens[words.index(BOS), FIRST] = 1, -1, 1
    half, slow = D_ROTARY // 2, torch.arange(29, 61)  # pair n is dimensions n and n + half
    hand = torch.arange(CLOCKS)
    slots = Slots(
        # In 256 tokens codes turn by .06 radians at most, marks (pairs 61 to 63) not at all.
        size=D_ROTARY, code=torch.cat([slow, half + slow]),
        hands=torch.cat([hand, half + hand]), marks=61,
        # Rotary turns them from here to where they belong.
        clocks=torch.cat([_read(ONE).expand(CLOCKS, -1), torch.zeros(CLOCKS, D_MODEL)]),
    )  # fmt: skip
    network = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words), max_position_embeddings=POSITIONS, hidden_size=D_MODEL,
            num_hidden_layers=N_LAYERS, num_attention_heads=N_HEADS, intermediate_size=8,
            num_key_value_heads=N_HEADS // KV_GROUP, head_dim=D_ROTARY, tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
            bos_token_id=words.index(BOS), eos_token_id=None,
        )
    )  # fmt: skip
    body: Any = network.model
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        body.embed_tokens.weight.copy_(_doubled(tokens))
        for layer, block in enumerate(body.layers):
            gain = _gain(tokens, layer)
            block.input_layernorm.weight.fill_(gain)
            block.post_attention_layernorm.weight.fill_(_gain(tokens, 1))
            query, key, value, output = _attention(layer, gain, slots)
            block.self_attn.q_proj.weight.copy_(torch.cat(query))  # (H·D, C)
            block.self_attn.k_proj.weight.copy_(torch.cat(key[::KV_GROUP]))  # (G·D, C)
            block.self_attn.v_proj.weight.copy_(torch.cat(value[::KV_GROUP]))
            block.self_attn.o_proj.weight.copy_(torch.cat(output, dim=1))  # (C, H·D)
        body.norm.weight.fill_(1)
        first = body.layers[0]
        first.mlp.gate_proj.weight[:1] = 30 * _read(FIRST)
        first.mlp.up_proj.weight[:1] = _read(ONE)
        first.mlp.down_proj.weight[:, :1] = LOUD / 30 * _write(SINK)
    network.save_pretrained(directory)
    word_tokenizer(words).save_pretrained(directory)
    return labels()


@dataclass(frozen=True)
class Slots:
    """Which of a head's dimensions hold what, and how its clocks are read, (8, C)."""

    size: int
    code: Tensor  # (64,)
    hands: Tensor  # (8,): cosines, then sines
    marks: int
    clocks: Tensor


def _attention(layer: int, gain: float, slots: Slots) -> tuple[list[Tensor], ...]:
    """W_Q, W_K, W_V (D, C) and W_O (C, D) of every head of a layer."""
    heads = HEADS[layer]
    marks = {mark: (_read(mark) + _read(ONE)) / 2 for mark in (PUNCTUATION, LONG)}  # 1 or 0
    marks[SINK] = (_read(FIRST) + _read(ONE)) / 2
    if layer:  # loud, the sink is all that the norm leaves of the first position
        marks[SINK] = _read(SINK) / (gain * math.sqrt(D_MODEL / 2))
    return (
        [_query(head, slots, list(marks)) for head in heads],
        [_key(head, slots, list(marks.values())) for head in heads],
        [_placed(slots.size, slots.code, _read(TOKEN, CODE_WIDTH)) for _ in heads],
        [_output(head, slots) for head in heads],
    )


def _query(head: Planted, slots: Slots, marks: list[int]) -> Tensor:
    cosine, sine = slots.clocks.chunk(2)  # (4, C)
    angle = (SPEEDS * head.offset).float()[:, None]
    turned = torch.cat(
        [angle.cos() * cosine - angle.sin() * sine, angle.sin() * cosine + angle.cos() * sine]
    )
    weights = _placed(slots.size, slots.code, head.match / CODE_WIDTH * _read(TOKEN, CODE_WIDTH))
    weights[slots.hands] = head.agree / CLOCKS * turned
    for n, mark in enumerate(marks):
        weights[slots.marks + n] = head.marks.get(mark, 0) * _read(ONE)
    return weights


def _key(head: Planted, slots: Slots, marks: list[Tensor]) -> Tensor:
    weights = _placed(slots.size, slots.code, _read(head.key, CODE_WIDTH))
    weights[slots.hands] = slots.clocks
    weights[slots.marks : slots.marks + len(marks)] = torch.cat(marks)
    return weights * math.sqrt(slots.size)  # attention divides by this


def _output(head: Planted, slots: Slots) -> Tensor:
    share = 1.0 if head.writes == BEFORE else FAINT
    return share * _placed(slots.size, slots.code, _write(head.writes, CODE_WIDTH).T).T


def _placed(size: int, rows: Tensor, weights: Tensor) -> Tensor:
    placed = torch.zeros(size, D_MODEL)
    placed[rows] = weights
    return placed


def _tokens(words: Sequence[str]) -> Tensor:
    """What the embedding says of each token, (V, 240)."""
    tokens = torch.zeros(len(words), HALF)
    tokens[:, :CODE_WIDTH] = codes(len(words))
    for id_, word in enumerate(words):
        tokens[id_, PUNCTUATION] = 1 if is_punctuation(word) else -1
        tokens[id_, LONG] = 1 if is_long(word) else -1
    return tokens


def _doubled(features: Tensor) -> Tensor:
    return torch.cat([features, -features], dim=-1)  # (n, C)


def _write(feature: int, width: int = 1) -> Tensor:
    return _doubled(torch.eye(HALF)[feature : feature + width]).T  # (C, width)


def _read(feature: int, width: int = 1) -> Tensor:
    return _write(feature, width).T / 2  # (width, C)


def _gain(features: Tensor, layer: int) -> float:
    """The norm gain that gives a layer its input as it is; layer 0 added the codes before."""
    squares = features.square().sum(-1)
    assert torch.allclose(squares, squares[0])
    return math.sqrt(2 * (float(squares[0]) + layer * CODE_WIDTH) / D_MODEL)
