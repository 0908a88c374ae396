"""Faults that a fresh pair of eyes found in `heads`, each kept from coming back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnscope.cli.app import run
from attnscope.config_files import cache_directory

Capture = pytest.CaptureFixture[str]
TEXT = "The cat sat on the mat."


def document(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert run(["heads", *arguments, "-F", "json", "-q"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def told(capsys: Capture, *arguments: str) -> str:
    assert run(["heads", *arguments]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("what", ["offset:-5", "tokens:the"])
def test_a_role_renamed_keeps_its_battery(what: str, capsys: Capture) -> None:
    first = document(capsys, TEXT, "--role", f"aa={what}")["heads"]
    second = document(capsys, TEXT, "--role", f"bb={what}")["heads"]
    assert [h["battery"]["aa"] for h in first] == [h["battery"]["bb"] for h in second]
    assert all(h["battery"]["bb"]["low"] is not None for h in second)


def test_a_role_that_one_text_answers_has_no_interval(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("the cat sat the cat sat the cat sat\nTom saw a dog.\nAnna ran to a park.\n")
    found = document(capsys, "--file", str(path), "--no-battery")
    for head in found["heads"]:
        assert head["scores"]["induction"]["low"] is None
        assert head["scores"]["induction"]["bound"] is None
        assert head["scores"]["previous_token"]["low"] is not None
    assert any("3 texts" in note and "too narrow" in note for note in found["notes"])


def test_pairs_need_the_one_text_they_are_of(tmp_path: Path, capsys: Capture) -> None:
    pairs, corpus = tmp_path / "pairs.csv", tmp_path / "corpus.txt"
    pairs.write_text("query,key\n3,1\n")
    corpus.write_text("the cat sat\n")
    role = f"mine=pairs:{pairs}"
    assert "give one text" in told(capsys, "--corpus", str(corpus), "--role", role)
    pairs.write_text("key,query\n1,3\n")
    assert "query,key in this order" in told(capsys, TEXT, "--role", role)
    assert "is a directory" in told(capsys, TEXT, "--role", f"mine=pairs:{tmp_path}")


@pytest.mark.parametrize("form", ["csv", "markdown"])
def test_an_explanation_is_not_lost(form: str, capsys: Capture) -> None:
    assert "--explain" in told(capsys, TEXT, "--explain", "0.0", "-F", form)


@pytest.mark.parametrize("minimum", ["2", "-1", ".nan"])
def test_a_minimum_that_no_lift_can_have(minimum: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "labels.yaml"
    path.write_text(
        f"- {{label: broad, role: broad, minimum: {minimum}, evidence: [text], source: mine}}\n"
    )
    assert "minimum" in told(capsys, TEXT, "--labels", str(path))


def test_a_kept_battery_of_no_numbers_is_not_believed(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNSCOPE_CACHE", str(tmp_path))
    before = document(capsys, TEXT)
    kept = sorted((cache_directory() / "battery").glob("*.npz"))
    assert len(kept) == 2
    for path in kept:
        with np.load(path) as stored:
            arrays = {name: stored[name] for name in stored.files}
        spoilt = {
            name: np.full_like(array, np.nan) if array.dtype.kind == "f" else array
            for name, array in arrays.items()
        }
        np.savez(path, **spoilt)
    assert document(capsys, TEXT) == before


@pytest.mark.parametrize("text", [TEXT, "The chef dropped the glass bowl because it was slippery."])
def test_what_heads_do_in_this_text_fits_on_80(
    text: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["heads", text, "--all", "-q"]) == 0
    out = capsys.readouterr().out
    assert "in this text" in out
    assert "no room" not in out


def test_markdown_is_for_people_and_thresholds_are_whole(capsys: Capture) -> None:
    assert run(["heads", TEXT, "-F", "markdown", "-q"]) == 0
    heading = capsys.readouterr().out.splitlines()[0]
    assert re.findall(r"\w+", heading) == [
        "head", "labels", "rests_on", "raw", "chance", "lift", "low", "high", "bound", "rests",
    ]  # fmt: skip
    rules = document(capsys, TEXT)["settings"]["thresholds"]
    assert {"contrast", "baselines", "causal", "unless", "rests_on", "source"} <= set(rules[0])


def test_a_comparison_shows_the_role_that_was_asked_for(capsys: Capture) -> None:
    pair = ["-m", "demo-gpt2", "--against", "demo-gpt2", "--role", "back=offset:-3"]
    assert run(["heads", TEXT, *pair, "-q"]) == 0
    out = capsys.readouterr().out
    assert "Your roles" in out
    assert len(re.findall(r"back +\S+ → \S+ +\.00", out)) == 5


def test_the_field_of_no_corpus_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["heads", "A cat.", "--text-field", "body", "--quiet"]) == 2
    assert "--text-field goes with --corpus" in capsys.readouterr().err
