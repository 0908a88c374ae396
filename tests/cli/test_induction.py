"""`attnscope induction` and `ablate` at the command line's edge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from attnscope.cli.app import run
from tests import tiny
from tests.planted_copying import planted_copier

SHORT = ["--length", "12", "--sequences", "3", "--quiet"]


@pytest.fixture(scope="module")
def copier(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(planted_copier(tmp_path_factory.mktemp("copier")))


@pytest.fixture(scope="module")
def shifted(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(planted_copier(tmp_path_factory.mktemp("shifted"), shifted=True))


@pytest.fixture(scope="module")
def bytewise(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("lm")
    return str(tiny.save(tiny.CONFIGS["llama-gqa"](), directory, causal_lm=True))


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run([*arguments, "--format", "json"]) == 0
    out = capsys.readouterr().out
    return dict(json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} in JSON")))


def test_the_answer_comes_first(
    copier: str, shifted: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["induction", "-m", copier, *SHORT]) == 0
    out = capsys.readouterr().out
    assert "1 induction head, fed by previous-token head 0.0; loss 7.6 → 0.0" in out
    assert run(["induction", "-m", shifted, *SHORT, "--ablate"]) == 0
    out = capsys.readouterr().out
    assert "1 shifted-induction head, fed by the look back of head 0.1;" in out
    assert "below, 0.0 looks 5 back" in " ".join(out.split())
    assert "shifted-induction +5" in out
    assert "second half  0.00     7.60   +7.60" in out


@pytest.mark.parametrize("columns", [80, 40])
@pytest.mark.parametrize(
    "arguments",
    [
        ["induction", "--length", "12,6", "--conventions", "--story", "--sequences", "3"],
        ["induction", "babada babade babadi babada"],
        ["ablate", "--layer", "1", "--length", "12", "--sequences", "3"],
        ["ablate", "babada babade babadi babada", "--head", "1.0"],
    ],
)
def test_every_line_fits(
    arguments: list[str], columns: int, copier: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", str(columns))
    named = [arguments[0], *arguments[1:], "-m", copier, "--quiet"]
    assert run(named) == 0
    lines = capsys.readouterr().out.splitlines()
    told = next(n for n, line in enumerate(lines) if line.startswith("proof"))  # below the path
    assert max(cell_len(line) for line in lines[told:]) <= columns


def test_formats_and_figures(
    copier: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = {name: tmp_path / f"{name}.svg" for name in ("heatmap", "loss-plot", "stripe-plot")}
    drawn = [part for name, path in pictures.items() for part in (f"--{name}", str(path))]
    table = tmp_path / "t.csv"
    assert run(
        ["induction", "-m", copier, *SHORT, *drawn, "--format", "csv", "-o", str(table)]
    ) == 0  # fmt: skip
    assert len(table.read_text().splitlines()) == 13
    assert all("<svg" in path.read_text() for path in pictures.values())
    assert "head 1.0" in pictures["stripe-plot"].read_text()
    assert run(["ablate", "-m", copier, "--head", "1.0", *SHORT, "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("| heads | method | mode | on |")


def test_python_and_the_command_say_the_same(
    copier: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import attnscope

    model = attnscope.load(copier, logits=True)
    told = document(capsys, "induction", "-m", copier, *SHORT, "--seed", "3")
    assert told == json.loads(json.dumps(model.induction(length=12, sequences=3, seed=3).to_json()))
    told = document(capsys, "ablate", "-m", copier, *SHORT, "--head", "0.0", "--method", "zero")
    ours = model.ablate(heads="0.0", method="zero", length=12, sequences=3).to_json()
    assert told == json.loads(json.dumps(ours))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["induction", "--length", "1"], 2, "2 at least"),
        (["induction", "--length", "ten"], 2, "as lengths"),
        (["induction", "--length", "9999999"], 2, "as lengths"),
        (["induction", "--repeats", "1"], 2, "--repeats"),
        (["induction", ""], 2, "empty"),
        (["induction", "a a", "--ablate"], 2, "--ablate goes with random tokens"),
        (["induction", "a a", "--heatmap", "x.png"], 2, "--heatmap goes with random tokens"),
        (["induction", "--heatmap", "x.jpg"], 2, "must end in"),
        (["induction", "--stripe-plot", "x.png", "--head", "99.9"], 2, "Unknown head"),
        (["ablate"], 2, "which heads to switch off"),
        (["ablate", "--head", "99.9"], 2, "Unknown head"),
        (["ablate", "--layer", "7"], 2, "Unknown layer"),
        (["ablate", "--label", "nduction"], 2, "Did you mean 'induction'"),
        (["ablate", "--head", "0.0", "--method", "half"], 2, "--method"),
        (["ablate", "--head", "0.0", "text", "--corpus", "c.txt"], 2, "Give one of a text"),
        (["ablate", "--head", "0.0", "--corpus", "none.txt"], 2, "no file none.txt"),
        (["ablate", "--head", "0.0", "a"], 2, "no next token"),
    ],
)
def test_what_is_wrong_is_said_in_a_line_or_two(
    arguments: list[str], code: int, message: str, bytewise: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert run([*arguments, "-m", bytewise, "--quiet"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.splitlines()) <= 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [["induction"], ["ablate", "--head", "0.0"]])
def test_encoders_are_refused_and_shown_what_they_have(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "-m", "demo-bert", "--quiet"]) == 3
    err = capsys.readouterr().err
    assert "demo-bert reads both ways" in err
    assert "`attnscope heads TEXT --model demo-bert` shows its duplicate-token heads" in err


def test_a_checkpoint_without_a_language_model_head_is_refused(
    checkpoint: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["induction", "-m", str(checkpoint("llama-gqa")), "--quiet"]) == 3
    assert "lm_head.weight" in capsys.readouterr().err


def test_hostile_tokens_are_shown_and_nothing_acts(
    bytewise: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    text = "[red] \x1b[31m [/] [red] \x1b[31m [/] :fire: \u202e :fire: \\"
    assert run(["induction", text, "-m", bytewise, "--all", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert run(["ablate", text, "--head", "0.0", "-m", bytewise, "--quiet"]) == 0


def test_a_whole_run_leaves_standard_output_clean(
    copier: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["induction", "-m", copier, "--length", "12", "-F", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["stimulus"]["length"] == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["induction", "babada babada", "--length", "10"], "--length goes with random tokens"),
        (["induction", "babada babada", "--repeats", "3"], "--repeats goes with random tokens"),
        (["induction", "babada babada", "--head", "1.0"], "--head goes with random tokens"),
        (["induction", "--head", "1.0"], "--head is the head of --stripe-plot"),
        (["induction", "--length", "12", "--stripe-plot", "s.png", "--head", "1.0,0.0"],
         "A stripe is of one head"),
        (["ablate", "--head", "1.0", "babada babada", "--sequences", "4"],
         "--sequences goes with random tokens"),
        (["ablate", "--head", "1.0", "--text-field", "z"], "--text-field goes with --corpus"),
        (["ablate", "--head", "1.0", "--items", "5"], "--items goes with --data"),
        (["ablate", "--layer", "1-0"], "runs backwards: write 0-1"),
        (["induction", "--repeats", "100000", "--length", "9"], "--repeats 100000 leaves no room"),
    ],
)  # fmt: skip
def test_options_that_would_do_nothing_are_refused(
    arguments: list[str], message: str, copier: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert run([*arguments, "-m", copier, "--quiet"]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_no_head_below_chance_is_said_to_point(
    copier: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "babada babade babadi babada babade"
    assert run(["induction", text, "-m", copier, "--quiet", "-F", "json"]) == 0
    places = json.loads(capsys.readouterr().out)["places"]
    assert [place["chance"] for place in places] == pytest.approx([1 / 5, 1 / 6])
    for place in places:
        assert [(one["layer"], one["head"]) for one in place["heads"]] == [(1, 0)]
        assert place["heads"][0]["weight"] > 0.9


@pytest.mark.parametrize(
    "arguments",
    [
        ["induction", "--heatmap", "a.png", "--loss-plot", "a.png"],
        ["induction", "--heatmap", "a.png", "-o", "./a.png"],
        ["heads", "A cat.", "--heatmap", "a.png", "-o", "a.png"],
        ["show", "A cat.", "--head", "0.0", "--heatmap", "a.png", "-o", "a.png"],
        ["circuits", "--heatmap", "a.png", "-o", "a.png"],
        ["coref", "A cat.", "--heatmap", "a.png", "-o", "a.png"],
    ],
)
def test_no_output_writes_over_another(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert run([*arguments, "--quiet"]) == 2
    assert "would both write a.png" in capsys.readouterr().err.replace("./", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["induction", "--method", "zero"], "--method goes with --ablate or --story"),
        (["induction", "babada babada", "--mode", "frozen"], "--mode goes with random tokens"),
        (["induction", "--pair", "babada"], "--pair goes with a text"),
        (["induction", "--ablate", "-F", "csv"], "told in words"),
        (["ablate", "--head", "1.0", "--label", "coreference", "--items", "5"],
         "with --label coreference alone"),
        (["circuits", "--norms", "--to", "1.0"], "--to chooses pairs, and --norms lists heads"),
        (["coref", "--data", "d.jsonl", "--mentions", "spacy"], "--mentions goes with a text"),
    ],
)  # fmt: skip
def test_options_of_another_kind_of_run_are_refused(
    arguments: list[str], message: str, copier: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, "-m", copier, "--quiet"]) == 2
    assert message in capsys.readouterr().err
