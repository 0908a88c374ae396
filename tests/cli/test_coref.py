"""`attnscope coref`: what it prints, writes and refuses, on texts and on labelled sets."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from attnscope.cli.app import run
from tests import planted_coref

TEXT = "The cat saw the dog and then she sang."
GAP = (
    "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL\n"
    "t-1\tthe cat saw the dog and she sang\tshe\t24\tcat\t4\tTRUE\tdog\t16\tFALSE\tu\n"
    "t-2\tthe cat saw the dog and she sang\tshe\t24\tcat\t4\tFALSE\tdog\t16\tTRUE\tu\n"
    "t-3\tthe cat saw the dog and she sang\tshe\t24\tcat\t4\tFALSE\tdog\t16\tFALSE\tu\n"
)
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "gap.tsv"
    path.write_text(GAP)
    return path


@pytest.fixture
def printed(checkpoint: Callable[[str], Path], capsys: Capture) -> Callable[..., str]:
    """What the command prints, for a tiny checkpoint."""

    def get(*arguments: str, model: str = "llama-gqa", code: int = 0) -> str:
        capsys.readouterr()
        assert run(["coref", *arguments, "--model", str(checkpoint(model))]) == code
        out, err = capsys.readouterr()
        return err if code else out

    return get


def document(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    return found


@pytest.mark.parametrize("model", ["llama-gqa", "bert", "gpt2", "mistral-window", "gpt_oss"])
def test_a_text_as_json(model: str, printed: Callable[..., str]) -> None:
    found = document(printed(TEXT, "-F", "json", model=model))
    assert (found["schema"], found["items"], found["skipped"]) == ("attnscope.coref/1", 1, {})
    [pronoun] = found["pronouns"]
    assert (pronoun["text"], pronoun["start"], pronoun["end"]) == ("she", 29, 32)
    assert [one["text"] for one in pronoun["candidates"]] == ["The cat", "the dog"]
    shape = found["model"]
    heads = shape["n_layers"] * shape["n_heads"]
    assert len(found["heads"]) == len(pronoun["heads"]) == heads
    for head in pronoun["heads"]:
        assert sum(head["weights"]) == pytest.approx(head["live_mass"], abs=1e-6)
        assert 0 <= head["live_mass"] <= 1 + 1e-6
    assert {head["label"] for head in found["heads"]} == {"unclassified"}
    assert pronoun["vote"] is None


@pytest.mark.parametrize("width", [80, 40])
@pytest.mark.parametrize("arguments", [(TEXT,), (TEXT, "--all"), ("--data", "DATA")])
def test_tables_fit(
    width: int,
    arguments: tuple[str, ...],
    data: Path,
    printed: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = printed(*(str(data) if a == "DATA" else a for a in arguments))
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "\x1b" not in text


def test_a_known_head_votes_and_its_pattern_is_shown(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The battery's passages, told in the planted language."""
    from attnscope.scoring import battery
    from attnscope.scoring.passages import Battery, Link, Passage, locate

    directory = planted_coref.write(tmp_path)
    lines = planted_coref.sentences(tmp_path).read_text().splitlines()

    def passages(model: Any) -> Battery:
        texts, items = [], []
        for number, entry in enumerate(map(json.loads, lines)):
            spans = tuple((start, end) for start, end in entry["candidates"])
            start, end = entry["pronoun"]
            passage = Passage("", "", entry["text"], (Link((start, end), spans, entry["gold"]),))
            tokens = model.reader.read(passage.text)
            texts.append(tokens)
            item = locate(number, passage.text, passage.links[0], tokens)
            assert item is not None
            items.append(item)
        return Battery(tuple(texts), tuple(items), 0, "sentences")

    monkeypatch.setattr(battery, "read_battery", passages)
    text = "Adam saw Anna and then she ranf today ."
    assert run(["coref", text, "--model", str(directory)]) == 0
    out = capsys.readouterr().out
    later = f"{planted_coref.LATER}"
    assert f"Coreference heads  {planted_coref.AT_ONCE}  {later}" in out
    assert "Vote of the 2 coreference heads: Anna 2" in out
    assert "ranf (+1)" in out
    assert f"head {planted_coref.AT_ONCE}, coreference" in out
    assert run(["coref", text, "--model", str(directory), "-F", "json"]) == 0
    found = document(capsys.readouterr().out)
    assert found["pronouns"][0]["vote"]["heads"] == [0, 2]
    labels = [head["label"] for head in found["heads"]]
    assert labels.count("coreference") == 2
    assert [head["query"] for head in found["heads"]][planted_coref.LATER.head] == "1 later"


def test_a_set_as_json_and_csv(data: Path, printed: Callable[..., str]) -> None:
    found = document(printed("--data", str(data), "-F", "json"))
    assert (found["items"], found["truncated"]) == (2, 0)
    assert found["skipped"] == {"not exactly one candidate is right": 1}
    assert found["settings"]["format"] == "gap"
    assert set(found["baselines"]) == {
        "nearest candidate", "first candidate", "more often named", "previous token",
    }  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(printed("--data", str(data), "-F", "csv"))))
    assert len(rows) == len(found["heads"])
    for row, head in zip(rows, found["heads"], strict=True):
        assert float(row["forced_choice_raw"]) == pytest.approx(head["forced_choice"]["raw"])
        assert row["label"] == head["label"]


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
@pytest.mark.parametrize("arguments", [(TEXT,), ("--data", "DATA")])
def test_figures(
    arguments: tuple[str, ...], ending: str, data: Path, tmp_path: Path, printed: Callable[..., str]
) -> None:
    path = tmp_path / f"figure.{ending}"
    printed(*(str(data) if a == "DATA" else a for a in arguments), "--heatmap", str(path))
    assert path.stat().st_size > 2000


def test_output_goes_to_a_file(data: Path, tmp_path: Path, printed: Callable[..., str]) -> None:
    path = tmp_path / "x.json"
    assert printed("--data", str(data), "-F", "json", "-o", str(path)) == ""
    assert document(path.read_text())["items"] == 2


def test_hostile_text_is_shown_and_does_nothing(printed: Callable[..., str]) -> None:
    text = printed(
        "[7] {\x1bcat} \x1b[31m :fire: <b> [/] saw {dog\\} and [\u202eshe] sang", "--all"
    )
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\\u{202e}she" in text
    assert "dog\\" in text


REFUSED: dict[tuple[str, ...], str] = {
    (): "Give one text",
    ("",): "empty",
    ("the cat sang",): "No pronoun was found",
    ("she",): "Nothing is there for 'she' to stand for",
    (TEXT, "--pair", "x"): "leave out --pair",
    (TEXT, "--mentions", "x"): "choose from patterns, spacy",
    (TEXT, "--query", "chosen"): "go with --data",
    (TEXT, "--data", "DATA"): "not both",
    ("--data", "no-such-file"): "no file no-such-file",
    ("--data", "DATA", "--data-format", "gab"): "Did you mean 'gap'",
    ("--data", "DATA", "--query", "last"): "choose from pronoun, chosen",
    ("--data", "DATA", "--query", "pronoun", "--select-on", "DATA"): "needs --query chosen",
    ("--data", "DATA", "--data-format", "jsonl"): "not JSON",
    (TEXT, "--heatmap", "x.bmp"): "must end in",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_refusals(arguments: tuple[str, ...], data: Path, printed: Callable[..., str]) -> None:
    said = printed(*(str(data) if a == "DATA" else a for a in arguments), code=2)
    assert REFUSED[arguments] in said
    assert len(said.splitlines()) <= 3


def test_python_says_the_same(data: Path, checkpoint: Callable[[str], Path], printed: Any) -> None:
    import attnscope

    model = attnscope.load(str(checkpoint("llama-gqa")))
    assert (
        model.coref(TEXT).to_json()["pronouns"] == document(printed(TEXT, "-F", "json"))["pronouns"]
    )
    printed_set = document(printed("--data", str(data), "--query", "chosen", "-F", "json"))
    assert model.coref(data=data, query="chosen").to_json()["heads"] == printed_set["heads"]
    assert len(model.coref(data=str(data)).to_frame()) == 12
