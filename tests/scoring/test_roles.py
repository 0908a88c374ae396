"""Labels from planted heads, and each role by hand on texts marked by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import attnscope
from attnscope.attention.lens import Lens
from attnscope.attention.visibility import Visibility
from attnscope.models.text import batch_of
from attnscope.scoring.estimate import score
from attnscope.scoring.roles import ROLES
from attnscope.scoring.scan import MEASURES, questions
from attnscope.scoring.sums import HeadSums, from_lens
from attnscope.types import ModelShape, TokenBatch
from tests.patterns import Planted, planted_weights, show

PLAIN = "The chef dropped the glass bowl on a tile floor, because it was slippery."
REPEATS = "the cat sang the cat sang the cat sang"

CAUSAL = ["uniform", "previous", "second_previous", "identity", "first", "induction",
          "duplicate", "punctuation"]  # fmt: skip
ENCODER = [*CAUSAL, "next", "special"]


@pytest.fixture(scope="module", params=[True, False], ids=["bos", "no-bos"])
def causal(request: pytest.FixtureRequest, english: Callable[[str], Path]) -> Planted:
    return Planted(english("llama"), CAUSAL, add_bos=request.param)


@pytest.fixture(scope="module")
def encoder(english: Callable[[str], Path]) -> Planted:
    return Planted(english("bert"), ENCODER)


def test_planted_heads_of_a_causal_model(causal: Planted) -> None:
    result = causal.model.heads(PLAIN)
    assert causal.labels(result) == {
        "uniform": {"broad"},
        "previous": {"previous-token"},
        "second_previous": {"local"},
        "identity": {"current-token"},
        "first": {"resting"},
        "induction": {"induction", "resting"},  # on words without a repeat it rests
        "duplicate": {"duplicate-token", "resting"},
        "punctuation": {"resting"},
    }
    assert result.labels_of(causal.place("first")).rests_on == ("first-token",)
    assert "punctuation" in result.labels_of(causal.place("punctuation")).rests_on


def test_planted_heads_of_an_encoder(encoder: Planted) -> None:
    result = encoder.model.heads(PLAIN)
    assert encoder.labels(result) == {
        "uniform": {"broad"},
        "previous": {"previous-token"},
        "second_previous": {"local"},
        "identity": {"current-token"},
        "first": {"resting"},
        "induction": {"resting"},  # no label of an encoder
        "duplicate": {"duplicate-token", "resting"},
        "punctuation": {"resting"},
        "next": {"next-token"},
        "special": {"resting"},
    }
    for name in ("first", "induction", "duplicate"):
        assert result.labels_of(encoder.place(name)).rests_on == ("first-token",)
    assert result.labels_of(encoder.place("special")).rests_on == ("special-token",)
    assert result.labels_of(encoder.place("punctuation")).rests_on == ("punctuation",)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("previous", "previous_token"),
        ("second_previous", "second_previous"),
        ("identity", "current_token"),
        ("first", "first_token"),
        ("induction", "induction"),
        ("duplicate", "duplicate_token"),
    ],
)
def test_an_exact_head_scores_one(name: str, role: str, causal: Planted) -> None:
    """Neither 0.495 nor 0.981: no row is counted that could not be right."""
    result = causal.model.heads(PLAIN)
    assert result.battery is not None
    head = causal.place(name)
    entry = result.battery[role].entry(head.layer, head.head)
    assert entry is not None
    assert entry["raw"] == pytest.approx(1.0, abs=1e-6)
    assert entry["lift"] == pytest.approx(1.0, abs=1e-6)
    others = {"induction", "previous_token", "duplicate_token", "current_token"} - {role}
    if name in ("previous", "identity", "induction", "duplicate"):
        for other in others:
            assert result.battery[other].lift[head.layer, head.head] < 0.05


def test_an_exact_head_scores_one_on_a_text(causal: Planted) -> None:
    result = causal.model.heads(REPEATS, battery=False)
    for name, role in [("induction", "induction"), ("duplicate", "duplicate_token"),
                       ("previous", "previous_token")]:  # fmt: skip
        head = causal.place(name)
        assert result.scores[role].raw[head.layer, head.head] == pytest.approx(1.0, abs=1e-6)
        assert result.scores[role].lift[head.layer, head.head] == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("text", [PLAIN, REPEATS, "the", "the cat", "the cat sang"])
def test_a_uniform_head_has_no_lift_in_any_role(
    text: str, causal: Planted, encoder: Planted
) -> None:
    for planted in (causal, encoder):
        result = planted.model.heads(text)
        head = planted.place("uniform")
        assert result.battery is not None
        for scores in (result.scores, result.battery):
            for role in set(scores) - {"broad"}:
                found = scores[role].entry(head.layer, head.head) or {}
                assert abs(found.get("lift") or 0) <= 1e-6, role
                for name in ("low", "high", "bound"):
                    assert abs(found.get(name) or 0) <= 1e-6, (role, name)
                if found.get("sink_free") is not None:  # and so has what it does not park
                    even = found["sink_free_chance"]
                    assert found["sink_free"] == pytest.approx(even, abs=1e-6), role
        assert set(result.labels_of(head).labels) <= {"broad"}


@pytest.mark.parametrize("text", ["the", "the cat", "the cat sang"])
def test_short_texts_give_the_known_label_or_none(text: str, causal: Planted) -> None:
    result = causal.model.heads(text, battery=False)
    found = causal.labels(result)
    assert found["uniform"] == set()  # fewer than eight keys: not even broad
    assert found["identity"] <= {"current-token"}
    assert found["first"] <= {"resting"}
    assert found["punctuation"] <= {"resting"}  # there is none: it looks at the first token
    assert found["induction"] <= {"induction", "resting"}
    assert result.text is not None
    tokens = len(result.text)
    # With two tokens "the previous" is "the first": it may not be said to be both.
    assert found["previous"] <= ({"previous-token"} if tokens > 2 else {"resting"})
    for name, labels in found.items():
        assert not {"previous-token", "resting"} <= labels, name
    for layer in result.to_json()["heads"]:
        assert None not in layer["labels"]


@pytest.mark.parametrize("text", ["the", "the cat", "the cat sang", REPEATS])
def test_the_battery_decides_whatever_the_text(text: str, causal: Planted) -> None:
    result, other = causal.model.heads(text), causal.model.heads(PLAIN)
    assert causal.labels(result) == causal.labels(other)
    assert result.scores["current_token"].n[0, 0] != other.scores["current_token"].n[0, 0]


def test_one_token_is_all_there_is(causal: Planted) -> None:
    result = causal.model.heads("the", battery=False)
    assert result.text is not None
    if len(result.text) == 1:
        assert all(labels == set() for labels in causal.labels(result).values())
        document = result.to_json()
        assert all(
            entry is None or entry["lift"] is None
            for head in document["heads"]
            for entry in head["scores"].values()
        )


# Roles one by one, on texts marked by hand


def shaped(causal: bool, sink: bool = False) -> ModelShape:
    return ModelShape(1, 4, 4, 8, 32, 100, None, causal, sink)


def asked(batch: TokenBatch, causal: bool) -> dict[str, tuple[list[int], float]]:
    """For each question: the rows it is asked of in text 0, and the summed chance."""
    lens = Lens(questions(batch, shaped(causal)))
    seen = Visibility(batch.valid, causal)
    found = {}
    for name, probe in lens.probes.items():
        rows = probe.targets(seen) & batch.valid
        chance = float(torch.where(rows, probe.uniform(seen).double(), 0.0)[0].sum())
        found[name] = (rows[0].nonzero().flatten().tolist(), chance)
    return found


def marked(ids: list[int], special: list[int] = (), marks: list[int] = ()) -> TokenBatch:  # type: ignore[assignment]
    """One text, with special tokens and punctuation at these places, beside two of padding."""
    n = len(ids) + 2
    index = torch.arange(n)
    return TokenBatch(
        ids=torch.tensor([[*ids, 1, 1]]),
        valid=(index < len(ids))[None],
        special=torch.isin(index, torch.tensor(list(special), dtype=torch.int64))[None],
        punctuation=torch.isin(index, torch.tensor(list(marks), dtype=torch.int64))[None],
    )


def test_rows_and_targets_of_a_causal_text() -> None:
    #         0   1  2  3  4  5
    found = asked(marked([10, 11, 12, 11, 12, 13], marks=[2]), causal=True)
    assert found["previous_token"] == ([2, 3, 4, 5], pytest.approx(1 / 3 + 1 / 4 + 1 / 5 + 1 / 6))
    assert found["second_previous"] == ([3, 4, 5], pytest.approx(1 / 4 + 1 / 5 + 1 / 6))
    assert "next_token" not in found
    assert found["current_token"][0] == [0, 1, 2, 3, 4, 5]
    assert found["first_token"][0] == [1, 2, 3, 4, 5]
    assert found["special_token"][0] == []
    assert found["punctuation"] == ([3, 4, 5], pytest.approx(1 / 4 + 1 / 5 + 1 / 6))
    assert found["duplicate_token"] == ([3, 4], pytest.approx(1 / 4 + 1 / 5))
    assert found["induction"] == ([3, 4], pytest.approx(1 / 4 + 1 / 5))
    assert "coreference" not in found
    assert found["broad"][0] == []


def test_rows_and_targets_of_an_encoder_text() -> None:
    #        CLS  1   2  SEP  4  SEP
    found = asked(marked([2, 11, 12, 3, 11, 3], special=[0, 3, 5]), causal=False)
    assert found["next_token"] == ([0, 1, 2, 3, 4], pytest.approx(5 / 6))
    assert found["previous_token"] == ([2, 3, 4, 5], pytest.approx(4 / 6))
    assert found["special_token"] == ([1, 2, 4], pytest.approx(3 * 2 / 6))  # two [SEP], no [CLS]
    assert found["first_token"] == ([1, 2, 3, 4, 5], pytest.approx(5 / 6))
    assert found["duplicate_token"] == ([1, 4], pytest.approx(2 / 6))  # not the two [SEP]
    assert found["local"][0] == [0, 3, 4, 5]  # 1 and 2 have the first token among theirs


def test_several_copies_are_summed() -> None:
    found = asked(marked([10, 11, 10, 12, 10]), causal=True)
    assert found["induction"] == ([2, 4], pytest.approx(1 / 3 + 2 / 5))
    assert found["duplicate_token"] == ([2, 4], pytest.approx(1 / 3 + 2 / 5))


def test_every_role_is_in_the_interface() -> None:
    assert set(ROLES) == {
        "previous_token", "next_token", "second_previous", "current_token", "local",
        "first_token", "special_token", "punctuation", "duplicate_token", "induction",
        "coreference", "broad", "sink",
    }  # fmt: skip


def test_a_learned_sink_is_asked_of_models_that_have_one() -> None:
    batch = marked([2, 11, 12, 3], special=[0])
    without, having = (questions(batch, shaped(True, sink)) for sink in (False, True))
    assert set(having) - set(without) == {"sink"}
    assert set(having) == set(ROLES) - {"next_token", "coreference"} | set(MEASURES)
    assert having["sink"].targets(Visibility(batch.valid, True))[0].tolist() == [
        False, True, True, True, False, False,
    ]  # fmt: skip


def test_padding_counts_nowhere(checkpoint: Callable[[str], Path]) -> None:
    """The same sums for a text alone and beside longer ones."""
    model = attnscope.load(str(checkpoint("bert")))
    texts = [model.reader.read(text) for text in ("the cat .", PLAIN, "a song , the dog sang")]
    together = batch_of(texts, pad_id=9)
    names = ["previous", "uniform", "identity", "special"]
    whole = _sums(together, names)
    for row, text in enumerate(texts):
        alone = _sums(batch_of([text]), names)
        np.testing.assert_array_equal(alone.rows[0], whole.rows[row])
        for name, array in alone.arrays().items():
            np.testing.assert_allclose(array[0], whole.arrays()[name][row], atol=1e-6)
    assert score(whole, "previous_token").raw[0, 0] == pytest.approx(1.0)


def _sums(batch: TokenBatch, names: list[str]) -> HeadSums:
    lens = Lens(questions(batch, shaped(False)))
    show(lens, 0, planted_weights(batch, False, names), Visibility(batch.valid, False), 7)
    return from_lens(lens, 1)
