"""The cloze of ablate: a planted pair of heads that names whom "he" means, and what is asked."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import attnscope
from attnscope.api import Model
from attnscope.cli.app import run
from attnscope.errors import UsageError
from attnscope.experiments import cloze
from attnscope.experiments.ablation import ablate
from attnscope.experiments.ablation_result import Control
from attnscope.experiments.choose import asks_for_names
from attnscope.scoring.labelled import read_labelled
from tests import planted_coref, planted_namer


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The checkpoint and its labelled sentences."""
    directory = planted_namer.write(tmp_path_factory.mktemp("namer"))
    return directory, planted_coref.sentences(directory)


@pytest.fixture(scope="module")
def model(planted: tuple[Path, Path]) -> Model:
    return attnscope.load(str(planted[0]), logits=True)


@pytest.mark.parametrize("head", ["0.0", "1.0"])
@pytest.mark.parametrize("method", ["zero", "mean", "resample"])
def test_without_either_planted_head_the_name_is_anyones_and_random_heads_cost_nothing(
    model: Model, planted: tuple[Path, Path], head: str, method: str
) -> None:
    found = model.ablate(heads=head, data=planted[1], method=method, items=120)
    effects = {effect.on: effect for effect in found.effects}
    assert effects["right name"].clean == pytest.approx(0, abs=1e-4)
    chosen = effects["right name likelier"]
    assert (chosen.unit, chosen.clean) == ("share", 1.0)
    assert 0.3 < chosen.ablated < 0.7
    main = found.main
    assert main.on == "right - wrong"
    assert main.clean < -15
    assert abs(main.ablated) < 1
    assert main.low > 14
    assert main.control is not None
    assert main.control.mean == pytest.approx(0, abs=1e-3)


def test_the_names_cost_what_transformers_says(model: Model, planted: tuple[Path, Path]) -> None:
    theirs: Any = AutoModelForCausalLM.from_pretrained(planted[0]).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(planted[0])
    right, wrong = [], []
    for line in planted[1].read_text().splitlines():
        entry = json.loads(line)
        names = [entry["text"][start:end] for start, end in entry["candidates"]]
        text = f"{entry['text'][: entry['pronoun'][1]]} ("
        with torch.no_grad():
            logits = theirs(**tokenizer(text, return_tensors="pt")).logits[0, -1]
        loss = -logits.log_softmax(-1)
        ids = tokenizer.convert_tokens_to_ids(names)
        right.append(float(loss[ids[entry["gold"]]]))
        wrong.append(float(loss[ids[1 - entry["gold"]]]))
    found = model.ablate(heads="0.1", data=planted[1], controls=0, items=1000)
    effects = {effect.on: effect.clean for effect in found.effects}
    assert found.n_texts == len(right) == 200
    assert effects["right name"] == pytest.approx(sum(right) / 200, abs=1e-4)
    assert effects["wrong name"] == pytest.approx(sum(wrong) / 200, abs=1e-4)


def lines(path: Path, *entries: tuple[str, str, str, str, int]) -> Path:
    """Labelled lines: text, pronoun, two candidates, which is right."""
    made = []
    for text, pronoun, one, other, gold in entries:
        spans = [[text.index(name), text.index(name) + len(name)] for name in (one, other)]
        at = text.rindex(pronoun)
        made.append({
            "text": text, "pronoun": [at, at + len(pronoun)], "candidates": spans, "gold": gold,
        })  # fmt: skip
    path.write_text("\n".join(map(json.dumps, made)), encoding="utf-8")
    return path


def test_what_cannot_be_asked_is_counted(model: Model, tmp_path: Path) -> None:
    path = lines(
        tmp_path / "d.jsonl",
        ("Adam saw Berta and then he ranm .", "he", "Adam", "Berta", 0),
        ("Adam saw the dog and then he ranm .", "he", "Adam", "the dog", 0),
        ("Adam saw Adam Bert and then he ranm .", "he", "Adam", "Adam Bert", 1),
        ("Adam saw Zoe and then he ranm .", "he", "Adam", "Zoe", 0),
        (" ".join(["Adam saw Berta"] * 30) + " and then he", "he", "Adam", "Berta", 0),
    )
    made = cloze.cloze_samples(model, read_labelled([path]))
    assert made.total == 1
    assert made.cloze is not None
    assert made.cloze["skipped"] == {
        "one name has an article, the other none": 1,
        "one name begins as the other does": 1,
        "the tokenizer does not know a name or the bracket": 1,
        "longer than the model": 1,
    }
    beginning = lines(
        tmp_path / "e.jsonl", ("Adam Bert saw Adam . he", "he", "Adam Bert", "Adam .", 0)
    )
    with pytest.raises(UsageError, match="No pronoun can be asked for"):
        cloze.cloze_samples(model, read_labelled([lines(
            tmp_path / "f.jsonl", ("Adam saw Zoe and then he", "he", "Adam", "Zoe", 0),
        )]))  # fmt: skip
    [sample] = cloze.cloze_samples(model, read_labelled([beginning])).each
    assert model.reader.piece(int(sample.batch.ids[0, -1])) == "Bert"


def test_articles_of_any_kind_become_one(tmp_path: Path) -> None:
    text = "The chef saw a cook and her dog"
    for name, wanted in (("The chef", "the chef"), ("a cook", "the cook"), ("her dog", "the dog"),
                         ("chef", "chef")):  # fmt: skip
        at = text.index(name)
        assert cloze._name(text, (at, at + len(name))) == wanted


def test_twins_are_resampled_together_and_the_seed_draws(
    model: Model, planted: tuple[Path, Path]
) -> None:
    asked = read_labelled([planted[1]])
    one, again, other = (cloze.cloze_samples(model, asked, 20, seed) for seed in (0, 0, 1))
    ids = [[sample.batch.ids.tolist() for sample in made.each] for made in (one, again, other)]
    assert ids[0] == ids[1] != ids[2]
    twins = [replace(q, unit="one") for q in asked.questions[:30]]
    found = ablate(model, [planted_namer.LINKS], asked=replace(asked, questions=tuple(twins)))
    assert found.n_texts == 30
    assert math.isnan(found.main.low)  # one unit is one text
    assert any("One text is weak evidence" in note for note in found.notes)


def test_the_command_asks_the_battery_for_the_label_and_data_where_given(
    planted: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    directory, data = planted
    common = ["ablate", "--head", "0.0", "--model", str(directory), "-q"]
    assert run([*common, "--data", str(data), "--items", "30", "-F", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["cloze"] == {"source": "jsonl", "items": 30, "of": 200, "skipped": {}}
    assert [effect["on"] for effect in document["effects"]] == [
        "text before", "right name", "wrong name", "right name likelier", "right - wrong",
    ]  # fmt: skip
    assert document["effects"][-1]["kl"] is None
    assert document["effects"][-1]["clean_high"] < 0
    assert run([*common, "--data", str(data), "--items", "30"]) == 0
    out = capsys.readouterr().out
    assert "30 of 200 pronouns (jsonl)" in out
    assert "Right name likelier: 1.00 of the pronouns; without" in out
    assert run([*common, "--data", str(data), "some text"]) == 2
    assert "Give one of a text" in capsys.readouterr().err
    assert run([*common, "--data-format", "gap"]) == 2
    assert "goes with --data" in capsys.readouterr().err


def test_a_model_that_does_not_know_is_said_to(planted: tuple[Path, Path], tmp_path: Path) -> None:
    model = attnscope.load(str(planted[0]), logits=True)
    wrong = []
    for line in planted[1].read_text().splitlines()[:60]:
        entry = json.loads(line)
        wrong.append(json.dumps({**entry, "gold": 1 - entry["gold"]}))
    path = tmp_path / "wrong.jsonl"
    path.write_text("\n".join(wrong))
    found = model.ablate(heads="0.0", data=path, controls=2, items=60)
    assert any("does not clearly prefer the right name" in note for note in found.notes)


def test_the_label_alone_asks_the_passages_that_suit_the_model(model: Model) -> None:
    assert asks_for_names(None, "coreference", None)
    assert not asks_for_names(None, "induction", None)
    assert not asks_for_names("0.0", "coreference", None)
    english = cloze.bundled_cloze(model)
    assert english.format == "English passages"
    assert len(english.questions) == 486
    assert len({question.unit for question in english.questions}) == 58
    with pytest.raises(UsageError, match="does not know a name"):
        cloze.cloze_samples(model, english)
    assert cloze.bundled_cloze(attnscope.load("demo-gpt2")).format != english.format


def test_what_cannot_be_told_is_not_said_to_be_nothing(
    model: Model, planted: tuple[Path, Path]
) -> None:
    found = model.ablate(heads="0.0", data=planted[1], controls=2, items=12)
    control, main = Control(0.0, -0.1, 0.1, 20), found.main

    def told(low: float, high: float) -> str:
        effect = replace(main, low=low, high=high, control=control)
        return " ".join(replace(found, effects=(effect,)).notes)

    assert "these matter for it" in told(0.2, 0.4)
    assert "does not lose more than without random heads" in told(-0.2, 0.05)
    assert "cannot be told from 12 pronouns" in told(-0.9, 2.0)
    few = replace(found, n_texts=3)
    assert any("3 texts are few" in note for note in few.notes)
