"""A checkpoint that knows who "he" is: two genders, names of both, every weight by formula.

One layer of GPT-2. A token holds marks: the gender of a name, of a pronoun, of a verb (in this
language verbs agree with their subject, so the word after a pronoun tells its gender too), and the
place as the hands of four clocks. Every feature stands a second time, negated, and all squares sum
to the same: the norm changes nothing.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from attnscope.models.quiet import quiet_transformers
from attnscope.types import Head
from tests.planted import CLOCKS, SPEEDS

MEN = ("Adam", "Bert", "Carl", "David", "Emil", "Frank")
WOMEN = ("Anna", "Berta", "Carla", "Doris", "Emma", "Fanny")
MARKS = {"man": MEN, "woman": WOMEN, "he": ("he",), "she": ("she",), "verb-m": ("ranm",),
         "verb-f": ("ranf",), "word": ("[UNK]", "saw", "then", "and", "today", ".")}  # fmt: skip
WORDS = [word for words in MARKS.values() for word in words]
NAMES = list(MARKS)
ONE, HANDS = len(NAMES), len(NAMES) + 1
HALF = HANDS + 2 * CLOCKS
POSITIONS, WIDTH = 64, 16
SURE = 12.0  # nats between a target and any other key

# What each head asks (a mark of the query) and finds (a mark of the key).
HEADS: dict[str, list[tuple[str, str]]] = {
    "antecedent": [("he", "man"), ("she", "woman")],
    "rival": [("he", "woman"), ("she", "man")],
    "names": [("he", "man"), ("he", "woman"), ("she", "man"), ("she", "woman")],
    "antecedent, a word later": [("verb-m", "man"), ("verb-f", "woman")],
    "previous token": [],
    "uniform": [],
}
AT_ONCE, LATER = (Head(0, list(HEADS).index(name)) for name in ("antecedent", [*HEADS][3]))


def write(directory: Path) -> Path:
    """Save the checkpoint."""
    quiet_transformers()
    tokens = torch.zeros(len(WORDS), HALF)
    for id_, word in enumerate(WORDS):
        tokens[id_, next(n for n, words in enumerate(MARKS.values()) if word in words)] = 1
        tokens[id_, ONE] = 1
    angles = torch.arange(POSITIONS)[:, None] * SPEEDS
    places = torch.zeros(POSITIONS, HALF)
    places[:, HANDS:] = torch.cat([angles.cos(), angles.sin()], -1).float()
    gain = math.sqrt((2 + CLOCKS) / HALF)  # all squares sum to 2 · (2 + CLOCKS)
    size = 2 * HALF
    network = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(WORDS), n_positions=POSITIONS, n_embd=len(HEADS) * WIDTH, n_inner=8,
            n_layer=1, n_head=len(HEADS), bos_token_id=None, eos_token_id=None,
        )
    )  # fmt: skip
    body: Any = network.transformer
    assert len(HEADS) * WIDTH >= size
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        body.wte.weight[:, :size] = torch.cat([tokens, -tokens], -1)
        body.wpe.weight[:, :size] = torch.cat([places, -places], -1)
        block = body.h[0]
        block.ln_1.weight.fill_(gain * math.sqrt(size / (len(HEADS) * WIDTH)))
        query, key = zip(*(_head(name) for name in HEADS), strict=True)
        value = torch.zeros(len(HEADS) * WIDTH, len(HEADS) * WIDTH)
        block.attn.c_attn.weight.copy_(torch.cat([*query, *key, value]).T)
        block.ln_2.weight.fill_(1)
        body.ln_f.weight.fill_(1)
    network.save_pretrained(directory)
    tokenizer(WORDS).save_pretrained(directory)
    return directory


def _head(name: str) -> tuple[Tensor, Tensor]:
    """W_Q and W_K of a head, (D, C)."""
    query, key = torch.zeros(2, WIDTH, len(HEADS) * WIDTH)
    for n, (asked, found) in enumerate(HEADS[name]):
        query[n, NAMES.index(asked)] = SURE
        key[n, NAMES.index(found)] = math.sqrt(WIDTH)
    if name == "previous token":
        hands = torch.eye(2 * CLOCKS)
        turn = SPEEDS.float()
        for n in range(CLOCKS):
            cosine, sine = HANDS + n, HANDS + CLOCKS + n
            query[n, cosine], query[n, sine] = turn[n].cos(), turn[n].sin()
            query[CLOCKS + n, cosine], query[CLOCKS + n, sine] = -turn[n].sin(), turn[n].cos()
        query *= 80 / CLOCKS
        key[: 2 * CLOCKS, HANDS : HANDS + 2 * CLOCKS] = math.sqrt(WIDTH) * hands
    return query, key


def tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    """One token a word."""
    ids = {word: id_ for id_, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]")


def sentences(directory: Path, n: int = 200, seed: int = 0) -> Path:
    """Labelled sentences of the language as JSONL, as many of each gender and either order."""
    draw = random.Random(seed)
    lines = []
    for number in range(n):
        he = number % 2 == 0
        pair = [draw.choice(MEN), draw.choice(WOMEN)]
        draw.shuffle(pair)
        gold = next(k for k, name in enumerate(pair) if (name in MEN) == he)
        start = draw.choice(["", "today ", "then "])
        more = draw.choice(["", f" and then saw {draw.choice(pair)}", " today"])
        before = f"{start}{pair[0]} saw {pair[1]}{more} and then "
        pronoun, verb = ("he", "ranm") if he else ("she", "ranf")
        text = f"{before}{pronoun} {verb} today ."
        first = len(start)
        second = text.index(pair[1], first + len(pair[0]))
        spans = [[first, first + len(pair[0])], [second, second + len(pair[1])]]
        entry = {
            "id": str(number),
            "text": text,
            "pronoun": [len(before), len(before) + len(pronoun)],
        }
        lines.append(json.dumps({**entry, "candidates": spans, "gold": gold}))
    path = directory / "sentences.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
