"""A checkpoint that says who "he" is, by two heads: every weight by formula, none is trained.

A GPT-2 of two layers for the language of `planted_coref`. Head 0.0 looks from a pronoun to the
name of its gender and notes it down there; head 1.0 looks at the token before, and says what is
noted. So behind "he (" the right name is certain, and without either head both are as likely. All
other heads look everywhere and write nothing.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from attnscope.models.quiet import quiet_transformers
from attnscope.types import Head
from tests.planted import CLOCKS, SPEEDS
from tests.planted_coref import MEN, WOMEN, WORDS, tokenizer

BRACKET = "("
ALL = [*WORDS, BRACKET]
# The residual stream: which token it is, which name is noted, which one is said; the gender of a
# name, the pronouns, and the hands of the clocks. Each stands there a second time, negated.
TOKEN, NOTED, SAID = (n * len(ALL) for n in range(3))
MAN, WOMAN, HE, SHE, HANDS = (3 * len(ALL) + n for n in range(5))
HALF = 3 * len(ALL) + 4 + 2 * CLOCKS
N_HEADS, D_HEAD, POSITIONS = 4, 2 * HALF // 4 + 1, 64
D_MODEL = N_HEADS * D_HEAD
SURE = 60.0  # nats between a target and any other key
FAINT = 0.02  # a note moves the norm of what else is there by little
LINKS, NAMES = Head(0, 0), Head(1, 0)


def write(directory: Path) -> Path:
    """Save the checkpoint."""
    quiet_transformers()
    tokens, places = torch.zeros(len(ALL), HALF), torch.zeros(POSITIONS, HALF)
    tokens[:, TOKEN : TOKEN + len(ALL)] = torch.eye(len(ALL))
    for mark, words in ((MAN, MEN), (WOMAN, WOMEN), (HE, ["he"]), (SHE, ["she"])):
        tokens[[ALL.index(word) for word in words], mark] = 1
    angles = torch.arange(POSITIONS)[:, None] * SPEEDS
    places[:, HANDS:] = torch.cat([angles.cos(), angles.sin()], -1).float()
    network = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(ALL), n_positions=POSITIONS, n_embd=D_MODEL, n_inner=8, n_layer=2,
            n_head=N_HEADS, bos_token_id=None, eos_token_id=None, tie_word_embeddings=False,
        )
    )  # fmt: skip
    body: Any = network.transformer
    spoken = torch.zeros(len(ALL), HALF)
    spoken[:, SAID : SAID + len(ALL)] = torch.eye(len(ALL))
    dull = torch.zeros(3, D_HEAD, D_MODEL), torch.zeros(D_MODEL, D_HEAD)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        body.wte.weight.copy_(_doubled(tokens))
        body.wpe.weight.copy_(_doubled(places))
        for block, head in zip(body.h, (_links(), _names()), strict=True):
            block.ln_1.weight.fill_(1)
            block.ln_2.weight.fill_(1)
            inward, output = zip(head, *[dull] * (N_HEADS - 1), strict=True)
            block.attn.c_attn.weight.copy_(torch.cat(inward, dim=1).flatten(0, 1).T)
            block.attn.c_proj.weight.copy_(torch.cat(output, dim=1).T)
        body.ln_f.weight.fill_(1)
        network.lm_head.weight.copy_(_doubled(spoken))
    network.save_pretrained(directory)
    tokenizer(ALL).save_pretrained(directory)
    return directory


def _links() -> tuple[Tensor, Tensor]:
    inward = torch.zeros(3, D_HEAD, HALF)
    for n, (pronoun, gender) in enumerate(((HE, MAN), (SHE, WOMAN))):
        inward[0, n, pronoun], inward[1, n, gender] = SURE, 1
    return _head(inward, TOKEN, NOTED, FAINT)


def _names() -> tuple[Tensor, Tensor]:
    inward = torch.zeros(3, D_HEAD, HALF)
    for n in range(CLOCKS):
        cosine, sine = HANDS + n, HANDS + CLOCKS + n
        turn = SPEEDS[n].float()
        inward[0, n, cosine], inward[0, n, sine] = turn.cos(), turn.sin()
        inward[0, CLOCKS + n, cosine], inward[0, CLOCKS + n, sine] = -turn.sin(), turn.cos()
        inward[1, n, cosine], inward[1, CLOCKS + n, sine] = 1, 1
    inward[0] *= 80
    return _head(inward, NOTED, SAID, 1 / FAINT)


def _head(inward: Tensor, read: int, say: int, share: float) -> tuple[Tensor, Tensor]:
    """W_Q, W_K, W_V (3, D, C) and W_O (C, D); inward (3, D, HALF) has no values yet."""
    eye = torch.eye(HALF)
    inward[2, : len(ALL)] = eye[read : read + len(ALL)]
    inward[1] *= math.sqrt(D_HEAD)
    output = torch.zeros(D_MODEL, D_HEAD)
    output[:, : len(ALL)] = share * _doubled(eye[say : say + len(ALL)]).T
    return _doubled(inward) / 2, output


def _doubled(features: Tensor) -> Tensor:
    """features (..., HALF) and their negatives, (..., C)."""
    rest = features.new_zeros(*features.shape[:-1], D_MODEL - 2 * HALF)
    return torch.cat([features, -features, rest], dim=-1)
