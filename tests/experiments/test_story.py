"""The story: sentences that follow from the numbers, and the weights' part where it is there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnscope.api import Model, load
from attnscope.errors import CheckpointError
from attnscope.experiments import story
from attnscope.types import Head
from tests.planted_copying import planted_copier

PAIRS = [{"kind": "K", "source": "0.0", "target": "1.0", "score": 0.9, "baseline": 0.04, "z": 31.0}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(str(planted_copier(tmp_path_factory.mktemp("copier"))), logits=True)


def fake_circuits(monkeypatch: pytest.MonkeyPatch, circuits: Any) -> None:
    monkeypatch.setattr(story, "circuits", circuits)


def test_every_part_is_told(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def circuits(model: Model, **options: Any) -> Any:
        asked.update(options)
        return SimpleNamespace(to_json=lambda: {"composition": PAIRS})

    fake_circuits(monkeypatch, circuits)
    told = model.induction(length=20, sequences=4, story=True).story
    assert asked["target"] == [Head(1, 0)]
    words = " ".join(told)
    for part in (
        "7.6 nats the first time, 0.0 when it comes again: the model copies",
        "One head looks from a repeated token to its targets: 1.0 (1.00)",
        "By itself 1.0 (+31",
        "Below, 0.0 looks the way back that it needs; without it the mean share falls from 1",
        "what 0.0 writes is what the keys of 1.0 read most of (z 31.0)",
        "Without it a repeated token costs 7.6 nats instead of 0.0; 5 random sets",
    ):
        assert part in words


def test_weights_that_cannot_be_followed_are_left_out(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def circuits(model: Model, **options: Any) -> Any:
        raise CheckpointError("not made of norms and additions")

    fake_circuits(monkeypatch, circuits)
    assert story.weights_say(model, [Head(1, 0)]) is None
    assert story.weights_say(model, []) is None


def test_without_an_ablation_it_says_so(model: Model, tmp_path: Path) -> None:
    told = story.tell(model.induction(length=20, sequences=4))
    assert told[-1] == ("Whether the model needs them was not tested: --ablate switches them off.")
    assert "weights" not in " ".join(told)
