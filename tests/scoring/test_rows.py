"""Weights and greatest weights, read as they pass, are those of the whole matrix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import attnscope
from attnscope.scoring.rows import Choice, GreatestWeights, PairWeights
from attnscope.scoring.scan import watch

NAMES = ["llama-gqa", "mistral-window", "bert", "gpt_oss", "gemma2", "modernbert", "llama-dynamic"]
TEXTS = ["the cat the dog", "a song about the floor , and then she sang a song .", "the", "cat the"]


@pytest.mark.parametrize("rows", [None, 3])
@pytest.mark.parametrize("name", NAMES)
def test_pairs_and_greatest(name: str, rows: int | None, checkpoint: Callable[[str], Path]) -> None:
    model = attnscope.load(str(checkpoint(name)))
    texts = [model.reader.read(text) for text in TEXTS]
    draw = np.random.default_rng(0)
    pairs, choices = [], []
    for _ in range(30):
        text = int(draw.integers(len(texts)))
        n = len(texts[text])
        query, key = (int(at) for at in draw.integers(n, size=2))
        pairs.append((text, query, key))
        among = tuple(sorted({int(at) for at in draw.integers(n, size=4)}))
        choices.append(Choice(text, query, among, among[:1]))
    model.set_block_rows(rows)
    weights, greatest = PairWeights(model, pairs), GreatestWeights(model, choices)
    watch(model, texts, [weights, greatest])
    whole = [model.capture_ids([t.id for t in text.tokens]).attention for text in texts]
    chance = greatest.chance()
    for n, (pair, choice) in enumerate(zip(pairs, choices, strict=True)):
        for layer, spec in enumerate(model.specs):
            row = whole[pair[0]][layer][:, pair[1]]  # (H, S)
            assert (weights.weights[layer, :, n] - row[:, pair[2]]).abs().max() < 1e-5
            near = torch.arange(row.shape[1])
            seen = near <= pair[1] if spec.causal else near >= 0
            if spec.window is not None:
                seen &= (near - pair[1]).abs() < spec.window
            among = [key for key in choice.among if seen[key]]
            right = set(choice.right) & set(among)
            assert chance[layer, n] == pytest.approx(len(right) / max(len(among), 1))
            if among:
                best = [among[int(at)] for at in row[:, among].argmax(-1)]
                assert greatest.right[layer, :, n].tolist() == [float(k in right) for k in best]


def test_ties_share_the_choice(checkpoint: Callable[[str], Path]) -> None:
    model = attnscope.load(str(checkpoint("llama-gqa")))
    for parameter in model.network.parameters():
        parameter.data.zero_()  # every row is even
    text = model.reader.read("the cat the dog and then she sang")
    among = (0, 2, 3, 5)
    watcher = GreatestWeights(model, [Choice(0, 6, among, (3,)), Choice(0, 1, among, (3,))])
    watch(model, [text], [watcher])
    assert watcher.right[..., 0].unique().tolist() == [0.25]
    assert watcher.right[..., 1].unique().tolist() == [0]  # the right one is not visible
    assert watcher.chance()[0].tolist() == [0.25, 0]


def test_nothing_listed_is_nothing_read(checkpoint: Callable[[str], Path]) -> None:
    model = attnscope.load(str(checkpoint("bert")))
    watchers = [PairWeights(model, []), GreatestWeights(model, [])]
    watch(model, [model.reader.read("the cat")], watchers)
    assert watchers[0].weights.shape[-1] == 0
