"""A planted head that knows who "he" is gets found, by the public command; a random one not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnscope
from attnscope.api import CorefScores, Model
from attnscope.cli.app import run
from attnscope.errors import CheckpointError, UsageError
from attnscope.types import Head
from tests import planted_coref


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The checkpoint and its labelled sentences."""
    directory = planted_coref.write(tmp_path_factory.mktemp("planted"))
    return directory, planted_coref.sentences(directory)


@pytest.fixture(scope="module")
def model(planted: tuple[Path, Path]) -> Model:
    return attnscope.load(str(planted[0]))


def labelled(result: CorefScores) -> list[Head]:
    return [head for head in sorted(result.ranked) if result.labelled[head.layer, head.head]]


def test_the_planted_head_is_found_by_the_command(
    planted: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    directory, data = planted
    assert run(["coref", "--data", str(data), "--model", str(directory), "-F", "json", "-q"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["items"]) == ("attnscope.coref/1", 200)
    heads: dict[str, Any] = dict(zip(planted_coref.HEADS, document["heads"], strict=True))
    assert [name for name in heads if heads[name]["label"] == "coreference"] == ["antecedent"]
    found = heads["antecedent"]
    assert found["forced_choice"] == {
        "raw": 1.0, "chance": 0.5, "low": 1.0, "high": 1.0, "bound": 1.0, "n": 200,
    }  # fmt: skip
    assert found["strict"]["raw"] == 1.0
    assert found["nearest_wrong"]["raw"] == 1.0
    assert found["live_mass"] > 0.85
    assert max(found["mcnemar"].values()) < 1e-20
    assert heads["rival"]["forced_choice"]["raw"] == 0
    for name in ("names", "uniform"):
        assert heads[name]["forced_choice"]["raw"] == 0.5
    assert heads["uniform"]["strict"]["raw"] == pytest.approx(heads["uniform"]["strict"]["chance"])


def test_a_head_that_settles_later_is_found_where_it_does(
    planted: tuple[Path, Path], model: Model, tmp_path: Path
) -> None:
    assert labelled(model.coref(data=planted[1])) == [planted_coref.AT_ONCE]
    result = model.coref(data=planted[1], query="chosen")
    assert labelled(result) == [planted_coref.AT_ONCE, planted_coref.LATER]
    view = result.view[planted_coref.LATER.layer, planted_coref.LATER.head]
    assert result.views[view] == "1 later"
    others = planted_coref.sentences(tmp_path, seed=1)
    seen = set(planted[1].read_text(encoding="utf-8").splitlines())
    texts = {json.loads(line)["text"] for line in seen}
    kept = [
        line for line in others.read_text().splitlines() if json.loads(line)["text"] not in texts
    ]
    others.write_text("\n".join(kept), encoding="utf-8")
    other = model.coref(data=planted[1], select_on=others)
    assert labelled(other) == labelled(result)
    assert other.settings["chosen_on"] == "another file"


def test_groups_and_halves_are_of_the_items(planted: tuple[Path, Path], model: Model) -> None:
    result = model.coref(data=planted[1])
    for kind in ("nearest", "distance", "pronoun"):
        groups = [group for group in result.groups if group.kind == kind]
        assert sum(group.n for group in groups) == result.n_items
        for head in result.ranked:
            at = head.layer, head.head
            share = sum(group.n * group.share[at] for group in groups) / result.n_items
            assert share == pytest.approx(result.forced.raw[at])
    assert {one.chosen_on + one.n for one in result.held_out} == {200}
    assert {str(one.head) for one in result.held_out} == {str(planted_coref.AT_ONCE)}


def test_few_items_give_no_label(planted: tuple[Path, Path], model: Model, tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text("".join(planted[1].read_text().splitlines(keepends=True)[:49]))
    result = model.coref(data=few)
    assert result.forced.raw.max() == 1
    assert not labelled(result)
    assert "Fewer than 50 different texts" in result.notes[0]


def test_a_gap_between_twins_is_their_difference(model: Model, tmp_path: Path) -> None:
    """In the other file every answer is the other one: the head falls from 1 to 0."""
    lines = planted_coref.sentences(tmp_path).read_text().splitlines()
    marked = []
    for number, line in enumerate(lines, 1):
        entry = json.loads(line)
        for right in (entry["gold"], 1 - entry["gold"]):
            text = entry["text"]
            spans = sorted([entry["candidates"][right], entry["pronoun"]], reverse=True)
            for start, end in spans:
                text = f"{text[:start]}[{text[start:end]}]{text[end:]}"
            marked.append(f"{number} {text}")
    pro, anti = tmp_path / "pro_names.txt", tmp_path / "anti_names.txt"
    pro.write_text("\n".join(marked[::2]))
    anti.write_text("\n".join(marked[1::2]))
    beside, both = model.coref(data=pro), model.coref(data=[pro, anti])
    for result, n in ((beside, 1), (both, 2)):
        assert result.gap is not None
        at = planted_coref.AT_ONCE.layer, planted_coref.AT_ONCE.head
        assert (result.gap.first, result.gap.second) == ("pro", "anti")
        assert result.gap.gap[at] == result.gap.low[at] == 1
        assert result.gap.shares["anti"][at] == 0
        assert result.n_items == n * result.gap.n
    assert both.forced.raw[at] == 0.5


@pytest.mark.parametrize("name", ["gpt2", "llama-gqa", "bert", "mistral-window", "gpt_oss"])
def test_random_weights_have_none(
    name: str, planted: tuple[Path, Path], checkpoint: Callable[[str], Path]
) -> None:
    for query in ("pronoun", "chosen"):
        result = attnscope.load(str(checkpoint(name))).coref(data=planted[1], query=query)
        assert result.n_items == 200
        assert not labelled(result)


def test_texts_that_are_too_long_are_counted(model: Model, tmp_path: Path) -> None:
    start = "Adam saw Anna "
    middle, end = "today " * 20, "today " * 80
    entries = []
    for text in (f"{start}{middle}he ranm .", f"{start}{middle}he ranm {end}", f"{start}{end}he ."):
        at = text.index("he ")
        spans = {"pronoun": [at, at + 2], "candidates": [[0, 4], [9, 13]], "gold": 0}
        entries.append(json.dumps({"text": text, **spans}))
    path = tmp_path / "long.jsonl"
    path.write_text("\n".join(entries))
    result = model.coref(data=path)
    assert (result.n_items, result.cut) == (2, 1)
    assert result.skipped == {"cut off: the text is longer than the model": 1}


def test_what_cannot_be_done_is_said(
    planted: tuple[Path, Path], model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="not both"):
        model.coref("he", data=planted[1])  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="Did you mean 'chosen'"):
        model.coref(data=planted[1], query="chose")
    with pytest.raises(UsageError, match="needs --query chosen"):
        model.coref(data=planted[1], query="pronoun", select_on=planted[1])
    path = tmp_path / "none.jsonl"
    path.write_text(
        json.dumps({"text": "he", "pronoun": [0, 2], "candidates": [[0, 1]], "gold": 0})
    )
    with pytest.raises(UsageError, match="No item can be used: 1 times"):
        model.coref(data=path)
    read = model.reader.read
    without = attnscope.models.text.Tokens

    def blind(*texts: str, **options: Any) -> Any:
        found = read(*texts, **options)
        return without(found.tokens, found.punctuation)

    monkeypatch.setattr(model.reader, "read", blind)
    with pytest.raises(CheckpointError, match="which characters"):
        model.coref(data=planted[1])
    with pytest.raises(CheckpointError, match="which characters"):
        model.coref("Adam saw Anna and then he ranm .")


def test_a_text_is_asked_in_its_own_tokens(model: Model) -> None:
    result = model.coref("{Adam} saw {Anna} and then [he] ranm and she ranf . Emma saw .")
    [linked] = result.linked
    assert [one.text for one in linked.candidates] == ["Adam", "Anna"]
    assert (linked.pronoun.token, [one.token for one in linked.candidates]) == (5, [0, 2])
    whole = model.capture("Adam saw Anna and then he ranm and she ranf . Emma saw .")
    for n, token in enumerate((0, 2)):
        assert np.allclose(linked.weights[n, 0], whole[0][:, 5, token].numpy())
    assert linked.choice(planted_coref.AT_ONCE) == 0
    assert linked.choice(Head(0, 1)) == 1
    assert linked.choice(Head(0, 5)) is None  # uniform


def test_a_causal_model_sees_no_later_candidate(
    model: Model, checkpoint: Callable[[str], Path]
) -> None:
    text = "then {Adam} saw {Anna} and [he] saw {Bert} ."
    names = [one.text for one in model.coref(text).linked[0].candidates]
    assert names == ["Adam", "Anna"]
    both_ways = attnscope.load(str(checkpoint("bert"))).coref(text)
    assert [one.text for one in both_ways.linked[0].candidates] == ["Adam", "Anna", "Bert"]
    with pytest.raises(UsageError, match="could see"):
        model.coref("[he] saw {Bert} .")
    with pytest.raises(UsageError, match="No pronoun"):
        model.coref("Adam saw Anna .")


def jsonl(path: Path, sentences: list[tuple[str, int]]) -> Path:
    """Sentences like "X told Y that she won", and which of the two is right."""
    lines = []
    for text, gold in sentences:
        first, _, second, *_ = text.split()
        at = text.index(" she ") + 1
        spans = [[0, len(first)], [text.index(second), text.index(second) + len(second)]]
        lines.append(
            json.dumps({"text": text, "pronoun": [at, at + 3], "candidates": spans, "gold": gold})
        )
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_a_head_that_only_equals_a_rule_is_no_coreference_head(
    model: Model, tmp_path: Path
) -> None:
    """The right one is always the first: "first candidate" has all of them, and so has the head."""
    pairs = [(man, woman) for man in planted_coref.MEN for woman in planted_coref.WOMEN]
    ways = [f"{woman} saw {man} {more}and then she ranf" for man, woman in pairs
            for more in ("", "today ")]  # fmt: skip
    result = model.coref(data=jsonl(tmp_path / "first.jsonl", [(text, 0) for text in ways]))
    head = planted_coref.AT_ONCE
    assert result.baselines["first candidate"]["raw"] == 1.0
    assert result.forced.raw[head.layer, head.head] == 1.0
    assert not labelled(result)


def test_one_text_many_times_is_one_text(model: Model, tmp_path: Path) -> None:
    text = ("Adam saw Berta and then she ranf", 1)
    result = model.coref(data=jsonl(tmp_path / "same.jsonl", [text] * 60))
    assert result.n_items == 60
    assert not labelled(result)
    notes = " ".join(result.notes)
    assert "Fewer than 50 different texts" in notes
    assert "60 items are of 1 different text" in notes
    assert min(p.min() for p in result.against.values()) == 1.0


def test_p_does_not_fall_when_items_are_given_twice(
    planted: tuple[Path, Path], model: Model, tmp_path: Path
) -> None:
    once = planted[1].read_text(encoding="utf-8")
    twice = tmp_path / "twice.jsonl"
    twice.write_text(once + once, encoding="utf-8")
    one, other = model.coref(data=planted[1]), model.coref(data=twice)
    for name, p in one.against.items():
        assert np.allclose(p, other.against[name])


def test_places_are_not_chosen_on_what_is_scored(planted: tuple[Path, Path], model: Model) -> None:
    with pytest.raises(UsageError, match="of the texts that are scored"):
        model.coref(data=planted[1], select_on=planted[1])


def test_one_candidate_gives_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["coref", "{The queen} washed because [she] commanded .", "-m", "demo-bert"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Nothing else was found that it could stand for" in out
    assert "looks most at" not in out
    assert "at its last token" in out
