"""Every format is read as its authors meant it; what cannot be used is counted, with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnscope.errors import UsageError
from attnscope.scoring.labelled import read_labelled
from attnscope.scoring.questions import (
    LATER,
    NO_RIVAL,
    NOT_FOUND,
    NOT_ONE_RIGHT,
    OVERLAP,
    WRONG_OFFSETS,
    Question,
)
from attnscope.scoring.schemas import twin_path

GAP = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL"


def gap_row(text: str, pronoun: str, names: tuple[str, str], right: str) -> str:
    """One line of GAP; `right` says which of A and B are."""
    cells = ["test-1", text, pronoun, str(text.rindex(pronoun))]
    for name, letter in zip(names, "AB", strict=True):
        cells += [name, str(text.index(name)), str(letter in right).upper()]
    return "\t".join([*cells, "http://example.org"])


def written(directory: Path, name: str, *lines: str) -> Path:
    path = directory / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def asked(question: Question) -> tuple[str, list[str], str]:
    """The pronoun, the candidates and the right one, as words."""
    names = [question.text[slice(*span)] for span in question.link.candidates]
    return question.pronoun, names, names[question.link.gold]


def test_gap(tmp_path: Path) -> None:
    quoted = 'Ann Lee said "no to Bea; then she left."'
    path = written(
        tmp_path, "gap.tsv", GAP,
        gap_row(quoted, "she", ("Ann Lee", "Bea"), "A"),
        gap_row("Ann met Bea; she left.", "she", ("Ann", "Bea"), "B"),
        gap_row("Ann met Bea; she left.", "she", ("Ann", "Bea"), ""),
        gap_row("Ann met Bea; she left.", "she", ("Ann", "Bea"), "AB"),
        gap_row("As she left, Ann met Bea.", "she", ("Ann", "Bea"), "A"),
        gap_row("Ann met Bea; she left.", "she", ("Ann", "Bea"), "A").replace("\t0\t", "\t1\t"),
    )  # fmt: skip
    found = read_labelled([path])
    assert found.format == "gap"
    assert [asked(question) for question in found.questions] == [
        ("she", ["Ann Lee", "Bea"], "Ann Lee"),
        ("she", ["Ann", "Bea"], "Bea"),
    ]
    assert found.skipped == {NOT_ONE_RIGHT: 2, LATER: 1, WRONG_OFFSETS: 1}
    assert found.questions[0].text == quoted
    assert found.questions[0].distance == 5


WINOBIAS = (
    "1 [The baker] greeted the pilot because [she] was polite.",
    "2 The baker greeted [the pilot] because [his] plane was there.",
    "3 [The construction worker] hired the worker because [he] had [his] reasons.",
    "4 The construction worker hired the [worker] and paid [him] .",
    "5 [The baker] saw the pilot, and the pilot saw the baker, and so [she] left.",
)


def test_winobias_finds_the_rival(tmp_path: Path) -> None:
    found = read_labelled([written(tmp_path, "sentences.txt", *WINOBIAS)])
    assert found.format == "winobias"
    assert [asked(question) for question in found.questions] == [
        ("she", ["The baker", "the pilot"], "The baker"),
        ("his", ["The baker", "the pilot"], "the pilot"),
        ("he", ["The construction worker", "the worker"], "The construction worker"),
        ("him", ["The construction worker", "worker"], "worker"),
        ("she", ["The baker", "the pilot"], "The baker"),
    ]
    assert not found.skipped
    assert "[" not in "".join(question.text for question in found.questions)


def test_winobias_alone_and_without_a_rival(tmp_path: Path) -> None:
    lines = (
        "1 [The tailor] thanked the old sailor because [she] cared.",
        "2 [Ann] said [she] did.",
    )
    found = read_labelled([written(tmp_path, "one.txt", *lines)])
    assert asked(found.questions[0]) == ("she", ["The tailor", "the old sailor"], "The tailor")
    assert found.skipped == {NO_RIVAL: 1}


def test_winobias_twins(tmp_path: Path) -> None:
    swapped = [line.replace("[she]", "[he]") for line in WINOBIAS]
    pro = written(tmp_path, "pro_type1.txt", *WINOBIAS)
    anti = written(tmp_path, "anti_type1.txt", *swapped)
    assert (twin_path(pro), twin_path(anti)) == (anti, pro)
    assert twin_path(written(tmp_path, "protest.txt", *WINOBIAS)) is None
    both = read_labelled([pro, anti]).questions
    assert [question.variant for question in both] == ["pro"] * 5 + ["anti"] * 5
    assert [one.unit for one in both[:5]] == [one.unit for one in both[5:]]
    assert len({one.unit for one in both}) == 5


def test_winogender_sentences_and_templates(tmp_path: Path) -> None:
    template = "The $OCCUPATION told the $PARTICIPANT that $NOM_PRONOUN could go."
    rows = ["sentid\tsentence"]
    for gender, word in (("male", "he"), ("female", "she"), ("neutral", "they")):
        rows.append(f"pilot.guest.1.{gender}.txt\tThe pilot told the guest that {word} could go.")
    plain = read_labelled([written(tmp_path, "all.tsv", *rows)])
    heading = "occupation(0)\tother-participant(1)\tanswer\tsentence"
    made = read_labelled([written(tmp_path, "t.tsv", heading, f"pilot\tguest\t1\t{template}")])
    assert plain.format == made.format == "winogender"
    assert [asked(question) for question in plain.questions] == [
        (word, ["The pilot", "the guest"], "the guest") for word in ("he", "she", "they")
    ]
    assert made.questions[:3] == plain.questions
    assert made.questions[3].text == "The pilot told someone that he could go."
    assert {question.variant for question in made.questions} == {"male", "female", "neutral"}
    assert len({question.unit for question in made.questions}) == 2


def test_winogender_without_its_words(tmp_path: Path) -> None:
    path = written(tmp_path, "x.tsv", "sentid\tsentence", "pilot.guest.0.male.txt\tNobody said he.")
    assert read_labelled([path]).skipped == {NOT_FOUND: 1}


def test_jsonl(tmp_path: Path) -> None:
    entry = {"text": "Ann met Bea; she left.", "pronoun": [13, 16], "candidates": [[0, 3], [8, 11]]}
    lines = [
        {**entry, "gold": 1, "id": "a", "pair": "p", "variant": "v"},
        {**entry, "gold": 0, "candidates": [[0, 3]]},
        {**entry, "gold": 0, "candidates": [[0, 3], [1, 3]]},
        {**entry, "gold": 0, "candidates": [[0, 3], [8, 99]]},
        {**entry, "gold": 0, "candidates": [[0, 3], [17, 21]]},
    ]
    found = read_labelled([written(tmp_path, "x.jsonl", *map(json.dumps, lines))])
    assert found.format == "jsonl"
    [question] = found.questions
    assert asked(question) == ("she", ["Ann", "Bea"], "Bea")
    assert (question.id, question.unit, question.variant) == ("a", "p", "v")
    assert found.skipped == {NO_RIVAL: 1, OVERLAP: 1, WRONG_OFFSETS: 1, LATER: 1}


BAD = {
    "not JSON": "{",
    "it takes": '{"text": "a"}',
    "gold is 2": '{"text": "a b c", "pronoun": [4, 5], "candidates": [[0, 1], [2, 3]], "gold": 2}',
    "it takes ": '{"text": "a b", "pronoun": [true, 1], "candidates": [[0, 1]], "gold": 0}',
    "4 fields": f"{GAP}\na\tb\tc\td",
    "no number": f"{GAP}\n" + gap_row("A met B, she", "she", ("A", "B"), "A").replace("\t9", "\tx"),
    "marks a mention and a pronoun": "1 [A] met [she].\n2 nothing is marked",
    "Winogender has lines": "sentid\tsentence\nx\ty\tz",
    "none of gap, winobias": "just words",
}


@pytest.mark.parametrize("message", BAD)
def test_damaged_files_are_refused_by_line(message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message.strip()) as error:
        read_labelled([written(tmp_path, "bad.tsv", BAD[message])])
    assert "bad.tsv" in str(error.value)


def test_formats_are_not_mixed(tmp_path: Path) -> None:
    one = written(tmp_path, "one.txt", *WINOBIAS)
    other = written(tmp_path, "two.tsv", GAP, gap_row("A met B, she", "she", ("A", "B"), "A"))
    with pytest.raises(UsageError, match="different formats"):
        read_labelled([one, other])
    with pytest.raises(UsageError, match="Did you mean 'winobias'"):
        read_labelled([one], "winobia")


def test_gap_by_its_header(tmp_path: Path) -> None:
    """Columns may stand in another order; one that is missing is named."""
    row = gap_row("Ann met Bea; she left.", "she", ("Ann", "Bea"), "B")
    order = [3, 0, 2, 1, *range(4, 11)]

    def turned(line: str) -> str:
        cells = line.split("\t")
        return "\t".join(cells[n] for n in order)

    path = written(tmp_path, "gap.tsv", turned(GAP), turned(row))
    assert [asked(q) for q in read_labelled([path]).questions] == [("she", ["Ann", "Bea"], "Bea")]
    short = written(tmp_path, "short.tsv", GAP.replace("\tA-coref", ""), row)
    with pytest.raises(UsageError, match="line 1: GAP also has A-coref"):
        read_labelled([short])


def test_files_that_hold_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is empty: a labelled set has an item a line"):
        read_labelled([written(tmp_path, "empty.tsv", "")])
    with pytest.raises(UsageError, match="is a directory: name a file in it"):
        read_labelled([tmp_path])
