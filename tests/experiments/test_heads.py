"""`Model.heads` in Python: what it needs, and what it does where the battery says nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import attnscope
from attnscope.api import Model
from attnscope.errors import UsageError
from attnscope.types import Head
from tests import planted

TEXT = "The chef dropped the glass bowl on a tile floor, because it was slippery."


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path]) -> Model:
    return attnscope.load(str(checkpoint("gpt2")))


def test_without_a_text_the_battery_is_the_texts(model: Model) -> None:
    result = model.heads()
    assert result.n_texts == 58
    assert result.text is None
    assert result.battery is not None
    np.testing.assert_array_equal(
        result.scores["local"].raw, result.general.evidence.scores["local"].raw
    )
    json.dumps(result.to_json(), allow_nan=False)


def test_no_text_of_any_kind_is_told(model: Model) -> None:
    with pytest.raises(UsageError):
        model.heads([], battery=False)
    for battery in (True, False):
        with pytest.raises(UsageError):
            model.heads(corpus=[], battery=battery)


def test_a_corpus_is_read_once_as_it_comes(model: Model) -> None:
    read: list[int] = []

    def texts() -> Iterator[str]:
        for n in range(5):
            read.append(n)
            yield f"the cat sang song {n} ."

    result = model.heads(corpus=texts())
    assert read == list(range(5))
    assert result.n_texts == 5
    assert result.general.about["texts"] == 5
    assert result.general.about["tokens"] == result.n_tokens


def test_texts_of_one_token_each_score_nothing(model: Model) -> None:
    result = model.heads(["the", "the"], battery=False)
    assert all(result.labels_of(head).labels == () for head in result.heads)
    assert np.isnan(result.scores["current_token"].lift).all()
    json.dumps(result.to_json(), allow_nan=False)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_tokenizer_that_does_not_know_the_passages(name: str, tmp_path: Path) -> None:
    """Its labels rest on the texts given, and that is said."""
    write = {"gpt2": planted.planted_gpt2, "llama": planted.planted_llama}[name]
    wanted = write(tmp_path, [TEXT])
    result = attnscope.load(str(tmp_path)).heads([TEXT] * 4)
    assert result.random is None
    document = result.to_json()
    assert document["labels_from"] == "texts"
    assert document["settings"]["battery"] is None
    assert all(entry["battery"] is None for entry in document["heads"])
    [note] = [note for note in result.notes if "tokenizer does not know" in note]
    assert note.startswith("Labels rest on the given texts alone")
    for name in ("previous", "first", "itself"):
        place = next(Head(i, j) for i, row in enumerate(planted.HEADS)
                     for j, head in enumerate(row) if head.name == name)  # fmt: skip
        assert set(result.labels_of(place).labels) == wanted[place]
