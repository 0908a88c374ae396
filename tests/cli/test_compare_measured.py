"""`attnscope compare mha-vs-gqa` on a loaded model, from the command line's edge."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path

import pytest

import attnscope
from attnscope.cli.app import run
from attnscope.experiments import decoding, held_out
from tests import tiny

COMPARE = ["compare", "mha-vs-gqa"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "SEQUENCES", 3)
    monkeypatch.setattr(held_out, "CONTROLS", 2)
    monkeypatch.setattr(decoding, "WARM_UP", 0)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny.CONFIGS["llama-mha"]()
    return tiny.save(config, tmp_path_factory.mktemp("mha"), causal_lm=True)


QUICK = ["--passages", "2", "-q"]


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize(
    "arguments",
    [
        ["--convert", "all", *QUICK],
        ["--convert", "2", "--methods", "mean", "--all", *QUICK],
        ["--similarity", *QUICK],
        ["--measure", "--context", "64"],
        ["--measure", "--context", "64,4k", "--batch", "9"],
        ["--convert", "4", "--similarity", "--measure", "--context", "32", *QUICK],
    ],
    ids=" ".join,
)
def test_tables_fit_and_lose_nothing_in_silence(
    arguments: list[str],
    columns: int,
    llama: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = Path("llama-mha")
    monkeypatch.chdir(llama.parent)
    if not directory.exists():
        directory.symlink_to(llama)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run([*COMPARE, "-m", str(directory), *arguments]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    assert ("no room for" in out) <= (columns < 200)


def test_the_damage_table(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["-m", str(llama), "--convert", "all", *QUICK]
    assert run([*COMPARE, *arguments]) == 0
    out = capsys.readouterr().out
    rows = [re.split(r"  +", line.strip()) for line in out.splitlines()]
    methods = [row[1] for row in rows if len(row) > 5 and row[0] in ("4 *", "2", "1")]
    assert methods == ["as it is", *["mean", "first", "best-aligned"] * 2]
    assert "2 English passages" in out
    assert "2 other texts" in out
    assert run([*COMPARE, *arguments, "-F", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["method"] for one in document["conversion"]] == methods
    assert document["conversion"][0]["loss_delta"] == 0.0
    assert run([*COMPARE, *arguments, "-F", "csv"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(table) == 7 * 12
    assert run([*COMPARE, *arguments, "-F", "markdown"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + 7 * 12


def test_the_library_says_the_same(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--convert", "2,1", "--methods", "mean,best-aligned", "--grouping", "alike"]
    more = ["--similarity", "--passages", "2", "--seed", "3", "--dtype", "int8", "-q", "-F", "json"]
    assert run([*COMPARE, "-m", str(llama), *options, *more]) == 0
    shown = json.loads(capsys.readouterr().out)
    result = attnscope.load(str(llama), logits=True).compare(
        convert="2,1",
        methods="mean,best-aligned",
        grouping="alike",
        similarity=True,
        passages=2,
        seed=3,
        dtype="int8",
    )
    assert json.loads(json.dumps(result.to_json())) == shown


def test_figure_and_checkpoint(
    llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure, place = tmp_path / "damage.svg", tmp_path / "mqa"
    arguments = ["--convert", "1", "--methods", "best-aligned", *QUICK]
    arguments += ["--plot", str(figure), "--save", str(place), "-F", "json"]
    assert run([*COMPARE, "-m", str(llama), *arguments]) == 0
    first = json.loads(capsys.readouterr().out)["conversion"][0]
    drawn = figure.read_text(encoding="utf-8")
    assert "best-aligned" in drawn
    assert "as it is" in drawn
    assert json.loads((place / "config.json").read_text())["num_key_value_heads"] == 1
    again = ["-m", str(place), "--convert", "1", *QUICK, "-F", "json"]
    assert run([*COMPARE, *again]) == 0
    (only,) = json.loads(capsys.readouterr().out)["conversion"]
    assert only["method"] == "as it is"
    assert only["loss"] == pytest.approx(first["loss"], abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--convert", "3"], 2, "4 query heads cannot share 3 key/value heads evenly."),
        (["--convert", "0"], 2, "share 0"),
        (["--convert=-1"], 2, "share -1"),
        (["--convert", "2,"], 2, "Cannot read '2,' as key/value heads"),
        (["--convert", "2", "--methods", "mode"], 2, "Unknown method 'mode'"),
        (["--convert", "2", "--context", "0"], 2, "at least 1"),
        (["--measure", "--context", "1e12"], 1, "is free. Ask for"),
        (["--save", "x"], 2, "say which with --convert"),
        (["--convert", "2,1", "--save", "x"], 2, "--save writes one model"),
        (["--convert", "1", "--methods", "mean", "--save", "no/x"], 1, "there is no"),
        (["--convert", "1", "--similarity", "-F", "csv"], 2, "holds one table"),
        (["gpt2", "--convert", "1"], 2, "name it with --model"),
        (["--convert", "1", "--plot", "a.jpg"], 2, "must end in .png"),
    ],
)
def test_what_goes_wrong_is_told_in_two_lines(
    arguments: list[str],
    code: int,
    told: str,
    llama: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = [] if "gpt2" in arguments else ["-m", str(llama)]
    assert run([*COMPARE, *chosen, *arguments, "-q"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert len(err.splitlines()) <= 2
    assert not list(tmp_path.iterdir())


def test_the_model_that_comes_with_it_is_taken_and_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([*COMPARE, "--convert", "4", "--passages", "1"]) == 0
    out, err = capsys.readouterr()
    assert "demo-gpt2" in out
    assert "demo-gpt2 is a small model" in err


def test_a_name_with_markup_is_shown_as_it_is(
    llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "[red]x[/]"
    shutil.copytree(llama, directory)
    arguments = ["--convert", "2", "--methods", "mean", "--similarity", *QUICK]
    figure = tmp_path / "a.svg"
    assert run([*COMPARE, "-m", str(directory), *arguments, "--plot", str(figure)]) == 0
    assert "[red]x[/]" in capsys.readouterr().out.replace("\n", "")
    assert "[red]x" in figure.read_text(encoding="utf-8")


def test_a_damaged_checkpoint_is_told(
    llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import load_file, save_file

    directory = tmp_path / "damaged"
    shutil.copytree(llama, directory)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.embed_tokens.weight"][100:] = float("nan")
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    assert run([*COMPARE, "-m", str(directory), "--convert", "1", *QUICK]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "not finite" in err or "refused" in err
