"""`heads` with rules and roles of the user's own, and the words that explain a label."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import attnscope
from attnscope.cli.app import run
from attnscope.config_files import config_path

pytestmark = pytest.mark.usefixtures("shared_cache")
Checkpoint = Callable[[str], Path]
Captured = pytest.CaptureFixture[str]
TEXT = "the cat sang a song , the dog sang ."
RULE = """\
- label: {label}
  role: {role}
  minimum: {minimum}
  evidence: [text]
  source: a wish
"""


@pytest.fixture
def labels(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
        return str(tmp_path / "mine.yaml")

    return write


def document(capsys: Captured, *arguments: str) -> dict[str, Any]:
    assert run(["heads", *arguments, "-F", "json", "-q"]) == 0, capsys.readouterr().err
    return dict(json.loads(capsys.readouterr().out, parse_constant=pytest.fail))


def refused(capsys: Captured, *arguments: str, code: int = 2) -> str:
    """What is said, on one or two lines, before anything is printed."""
    assert run(["heads", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert 1 <= len(err.splitlines()) <= 2
    assert "Unexpected" not in err
    assert "Traceback" not in err
    return err


def given_labels(found: dict[str, Any]) -> list[list[str]]:
    return [entry["labels"] for entry in found["heads"]]


# --labels


def test_our_own_file_changes_nothing(checkpoint: Checkpoint, capsys: Captured) -> None:
    arguments = [TEXT, "-m", str(checkpoint("gpt2")), "--no-battery"]
    mine = document(capsys, *arguments, "--labels", str(config_path("labels.yaml")))
    assert mine == document(capsys, *arguments)


def test_rules_of_the_user_decide_and_are_recorded(
    checkpoint: Checkpoint, labels: Callable[[str], str], capsys: Captured
) -> None:
    """A minimum of 0: whatever is no worse than an even head."""
    path = labels(RULE.format(label="current-token", role="current_token", minimum=0))
    found = document(capsys, TEXT, "-m", str(checkpoint("gpt2")), "--no-battery", "--labels", path)
    lifts = [entry["scores"]["current_token"]["lift"] for entry in found["heads"]]
    assert min(lifts) < 0 < max(lifts)
    assert given_labels(found) == [["current-token"] if lift >= 0 else [] for lift in lifts]
    [rule] = found["settings"]["thresholds"]
    assert (rule["label"], rule["role"]) == ("current-token", "current_token")
    assert (rule["minimum"], rule["evidence"]) == (0, ["text"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (RULE.replace("minimum", "minimun"), "Did you mean 'minimum'"),
        (RULE.format(label="previus-token", role="local", minimum=0.5),
         "Did you mean 'previous-token'"),
        (RULE.format(label="local", role="locale", minimum=0.5), "Did you mean 'local'"),
        (RULE.format(label="local", role="local", minimum="much"), "much"),
        ("- {", "Cannot read"),
        ("\x01", "Cannot read"),
        ("just words", "not a list"),
        ("", "not a list"),
    ],
)  # fmt: skip
def test_a_bad_labels_file(
    text: str, told: str, labels: Callable[[str], str], capsys: Captured
) -> None:
    """Before any checkpoint is opened: there is none of this name."""
    path = labels(text)
    err = refused(capsys, TEXT, "-m", "no-such-model", "--labels", path)
    assert told in err
    assert "mine.yaml" in err


def test_a_labels_file_that_is_not_there(tmp_path: Path, capsys: Captured) -> None:
    err = refused(capsys, TEXT, "-m", "no-such-model", "--labels", str(tmp_path / "none.yaml"))
    assert "There is no file" in err
    assert "directory" in refused(capsys, TEXT, "-m", "no-such-model", "--labels", str(tmp_path))


@pytest.mark.parametrize(("name", "role"), [("gpt2", "next_token"), ("gpt2", "sink")])
@pytest.mark.parametrize("form", ["json", "table", "csv"])
def test_rules_that_cannot_be_tried_give_no_label(
    name: str, role: str, form: str, checkpoint: Checkpoint, labels: Callable[[str], str],
    capsys: Captured,
) -> None:  # fmt: skip
    path = labels(RULE.format(label="next-token", role=role, minimum=0.1))
    arguments = [TEXT, "-m", str(checkpoint(name)), "--no-battery", "--labels", path]
    assert run(["heads", *arguments, "-F", form]) == 0
    out = capsys.readouterr().out
    if form == "json":
        assert given_labels(json.loads(out)) == [[]] * 12


# --role


def test_roles_stand_in_every_form(checkpoint: Checkpoint, capsys: Captured) -> None:
    arguments = [TEXT, "-m", str(checkpoint("gpt2")), "--role", "back=offset:-1",
                 "--role", "cats=tokens:cat,dog"]  # fmt: skip
    found = document(capsys, *arguments)
    assert found["settings"]["roles"] == {"back": "offset:-1", "cats": "tokens:cat,dog"}
    for entry in found["heads"]:
        for where in ("scores", "battery"):
            assert entry[where]["back"] == entry[where]["previous_token"]
        assert entry["scores"]["cats"]["n"] > 0
        assert entry["scores"]["cats"]["chance"] > 0
    assert run(["heads", *arguments, "-F", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    for row in rows:
        assert float(row["back_raw"]) == float(row["previous_token_raw"])
        assert float(row["battery_back_bound"]) == float(row["battery_previous_token_bound"])
        assert row["cats_n"]
    assert run(["heads", *arguments, "-q"]) == 0
    out = capsys.readouterr().out
    assert "Your roles" in out
    mine = out[out.index("Your roles") :].splitlines()
    assert any(line.split()[:1] == ["back"] for line in mine)
    assert any(line.split()[:1] == ["cats"] for line in mine)


def test_a_rule_for_an_own_role_gives_its_label(
    checkpoint: Checkpoint, labels: Callable[[str], str], tmp_path: Path, capsys: Captured
) -> None:
    path = labels(
        RULE.format(label="back", role="back", minimum=0)
        + RULE.format(label="local", role="local", minimum=0)
        + "  unless: [back]\n"
    )
    arguments = [TEXT, "-m", str(checkpoint("gpt2")), "--labels", path, "--no-battery"]
    found = document(capsys, *arguments, "--role", "back=offset:-1")
    lifts = [entry["scores"]["previous_token"]["lift"] for entry in found["heads"]]
    for entry, lift in zip(found["heads"], lifts, strict=True):
        assert ("back" in entry["labels"]) == (lift >= 0)
        assert not {"back", "local"} <= set(entry["labels"])
    assert min(lifts) < 0 < max(lifts)
    head = "{layer}.{head}".format(**found["heads"][lifts.index(max(lifts))])
    for more in (["-F", "table"], ["-F", "table", "--all"], ["-F", "csv"], ["-F", "markdown"],
                 ["--explain", head], ["--heatmap", str(tmp_path / "map.svg")]):  # fmt: skip
        assert run(["heads", *arguments, "--role", "back=offset:-1", "-q", *more]) == 0, more
        out = capsys.readouterr().out
        assert "back" in out.replace("back=offset", "").replace("Your roles", "")
    assert "unknown label 'back'" in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("roles", "told"),
    [
        (["local=offset:-1"], "is a role already"),
        (["a=offset:-1", "a=offset:-2"], "Two roles are called a"),
        (["a=offsets:-1"], "Did you mean 'offset'"),
        (["a=pairs:nowhere.csv"], "There is no file nowhere.csv"),
        (["a"], "Cannot read the role"),
    ],
)
def test_bad_roles(roles: list[str], told: str, checkpoint: Checkpoint, capsys: Captured) -> None:
    options = [part for role in roles for part in ("--role", role)]
    assert told in refused(capsys, TEXT, "-m", str(checkpoint("gpt2")), *options)


def test_pairs_go_with_one_text(checkpoint: Checkpoint, tmp_path: Path, capsys: Captured) -> None:
    pairs, texts = tmp_path / "pairs.csv", tmp_path / "texts.txt"
    pairs.write_text("query,key\n3,1\n")
    texts.write_text("the cat sang\nthe dog sang\n")
    directory = str(checkpoint("gpt2"))
    role = ["--role", f"it=pairs:{pairs}", "-m", directory]
    for battery in ("--battery", "--no-battery"):
        assert "one text" in refused(capsys, "-f", str(texts), *role, battery)
    found = document(capsys, TEXT, *role, "--no-battery")
    weights = attnscope.load(directory).capture(TEXT)
    for entry in found["heads"]:
        expected = float(weights[entry["layer"]][entry["head"], 3, 1])
        assert entry["scores"]["it"]["raw"] == pytest.approx(expected, abs=1e-6)
        assert entry["scores"]["it"]["chance"] == pytest.approx(1 / 4)


# --explain


@pytest.fixture
def explained(checkpoint: Checkpoint, capsys: Captured) -> Callable[..., str]:
    def explain(heads: str, *more: str) -> str:
        assert run(["heads", TEXT, "-m", str(checkpoint("gpt2")), "--explain", heads, *more]) == 0
        return capsys.readouterr().out

    return explain


def test_one_head_is_explained(explained: Callable[..., str], capsys: Captured) -> None:
    words = " ".join(explained("1.2").split())
    assert "1.2" in words
    assert "parked on the first and special tokens" in words
    assert "Half of what is not parked lies within" in words
    assert "broad holds. On English passages: score " in words


def test_what_was_nearly_earned_is_told(explained: Callable[..., str]) -> None:
    """Some head lacks little of some label: which, by what, and how much was asked."""
    every = ",".join(f"{layer}.{head}" for layer in range(3) for head in range(4))
    words = " ".join(explained(every).split())
    assert "Nearest label missed" in words
    assert "(asked: " in words


def test_several_heads_and_both_ways_to_write_them(explained: Callable[..., str]) -> None:
    out = explained("0.1,L2H3")
    titles = [line.split()[0] for line in out.splitlines() if line[:3] in ("0.1", "2.3")]
    assert titles == ["0.1", "2.3"]
    assert "1.2" not in [line[:3] for line in out.splitlines()]


def test_explanations_in_the_document(explained: Callable[..., str]) -> None:
    found = json.loads(explained("0.1,2.3", "-F", "json", "-q"))
    assert list(found["explanations"]) == ["0.1", "2.3"]
    assert len(found["heads"]) == 12
    for sentences in found["explanations"].values():
        assert all(isinstance(sentence, str) and sentence for sentence in sentences)
        assert not any("nan" in sentence.lower() for sentence in sentences)


def test_python_explains_the_same(checkpoint: Checkpoint, explained: Callable[..., str]) -> None:
    found = json.loads(explained("0.1", "-F", "json", "-q"))
    result = attnscope.load(str(checkpoint("gpt2"))).heads(TEXT)
    assert list(result.explain("0.1")) == found["explanations"]["0.1"]


@pytest.mark.parametrize("heads", ["9.9", "0.4", "3.0", "head", "0", "0.1,9.9"])
def test_heads_that_cannot_be_explained(
    heads: str, checkpoint: Checkpoint, capsys: Captured
) -> None:
    err = refused(capsys, TEXT, "-m", str(checkpoint("gpt2")), "--explain", heads)
    assert "head" in err


def test_a_label_is_explained_by_its_numbers(
    checkpoint: Checkpoint, labels: Callable[[str], str], capsys: Captured
) -> None:
    path = labels(RULE.format(label="broad", role="broad", minimum=0))
    found = document(capsys, TEXT, "-m", str(checkpoint("gpt2")), "--no-battery", "--labels", path,
                     "--explain", "0.0")  # fmt: skip
    [first, *_] = found["explanations"]["0.0"]
    assert first.startswith("broad holds")
    raw = found["heads"][0]["scores"]["broad"]["raw"]
    assert f"{raw:.2f}".lstrip("0") in first
    assert "1 text" in first
