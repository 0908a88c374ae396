"""Repeats in a text: every place, its targets, who points there and what is predicted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from attnscope.api import Model, load
from tests import tiny
from tests.planted_copying import planted_copier

TEXT = "babada babade babadi babada babade babado babada"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(str(planted_copier(tmp_path_factory.mktemp("copier"))), logits=True)


def test_every_repeat_is_a_place_with_all_its_targets(model: Model) -> None:
    """0 <s> 1 babada 2 babade 3 babadi 4 babada 5 babade 6 babado 7 babada."""
    found = model.places(TEXT)
    assert [(place.query, place.targets) for place in found.places] == [
        (4, (2,)), (5, (3,)), (7, (2, 5)),
    ]  # fmt: skip
    for place in found.places:
        [(head, weight), *_] = place.top()
        assert (str(head), weight) == ("1.0", pytest.approx(1.0, abs=1e-4))
    assert [place.expected.text for place in found.places] == ["babade", "babadi", "babade"]
    assert all(place.expected.probability > 0.99 for place in found.places)
    assert all(place.expected.rank == 0 for place in found.places)
    assert [place.follows for place in found.places] == [5, 6, None]


def test_the_numbers_are_those_of_the_whole_logits_and_weights(tmp_path: Path) -> None:
    directory = tiny.save(tiny.CONFIGS["llama-gqa"](), tmp_path, causal_lm=True)
    model = load(str(directory), logits=True)
    text = "the cat sang , the cat the dog the the"
    found = model.places(text)
    captured = model.capture(text)
    for place in found.places:
        for layer in range(3):
            wanted = captured[layer][:, place.query][:, list(place.targets)].sum(-1)
            torch.testing.assert_close(
                torch.tensor(place.weights[layer]).float(), wanted, atol=1e-5, rtol=1e-5
            )
    assert [place.targets for place in found.places][-1][-1] == found.places[-1].query  # the the


def test_a_text_without_repeats(model: Model) -> None:
    found = model.places("babada babade")
    assert found.places == ()
    assert found.to_json()["places"] == []
    assert found.to_frame().empty


def test_the_document_is_json(model: Model) -> None:
    document = json.loads(json.dumps(model.places(TEXT).to_json(), allow_nan=False))
    assert document["schema"] == "attnscope.induction/1"
    assert {"index", "targets", "heads", "expected", "predicted", "next"} <= set(
        document["places"][0]
    )
    assert len(document["heads"]) == 12
