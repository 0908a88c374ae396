"""Labels from planted heads: a real model whose attention is replaced by patterns known exactly.

Everything but the weights is real: tokens, roles, battery, estimate, labels.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import attnscope
from attnscope.api import Model
from attnscope.attention.cores import Block
from attnscope.attention.lens import Lens
from attnscope.attention.visibility import Visibility
from attnscope.experiments.heads import HeadsResult
from attnscope.models.text import batch_of
from attnscope.scoring.estimate import score
from attnscope.scoring.roles import ROLES
from attnscope.scoring.scan import questions
from attnscope.scoring.sums import HeadSums, from_lens
from attnscope.types import Head, TokenBatch

PLAIN = "The chef dropped the glass bowl on a tile floor, because it was slippery."
REPEATS = "the cat sang the cat sang the cat sang"

# Which keys row `query` of a text looks at, alike; nothing: the first token.
Targets = Callable[[TokenBatch, int, int, Tensor], Tensor]  # (texts, text, query, visible) to keys


def _uniform(batch: TokenBatch, text: int, query: int, visible: Tensor) -> Tensor:
    return visible


def _at(offset: int) -> Targets:
    def keys(batch: TokenBatch, text: int, query: int, visible: Tensor) -> Tensor:
        return torch.arange(len(visible)) == query + offset

    return keys


def _first(batch: TokenBatch, text: int, query: int, visible: Tensor) -> Tensor:
    return torch.arange(len(visible)) == 0


def _copies(batch: TokenBatch, text: int, query: int, visible: Tensor) -> Tensor:
    same = batch.ids[text] == batch.ids[text, query]
    return same & ~batch.special[text] & (torch.arange(len(visible)) < query)


def _after_copies(batch: TokenBatch, text: int, query: int, visible: Tensor) -> Tensor:
    return _copies(batch, text, query, visible).roll(1)


def _special(batch: TokenBatch, text: int, query: int, visible: Tensor) -> Tensor:
    return batch.special[text] & (torch.arange(len(visible)) > 0)


def _punctuation(batch: TokenBatch, text: int, query: int, visible: Tensor) -> Tensor:
    return batch.punctuation[text]


PATTERNS: dict[str, Targets] = {
    "uniform": _uniform,
    "previous": _at(-1),
    "next": _at(1),
    "second_previous": _at(-2),
    "identity": _at(0),
    "first": _first,
    "induction": _after_copies,
    "duplicate": _copies,
    "special": _special,
    "punctuation": _punctuation,
}


def planted_weights(batch: TokenBatch, causal: bool, names: list[str]) -> Tensor:
    """(B, H, T, T); a row whose targets are not there rests on the first token."""
    texts, length = batch.ids.shape
    weights = torch.zeros(texts, len(names), length, length)
    for text in range(texts):
        for query in range(length):
            visible = batch.valid[text].clone()
            if causal:
                visible &= torch.arange(length) <= query
            for head, name in enumerate(names):
                keys = PATTERNS[name](batch, text, query, visible) & visible
                if not keys.any():
                    keys = torch.arange(length) == 0
                weights[text, head, query] = keys / keys.sum()
    return weights


def show(lens: Lens, layer: int, weights: Tensor, seen: Visibility, rows: int = 7) -> None:
    """Weights through a lens, a few rows at a time."""
    lens.begin_layer()
    for start in range(0, weights.shape[2], rows):
        stop = min(start + rows, weights.shape[2])
        low, high = seen.key_range(start, stop)
        part = weights[:, :, start:stop, low:high].contiguous()
        lens.see(Block(layer, start, low, part, part.clamp(min=1e-38).log()), seen)
    lens.end_layer(layer, seen, {})


class Planted:
    """A model with planted heads, four to a layer, and who is where."""

    def __init__(self, directory: Path, names: list[str], add_bos: bool | None = None) -> None:
        self.model: Model = attnscope.load(str(directory), add_bos=add_bos)
        self.names = (names + ["uniform"] * 12)[:12]
        known: dict[tuple[int, ...], Tensor] = {}  # the battery is the same every time

        def run(batch: TokenBatch, lens: Lens | None = None) -> Tensor:
            assert lens is not None
            causal = self.model.shape.causal
            key = tuple(batch.ids.flatten().tolist())
            if key not in known:
                known[key] = planted_weights(batch, causal, self.names)
            for layer, weights in enumerate(known[key].split(4, dim=1)):
                show(lens, layer, weights, Visibility(batch.valid, causal))
            return torch.empty(0)

        self.model.run = run  # type: ignore[method-assign]

    def place(self, name: str) -> Head:
        at = self.names.index(name)
        return Head(at // 4, at % 4)

    def labels(self, result: HeadsResult) -> dict[str, set[str]]:
        return {name: set(result.labels_of(self.place(name)).labels) for name in self.names}


CAUSAL = ["uniform", "previous", "second_previous", "identity", "first", "induction",
          "duplicate", "punctuation"]  # fmt: skip
ENCODER = [*CAUSAL, "next", "special"]


@pytest.fixture(scope="module", params=[True, False], ids=["bos", "no-bos"])
def causal(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> Planted:
    return Planted(checkpoint("llama-mqa"), CAUSAL, add_bos=request.param)


@pytest.fixture(scope="module")
def encoder(checkpoint: Callable[[str], Path]) -> Planted:
    return Planted(checkpoint("bert"), ENCODER)


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
    found = encoder.labels(result)
    assert found["uniform"] == {"broad"}
    assert found["previous"] == {"previous-token"}
    assert found["next"] == {"next-token"}
    assert found["identity"] == {"current-token"}
    assert found["first"] == found["special"] == {"resting"}
    assert result.labels_of(encoder.place("first")).rests_on == ("first-token",)
    assert result.labels_of(encoder.place("special")).rests_on == ("special-token",)
    assert not any("induction" in labels for labels in found.values())
    assert "duplicate-token" in found["duplicate"]


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
                lift = scores[role].lift[head.layer, head.head]
                assert np.isnan(lift) or abs(lift) <= 1e-6, role
        assert set(result.labels_of(head).labels) <= {"broad"}


@pytest.mark.parametrize("text", ["the", "the cat", "the cat sang"])
@pytest.mark.parametrize("battery", [True, False])
def test_short_texts_give_the_known_label_or_none(
    text: str, battery: bool, causal: Planted
) -> None:
    result = causal.model.heads(text, battery=battery)
    found = causal.labels(result)
    assert found["uniform"] == set()  # fewer than eight keys: not even broad
    assert found["identity"] <= {"current-token"}
    assert found["first"] <= {"resting"}
    assert found["punctuation"] <= {"resting"}  # there is none: it looks at the first token
    assert found["induction"] <= {"induction", "resting"}
    tokens = len(result.texts[0])
    # With two tokens "the previous" is "the first": it may not be said to be both.
    assert found["previous"] <= ({"previous-token"} if tokens > 2 else {"resting"})
    for name, labels in found.items():
        assert not {"previous-token", "resting"} <= labels, name
    for layer in result.to_json()["heads"]:
        assert None not in layer["labels"]


def test_one_token_is_all_there_is(causal: Planted) -> None:
    result = causal.model.heads("the", battery=False)
    if len(result.texts[0]) == 1:
        assert all(labels == set() for labels in causal.labels(result).values())
        document = result.to_json()
        assert all(
            entry is None or entry["lift"] is None
            for head in document["heads"]
            for entry in head["scores"].values()
        )


# Roles one by one, on texts marked by hand


def asked(batch: TokenBatch, causal: bool) -> dict[str, tuple[list[int], float]]:
    """For each question: the rows it is asked of in text 0, and the summed chance."""
    lens = Lens(questions(batch, causal))
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
        "coreference", "broad",
    }  # fmt: skip


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
        np.testing.assert_allclose(alone.raw[0], whole.raw[row], atol=1e-6)
        np.testing.assert_allclose(alone.chance[0], whole.chance[row], atol=1e-6)
    assert score(whole, "previous_token").raw[0, 0] == pytest.approx(1.0)


def _sums(batch: TokenBatch, names: list[str]) -> HeadSums:
    lens = Lens(questions(batch, False))
    show(lens, 0, planted_weights(batch, False, names), Visibility(batch.valid, False))
    return from_lens(lens, 1)
