"""`attnscope circuits`: documents, tables that fit, figures, and plain refusals."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len

from attnscope.cli.app import run
from tests import tiny

Checkpoint = Callable[[str], Path]
Output = pytest.CaptureFixture[str]


def _document(arguments: list[str], capsys: Output) -> dict:
    assert run(["circuits", *arguments, "-F", "json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def test_the_document(checkpoint: Checkpoint, capsys: Output) -> None:
    found = _document(
        ["-m", str(checkpoint("llama-gqa")), "--top-k", "5", "--offset", "-1"], capsys
    )
    assert found["schema"] == "attnscope.circuits/1"
    assert found["settings"]["offset"] == -1
    assert found["settings"]["top_k"] == 5
    assert found["settings"]["folded"] == {
        "before_attention": 3, "after_attention": 0, "in_the_stream": 1, "centred": False,
        "query_and_key": False, "biases": False,
    }  # fmt: skip
    assert found["pairs"] == 48
    assert len(found["composition"]) == 5
    for pair in found["composition"]:
        assert set(pair) == {"kind", "source", "target", "score", "baseline", "z", "z_among"}
        assert 0 < pair["score"] < 1
        assert pair["baseline"] == pytest.approx(32**-0.5)
    assert {"layer", "head", "kv_head", "qk_norm", "ov_norm", "copying_eigenvalues"} <= set(
        found["heads"][0]
    )
    assert found["heads"][3]["kv_head"] == 1


def test_the_head_is_used_where_there_is_one(tmp_path: Path, capsys: Output) -> None:
    tiny.save(tiny.CONFIGS["gpt2"](), tmp_path / "with", causal_lm=True)
    found = _document(["-m", str(tmp_path / "with")], capsys)
    assert all(-1 <= head["copying_eigenvalues"] <= 1 for head in found["heads"])
    config = tiny.CONFIGS["llama-gqa"]()
    config.tie_word_embeddings = False
    tiny.save(config, tmp_path / "without")
    found = _document(["-m", str(tmp_path / "without")], capsys)
    assert all(head["copying_eigenvalues"] is None for head in found["heads"])
    assert any("no unembedding" in note for note in found["notes"])


def test_from_to_and_kind(checkpoint: Checkpoint, capsys: Output) -> None:
    arguments = ["-m", str(checkpoint("gpt2")), "--from", "L0H1", "--to", "2:3,1.1", "--kind", "k"]
    found = _document([*arguments, "--kind", "V"], capsys)
    pairs = {(p["kind"], p["source"], p["target"]) for p in found["composition"]}
    assert pairs == {(kind, "0.1", to) for kind in "KV" for to in ("1.1", "2.3")}
    assert found["settings"]["from"] == ["0.1"]
    assert found["settings"]["to"] == ["1.1", "2.3"]


@pytest.mark.parametrize("arguments", [[], ["--norms"]], ids=["pairs", "norms"])
@pytest.mark.parametrize("columns", [80, 40])
@pytest.mark.parametrize("name", ["gpt2", "llama-gqa", "bert", "qwen3"])
def test_tables_fit(
    name: str,
    columns: int,
    arguments: list[str],
    checkpoint: Checkpoint,
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run(["circuits", "-m", str(checkpoint(name)), "-q", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    long = [line for line in lines if cell_len(line) > columns and "/" not in line]
    assert not long  # but for the path of the checkpoint
    assert any("K" in line for line in lines)


def test_other_formats(checkpoint: Checkpoint, capsys: Output) -> None:
    directory = str(checkpoint("gpt2"))
    assert run(["circuits", "-m", directory, "-F", "csv", "--top-k", "4"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 4
    assert float(rows[0]["z"]) >= float(rows[3]["z"])
    assert run(["circuits", "-m", directory, "-F", "csv", "--norms"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 12
    assert float(rows[0]["qk_norm"]) > 0
    assert run(["circuits", "-m", directory, "-F", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("| kind | source |")


def test_the_story_of_the_demo(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["circuits", "-m", "demo-gpt2", "--heads-from-battery", "-q"]) == 0
    out = capsys.readouterr().out
    assert "What the induction heads read" in out
    assert "  1.0   K 0.0 previous-token z" in out
    assert "  0.0   K 1.0 induction z" in out


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
def test_figures(ending: str, checkpoint: Checkpoint, tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / f"wiring{ending}"
    assert run(["circuits", "-m", str(checkpoint("gpt2")), "--heatmap", str(path), "-q"]) == 0
    assert path.stat().st_size > 2000
    again = tmp_path / f"again{ending}"
    assert run(["circuits", "-m", str(checkpoint("gpt2")), "--heatmap", str(again), "-q"]) == 0
    assert path.read_bytes() == again.read_bytes()


def test_hostile_names(checkpoint: Checkpoint, tmp_path: Path, capsys: Output) -> None:
    directory = tmp_path / "[red]\x1b[31m$x$ <b>"
    directory.symlink_to(checkpoint("gpt2"))
    figure = tmp_path / "figure.svg"
    assert run(["circuits", "-m", str(directory), "-q", "--heatmap", str(figure)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[red]\\x1b[31m$x$" in out
    assert "\x1b" not in figure.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--from", "9.9"], 2, "Unknown head '9.9'"),
        (["--from", "x"], 2, "Cannot read 'x' as a head"),
        (["--from", ""], 2, "Cannot read '' as a head"),
        (["--to", "0.1"], 2, "No pair is left"),
        (["--kind", "X"], 2, "--kind"),
        (["--top-k", "0"], 2, "--top-k"),
        (["--offset", "2"], 2, "a later token"),
        (["--offset", "-400"], 2, "128 positions"),
        (["--heatmap", "x.gif"], 2, ".png"),
        (["-o", "nowhere/x"], 1, "no directory"),
        (["a text"], 2, "argument"),
    ],
)
def test_used_wrongly(
    arguments: list[str], code: int, words: str, checkpoint: Checkpoint, capsys: Output
) -> None:
    assert run(["circuits", "-m", str(checkpoint("gpt2")), *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert 1 <= len(err.splitlines()) <= 2
    assert "Unexpected" not in err


def test_what_cannot_be_followed_is_refused(checkpoint: Checkpoint, capsys: Output) -> None:
    assert run(["circuits", "-m", str(checkpoint("opt-norm-after"))]) == 3
    assert "circuits cannot be read off" in capsys.readouterr().err
    assert run(["circuits", "-m", "nothing-of-this-name"]) == 3
    assert len(capsys.readouterr().err.splitlines()) <= 2


def test_too_large_is_told_before_it_starts(
    checkpoint: Checkpoint, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnscope.experiments.room.free_memory", lambda: 1000)
    assert run(["circuits", "-m", str(checkpoint("gpt2"))]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "Comparing 12 heads with each other would take" in err
