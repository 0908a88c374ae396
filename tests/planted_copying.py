"""Two-layer checkpoints that copy by design: every weight is written by formula, none is trained.

Both are GPT-2s with BOS and an unembedding of their own. In `exact` head 0.0 hands each token the
one before it and 1.0 looks for a token that was handed the query's: it finds what followed the
earlier copy, and writes it out. In `shifted` head 0.0 hands on the token five back and 0.1 the one
six back; 1.0 looks where the token six back is the query's, five past the classic target, and
writes out the token five back. All other heads look everywhere and write next to nothing.

A head that finds nothing rests on BOS, whose code is empty: then every token is as likely.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from attnscope.models.quiet import quiet_transformers
from tests.planted_words import BOS, CODE_WIDTH, UNKNOWN, codes, vocabulary, word_tokenizer

# The residual stream: codes of the token, of two that were handed on, and of what comes next;
# marks; the hands of the clocks that tell the place. Each stands there a second time, negated, so
# that LayerNorm takes no mean off; all tokens are of one length.
TOKEN, FOUND, VALUE, NEXT = (n * CODE_WIDTH for n in range(4))
ONE, FIRST, FILL, HANDS = range(4 * CODE_WIDTH, 4 * CODE_WIDTH + 4)
CLOCKS, POSITIONS = 32, 128
HALF = HANDS + 2 * CLOCKS + 1  # a multiple of six
D_MODEL, N_HEADS = 2 * HALF, 6
D_HEAD = D_MODEL // N_HEADS
MATCH, WAIT, AGREE, NONE = 60.0, 33.0, 100.0, 85.0  # nats
FAINT, CLEAR = 0.02, 0.5


def planted_copier(directory: Path, *, shifted: bool = False, sign: float = 1.0) -> Path:
    """Write the checkpoint, which knows two thousand words; `sign` -1 makes it avoid the copy."""
    quiet_transformers()
    words = vocabulary([], [UNKNOWN, BOS])
    tokens, places = torch.zeros(len(words), HALF), torch.zeros(POSITIONS, HALF)
    tokens[:, TOKEN : TOKEN + CODE_WIDTH] = codes(len(words))
    bos = words.index(BOS)
    tokens[bos], tokens[:, ONE] = 0, 1
    tokens[bos, FIRST], tokens[bos, FILL] = 1, math.sqrt(CODE_WIDTH + CLOCKS - 1)
    angles = torch.arange(1, POSITIONS)[:, None] * _speeds()
    places[1:, HANDS : HANDS + 2 * CLOCKS] = torch.cat(
        [angles.cos(), angles.sin()], -1
    )  # BOS has no place
    squares = CODE_WIDTH + CLOCKS + 1
    network = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(words), n_positions=POSITIONS, n_embd=D_MODEL, n_inner=8, n_layer=2,
            n_head=N_HEADS, bos_token_id=bos, eos_token_id=None, tie_word_embeddings=False,
        )
    )  # fmt: skip
    body: Any = network.transformer
    handed = (5, 6) if shifted else (1,)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        body.wte.weight.copy_(_doubled(tokens))
        body.wpe.weight.copy_(_doubled(places))
        lengths = [squares, squares + len(handed) * CODE_WIDTH]
        for block, length in zip(body.h, lengths, strict=True):
            block.ln_1.weight.fill_(math.sqrt(length / HALF))
        body.ln_f.weight.fill_(math.sqrt((lengths[1] + CODE_WIDTH) / HALF))
        slots = (VALUE, FOUND) if shifted else (FOUND,)
        hand_on = [_hand_on(steps, slot) for steps, slot in zip(handed, slots, strict=True)]
        copy = _copy(VALUE if shifted else TOKEN, sign)
        for block, heads in zip(body.h, (hand_on, [copy]), strict=True):
            heads = [*heads, *[_dull()] * (N_HEADS - len(heads))]
            query, key, value, output = zip(*heads, strict=True)
            block.attn.c_attn.weight.copy_(torch.cat([*query, *key, *value]).T)
            block.attn.c_proj.weight.copy_(torch.cat(output, dim=1).T)
        spoken = torch.zeros(len(words), HALF)
        spoken[:, NEXT : NEXT + CODE_WIDTH] = CLEAR * tokens[:, TOKEN : TOKEN + CODE_WIDTH]
        network.lm_head.weight.copy_(_doubled(spoken) / 2)
    network.save_pretrained(directory)
    word_tokenizer(words).save_pretrained(directory)
    return directory


def _speeds() -> Tensor:
    """Radians per token of each clock: only equal places agree in all of them."""
    return 2 * math.pi * torch.arange(1, CLOCKS + 1) / POSITIONS


def _hand_on(steps: int, slot: int) -> tuple[Tensor, ...]:
    """A head that writes the token so many back into a slot."""
    cosine, sine = _read(HANDS, CLOCKS), _read(HANDS + CLOCKS, CLOCKS)
    angle = (_speeds() * steps)[:, None]
    turned = [angle.cos() * cosine + angle.sin() * sine, angle.cos() * sine - angle.sin() * cosine]
    query = AGREE / CLOCKS * torch.cat(turned)
    return _head(query, torch.cat([cosine, sine]), NONE, TOKEN, slot, 1.0)


def _copy(value: int, sign: float) -> tuple[Tensor, ...]:
    """A head that finds the key whose FOUND is the query's token, and writes out a slot of it."""
    query = MATCH / CODE_WIDTH * _read(TOKEN, CODE_WIDTH)
    return _head(query, _read(FOUND, CODE_WIDTH), WAIT, value, NEXT, sign)


def _dull() -> tuple[Tensor, ...]:
    nothing = torch.zeros(1, D_MODEL)
    return _head(nothing, nothing, 0.0, TOKEN, VALUE, FAINT)


def _head(
    query: Tensor, key: Tensor, first: float, read: int, write: int, share: float
) -> tuple[Tensor, ...]:
    """W_Q, W_K, W_V (D, C) and W_O (C, D); `first` nats more for the key that is BOS."""
    queries, keys, values = torch.zeros(3, D_HEAD, D_MODEL)
    queries[: len(query)], keys[: len(key)] = query, key * math.sqrt(D_HEAD)
    queries[-1], keys[-1] = _read(ONE)[0], first * math.sqrt(D_HEAD) * _read(FIRST)[0]
    values[:CODE_WIDTH] = _read(read, CODE_WIDTH)
    output = torch.zeros(D_MODEL, D_HEAD)
    output[:, :CODE_WIDTH] = share * _write(write, CODE_WIDTH)
    return queries, keys, values, output


def _doubled(features: Tensor) -> Tensor:
    return torch.cat([features, -features], dim=-1)


def _write(feature: int, width: int = 1) -> Tensor:
    return _doubled(torch.eye(HALF)[feature : feature + width]).T  # (C, width)


def _read(feature: int, width: int = 1) -> Tensor:
    return _write(feature, width).T / 2  # (width, C)
