"""Controls: heads without a job get no label, and shuffled words leave only what is no content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attnscope
from attnscope.experiments.heads_result import HeadsResult
from attnscope.scoring import battery as reading
from attnscope.scoring import passages
from attnscope.scoring.passages import Battery, Item, read_battery
from attnscope.types import TokenBatch
from tests import english as knowing
from tests import planted
from tests.patterns import PATTERNS, Planted, Targets
from tests.test_planted import WRITE

Directory = Callable[[str], Path]
RANDOM = [
    (name, seed, std)
    for name, seeds in (("gpt2", range(7)), ("llama", range(7)), ("bert", range(6)))
    for seed, std in zip(seeds, [0.2, 0.25, 0.3] * 3, strict=False)
]


def sharpen(network: nn.Module) -> None:
    """Four times the scores: at this size random heads attend evenly, which is a label too."""
    for name, parameter in network.named_parameters():
        if "q_proj" in name or "query" in name:
            parameter.mul_(4)
        elif "c_attn" in name:  # query, key and value side by side
            parameter[..., : parameter.shape[-1] // 3].mul_(4)


def all_labels(result: HeadsResult) -> list[str]:
    return [label for head in result.heads for label in result.labels_of(head).labels]


@pytest.mark.parametrize(("name", "seed", "std"), RANDOM)
def test_random_weights_get_no_label(name: str, seed: int, std: float, tmp_path: Path) -> None:
    directory = knowing.save(name, tmp_path / "it", seed=seed, std=std, change=sharpen)
    result = attnscope.load(str(directory)).heads(knowing.TEXT)
    assert result.random is not None
    assert result.general.about["texts"] == 58
    found = {str(head): result.labels_of(head).labels for head in result.heads}
    assert found == dict.fromkeys(found, ())


@pytest.fixture
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fourth passage: enough for what is plain to see."""
    few = passages.bundled_passages()[::4]
    monkeypatch.setattr(passages, "bundled_passages", lambda: few)


@pytest.mark.usefixtures("_few")
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_random_heads_that_are_broad_are_called_nothing_else(name: str, tmp_path: Path) -> None:
    """As they come from tiny.randomise; each that is called broad has the entropy for it."""
    directory = knowing.save(name, tmp_path / "it", seed=1, std=0.2)
    result = attnscope.load(str(directory)).heads(knowing.TEXT)
    assert set(all_labels(result)) == {"broad"}
    breadth = result.general.evidence.scores["broad"].raw
    for head in result.heads:
        if result.labels_of(head).labels:
            assert breadth[head.layer, head.head] > 0.8


@pytest.mark.usefixtures("_few")
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_heads_before_training_are_broad(name: str, tmp_path: Path) -> None:
    """Weights as transformers draws them: so small that every row is even."""
    directory = knowing.save(name, tmp_path / "it", std=None)
    result = attnscope.load(str(directory)).heads(knowing.TEXT)
    assert all_labels(result) == ["broad"] * 12


# Shuffled words


def shuffled(battery: Battery) -> Battery:
    """Each passage with its words in any order; links go where their words go."""
    draw = np.random.default_rng(0)
    moved: list[dict[int, int]] = []
    texts = []
    for text in battery.texts:
        plain = [token.index for token in text.tokens if not token.special]
        to = dict(zip(plain, draw.permutation(plain).tolist(), strict=True))
        tokens, signs = list(text.tokens), list(text.punctuation)
        for old, new in to.items():
            tokens[new] = replace(text.tokens[old], index=new)
            signs[new] = text.punctuation[old]
        texts.append(replace(text, tokens=tuple(tokens), punctuation=tuple(signs), offsets=None))
        moved.append(to)
    items = tuple(
        replace(
            item,
            pronoun=moved[item.text][item.pronoun],
            candidates=tuple(moved[item.text][one] for one in item.candidates),
        )
        for item in battery.items
    )
    return replace(battery, texts=tuple(texts), items=items)


@pytest.mark.usefixtures("_few")
@pytest.mark.parametrize("name", list(WRITE))
def test_planted_heads_look_at_no_content(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Previous-token, current-token, resting and all the others stay, whatever the order."""
    known = [passage.text for passage in passages.bundled_passages()]
    wanted = WRITE[name](tmp_path, [*known, knowing.TEXT])
    monkeypatch.setattr(reading, "read_battery", lambda model: shuffled(read_battery(model)))
    result = attnscope.load(str(tmp_path)).heads(knowing.TEXT)
    for head in result.heads:
        assert set(result.labels_of(head).labels) == wanted[head]
    assert wanted == planted.labels()


def _content_heads(battery: Battery) -> dict[str, Targets]:
    """A head that knows which words stand together, and one that knows each antecedent."""
    together: set[tuple[int, int]] = set()
    links: dict[tuple[int, ...], list[Item]] = {}
    for text in battery.texts:
        together |= set(pairwise(token.id for token in text.tokens))
    for item in battery.items:
        ids = sorted(token.id for token in battery.texts[item.text].tokens)
        links.setdefault(tuple(ids), []).append(item)

    def neighbours(batch: TokenBatch) -> Tensor:
        keys = torch.zeros(*batch.ids.shape, batch.ids.shape[1], dtype=torch.bool)
        for text, ids in enumerate(batch.ids.tolist()):
            for n, pair in enumerate(pairwise(ids)):
                keys[text, n + 1, n] = pair in together
        return keys

    def antecedents(batch: TokenBatch) -> Tensor:
        keys = torch.zeros(*batch.ids.shape, batch.ids.shape[1], dtype=torch.bool)
        for text, (ids, valid) in enumerate(zip(batch.ids, batch.valid, strict=True)):
            for item in links.get(tuple(sorted(ids[valid].tolist())), []):
                keys[text, item.pronoun, item.candidates[item.gold]] = True
        return keys

    return {"neighbours": neighbours, "antecedents": antecedents}


def test_shuffling_takes_the_labels_of_content_and_leaves_the_others(
    english: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = english("llama")
    content = _content_heads(read_battery(attnscope.load(str(directory))))
    names = [*content, "previous", "identity", "first", "second_previous", "punctuation"]
    patterns = {**PATTERNS, **content}
    place = {
        "previous": {"previous-token"},
        "identity": {"current-token"},
        "first": {"resting"},
        "second_previous": {"local"},
        "punctuation": {"resting"},
        "uniform": {"broad"},
    }
    whole = Planted(directory, names, patterns=patterns)
    assert whole.labels(whole.model.heads(knowing.TEXT)) == {
        "neighbours": {"local"},
        "antecedents": {"coreference", "resting"},
        **place,
    }
    monkeypatch.setattr(reading, "read_battery", lambda model: shuffled(read_battery(model)))
    apart = Planted(directory, names, patterns=patterns)
    assert apart.labels(apart.model.heads(knowing.TEXT)) == {
        "neighbours": {"resting"},
        "antecedents": {"resting"},
        **place,
    }
