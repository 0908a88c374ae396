"""Forced choices by plain loops, and heads that are known to find the antecedent, or not to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import attnscope
from attnscope.api import Model
from attnscope.scoring import scan as scanning
from attnscope.scoring.coreference import (
    LATER,
    NEAREST_WRONG,
    ROLE,
    Choices,
    CoreferenceProbe,
    Readings,
    baselines,
    choose,
)
from attnscope.scoring.estimate import estimate
from attnscope.scoring.labels import Evidence, judge, labels_of
from attnscope.scoring.passages import Battery, Item, read_battery
from attnscope.scoring.rules import read_rules
from attnscope.scoring.scan import scan
from attnscope.types import TokenBatch
from tests.patterns import PATTERNS, Planted, Targets

Directory = Callable[[str], Path]


@pytest.fixture(scope="module")
def read(english: Directory) -> dict[str, tuple[Model, Battery]]:
    models = {name: attnscope.load(str(english(name))) for name in ("gpt2", "bert")}
    return {name: (model, read_battery(model)) for name, model in models.items()}


# By hand


def by_loops(
    items: Sequence[Item], weights: list[list[Tensor]], causal: bool, layer: int, head: int
) -> dict[str, dict[int, list[tuple[float, float, float, float]]]]:
    """One head, by question and text: (won, right, all, mean) of every item that counts."""

    def look(item: Item, view: int, candidate: int) -> float:
        rows = weights[item.text][layer][head]
        if not causal:
            pair = (item.pronoun, candidate) if view == 0 else (candidate, item.pronoun)
            return float(rows[pair])
        return float(rows[min(item.pronoun + view, len(rows) - 1), candidate])

    def won(item: Item, view: int) -> float:
        right = look(item, view, item.candidates[item.gold])
        each = []
        for n, candidate in enumerate(item.candidates):
            if n != item.gold:
                wrong = look(item, view, candidate)
                each.append(1.0 if right > wrong else 0.5 if right == wrong else 0.0)
        return sum(each) / len(each)

    found: dict[str, dict[int, list[tuple[float, float, float, float]]]]
    found = {ROLE: {}, NEAREST_WRONG: {}}
    views = range(1 + LATER) if causal else range(2)
    for item in items:
        elsewhere = [other for other in items if other.text % 2 != item.text % 2]
        best = max(views, key=lambda view: sum(won(other, view) for other in elsewhere))
        seen = [look(item, best, candidate) for candidate in item.candidates]
        numbers = (won(item, best), seen[item.gold], sum(seen), sum(seen) / len(seen))
        found[ROLE].setdefault(item.text, []).append(numbers)
        if item.nearest != item.gold:
            found[NEAREST_WRONG].setdefault(item.text, []).append(numbers)
    return found


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_forced_choice_is_what_plain_loops_say(
    name: str, read: dict[str, tuple[Model, Battery]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the weights of a real model, in small blocks and batches."""
    model, battery = read[name]
    three = next(item.text for item in battery.items if len(item.candidates) == 3)
    chosen = sorted({0, 1, 2, 3, three})
    texts = [battery.texts[n] for n in chosen]
    items = [
        replace(item, text=chosen.index(item.text))
        for item in battery.items
        if item.text in chosen
    ]  # fmt: skip
    last = items[-1]
    items.append(replace(last, pronoun=len(texts[last.text]) - 1))  # nothing comes after it
    captured = [model.capture_ids([token.id for token in text.tokens]) for text in texts]
    weights = [[one[layer] for layer in range(3)] for one in captured]
    probe = CoreferenceProbe(model, items, [len(text) for text in texts])
    monkeypatch.setattr(scanning, "BATCH_TOKENS", 400)
    model.set_block_rows(50)
    scan(model, texts, watchers=[probe.watcher])
    model.set_block_rows(None)
    choices = probe.choices()
    assert choices.sums.names == (ROLE, NEAREST_WRONG)
    for layer in range(3):
        for head in range(4):
            found = by_loops(items, weights, model.shape.causal, layer, head)
            for question, by_text in found.items():
                one = choices.sums.of(question)
                for text in range(len(texts)):
                    rows = by_text.get(text, [])
                    assert one.rows[text, layer, 0] == len(rows)
                    assert one.chance[text, layer, 0] == len(rows) / 2
                    sums = np.sum(rows, axis=0) if rows else np.zeros(4)
                    for part, expected in zip(
                        (one.raw, one.free, one.live, one.free_chance), sums, strict=True
                    ):
                        assert part[text, layer, head, 0] == pytest.approx(expected, abs=2e-5)


def item(
    text: int, pronoun: int, candidates: Sequence[int], gold: int, named: Sequence[int]
) -> Item:
    nearest = max(range(len(candidates)), key=lambda n: candidates[n])
    return Item(text, pronoun, tuple(candidates), gold, nearest, tuple(named))


def test_baselines_by_hand() -> None:
    items = [
        item(0, 9, [2, 5], 1, [3, 1]),  # nearest right; first wrong; less often named
        item(0, 9, [2, 8], 0, [2, 1]),  # nearest wrong, the token before; first right; more often
        item(1, 9, [6, 3], 0, [1, 1]),  # nearest right; as often named: half
        item(
            1, 9, [1, 2, 3], 1, [2, 3, 3]
        ),  # neither nearest nor first: beats none of it, ties one
    ]
    assert baselines(items) == {
        "nearest candidate": pytest.approx((1 + 0 + 1 + 0.25) / 4),
        "first candidate": pytest.approx((0 + 1 + 0 + 0.25) / 4),
        "more often named": pytest.approx((0 + 1 + 0.5 + 0.75) / 4),
        "previous token": pytest.approx((0.5 + 0 + 0.5 + 0.5) / 4),
    }


def test_ties_count_half() -> None:
    """A head that looks at nothing of it, and one that looks at both alike."""
    items = [item(n, 9, [2, 5], n % 2, [1, 1]) for n in range(6)]
    model = _Shape(causal=True)
    probe = CoreferenceProbe(model, items, [20] * 6)  # type: ignore[arg-type]
    probe.watcher.weights[0, 1] = 0.25
    sums = probe.choices().sums
    scores = estimate(sums)
    assert scores[ROLE].raw.tolist() == [[0.5, 0.5]]
    assert scores[ROLE].lift.tolist() == [[0.0, 0.0]]
    assert scores[ROLE].n.tolist() == [[6, 6]]
    assert scores[ROLE].live_mass.tolist() == [[0.0, 0.5]]
    assert scores[ROLE].sink_free[0, 1] == scores[ROLE].sink_free_chance[0, 1] == 0.5


@dataclass(frozen=True)
class _Shape:
    """As much of a model as the probe asks for: two heads."""

    causal: bool
    n_layers: int = 1
    n_heads: int = 2

    @property
    def shape(self) -> _Shape:
        return self


# Heads that are known


def linked(battery: Battery, row: Callable[[Item], int], key: Callable[[Item], int]) -> Targets:
    """On the passages, key(item) from row(item) of every item; all else rests."""
    places: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for found in battery.items:
        ids = tuple(token.id for token in battery.texts[found.text].tokens)
        places.setdefault(ids, []).append((row(found), key(found)))

    def targets(batch: TokenBatch) -> Tensor:
        keys = torch.zeros(*batch.ids.shape, batch.ids.shape[1], dtype=torch.bool)
        for text, (ids, valid) in enumerate(zip(batch.ids, batch.valid, strict=True)):
            for query, one in places.get(tuple(ids[valid].tolist()), []):
                keys[text, query, one] = True
        return keys

    return targets


def gold(item: Item) -> int:
    return item.candidates[item.gold]


def pronoun(item: Item) -> int:
    return item.pronoun


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_a_head_that_finds_the_antecedent_is_the_only_one_said_to(
    name: str, english: Directory
) -> None:
    battery = read_battery(attnscope.load(str(english(name))))
    right_where_nearest_is = {id(i): i.gold if i.gold == i.nearest else 1 - i.gold
                              for i in battery.items}  # fmt: skip
    known = {
        "antecedent": linked(battery, pronoun, gold),
        "nearest": linked(battery, pronoun, lambda i: i.candidates[i.nearest]),
        "first named": linked(battery, pronoun, lambda i: min(i.candidates)),
        "wrong": linked(battery, pronoun, lambda i: i.candidates[i.gold - 1]),
        "half": linked(battery, pronoun, lambda i: i.candidates[right_where_nearest_is[id(i)]]),
        "one later": linked(battery, lambda i: i.pronoun + 1, gold),
        "two later": linked(battery, lambda i: i.pronoun + 2, gold),
        "back": linked(battery, gold, pronoun),
    }
    names = [*known, "previous", "first", "identity"]
    planted = Planted(english(name), names, patterns={**PATTERNS, **known})
    result = planted.model.heads("The chef sang.")
    found = {name for name, labels in planted.labels(result).items() if "coreference" in labels}
    causal = {"antecedent", "one later", "two later"}
    assert found == (causal if planted.model.shape.causal else {"antecedent", "back"})
    scores = result.general.evidence.scores
    for one in found:
        head = planted.place(one)
        assert scores[ROLE].raw[head.layer, head.head] > 0.9
        assert scores[NEAREST_WRONG].raw[head.layer, head.head] > 0.9
    for one in ("identity", "uniform"):  # they look at both candidates alike
        head = planted.place(one)
        assert scores[ROLE].raw[head.layer, head.head] == 0.5
    assert result.general.about["baselines"]["nearest candidate"] == pytest.approx(0.5, abs=0.05)


def forced_choice(items: Sequence[Item], n_texts: int, won: np.ndarray) -> Choices:
    """Choices of heads of which only `won` (items, views, L, H) is asked."""
    counts = np.array([len(item.candidates) for item in items])
    return choose(items, n_texts, Readings(won, won, won, counts))


def noise(seed: int, items: Sequence[Item], shape: tuple[int, int]) -> np.ndarray:
    """Heads that know nothing: won (items, views, L, H), each a fair coin for each view."""
    draw = np.random.default_rng(seed)
    return (draw.random((len(items), 1 + LATER, *shape)) < 0.5).astype(float)


def test_noise_gets_no_label_and_choosing_a_view_gains_nothing(
    read: dict[str, tuple[Model, Battery]],
) -> None:
    """20 models of 12 heads. Chosen on the same items, the best of three views would read .519."""
    _, battery = read["gpt2"]
    rules = [rule for rule in read_rules() if rule.role == ROLE]
    means = []
    for seed in range(20):
        won = noise(seed, battery.items, (3, 4))
        choices = forced_choice(battery.items, len(battery.texts), won)
        scores = estimate(choices.sums)
        evidence = Evidence(scores, None, {ROLE: choices.baselines})
        layers = labels_of(judge(rules, {"text": evidence}, causal=True), (3, 4))
        assert not any(found.labels for layer in layers for found in layer)
        means.append(scores[ROLE].raw.mean())
    error = 0.5 / (20 * 12 * len(battery.items)) ** 0.5
    assert abs(np.mean(means) - 0.5) < 3 * error
    assert 6 * error < 0.519 - 0.5


def test_the_view_is_chosen_on_the_other_half() -> None:
    """A head that is right one token later in even texts, and two later in odd ones."""
    items = [item(n, 9, [2, 5], 0, [1, 1]) for n in range(8)]
    won = np.zeros((8, 3, 1, 1))
    won[::2, 1] = won[1::2, 2] = 1.0
    sums = forced_choice(items, 8, won).sums
    assert estimate(sums)[ROLE].raw[0, 0] == 0.0  # each half is read where the other was right
    won[:, 1] = 1.0
    won[::2, 2] = 0.0
    sums = forced_choice(items, 8, won).sums
    assert estimate(sums)[ROLE].raw[0, 0] == 1.0
