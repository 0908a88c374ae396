"""`attnscope compare mha-vs-gqa`: what nothing would come of is refused, before any work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from attnscope.cli.app import run
from attnscope.cli.session import check_distinct
from attnscope.errors import UsageError

COMPARE = ["compare", "mha-vs-gqa"]


def _refused(
    arguments: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*COMPARE, *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert len(err.splitlines()) <= 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--methods", "mean"], "--methods says how heads are pooled: it needs --convert"),
        (["--grouping", "alike", "--similarity"], "it needs --convert"),
        (["--all", "--measure"], "--all says every converted head"),
        (["--passages", "3", "--measure"], "it needs --convert or --similarity"),
        (["--tokenizer", "x"], "it needs --convert, --similarity or --measure"),
        (["--device", "cpu"], "it needs --convert, --similarity or --measure"),
        (["--seed", "1"], "it needs --convert, --similarity or --measure"),
        (["--revision", "main"], "name it with --model"),
        (["gpt2", "--revision", "main"], "name it with --model"),
        (["--config", "a", "--config", "b"], "--config is given twice"),
        (["--list", "gpt2"], "leave out 'gpt2'"),
        (["--list", "--model", "gpt2"], "leave out the other options"),
        (["--list", "--measure"], "leave out the other options"),
        (["-o", "a.png", "--plot", "./a.png"], "--output and --plot would both write a.png"),
        (["--model", "demo-gpt2", "gpt2", "--convert", "2"], "one checkpoint: leave out gpt2"),
        (["--config", "a", "--convert", "2"], "name it with --model, and leave out --config a"),
        (["--context", "1e400"], "at most 1e18"),
    ],
)
def test_options_that_would_change_nothing(
    arguments: list[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    _refused(arguments, 2, told, capsys)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-m", "demo-bert", "--convert", "3"], "demo-bert is an encoder"),
        (["-m", "demo-bert", "--measure"], "demo-bert is an encoder"),
        (["--convert", "3"], "4 query heads cannot share 3"),
        (["--convert", "1", "--methods", "mode"], "Unknown method 'mode'"),
        (["--convert", "1", "--save", "x"], "--save writes one model"),
        (
            ["--convert", "1", "--methods", "mean", "--save", "x"],
            "has no number of key",
        ),
        (["--convert", "1", "--methods", "mean", "--save", "."], "is there already"),
        (
            ["--measure", "--device", "foo"],
            "there is none. Use auto, cpu, cuda, cuda:N",
        ),
    ],
)
def test_what_the_config_alone_shows_is_told_without_the_weights(
    arguments: list[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "mine").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("attnscope.models.load.read_network", lambda *_: pytest.fail("loaded"))
    _refused([*arguments, "-q"], 2, told, capsys)


def test_an_encoder_without_its_head_is_an_encoder(
    checkpoint: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _refused(["-m", str(checkpoint("bert")), "--convert", "2"], 2, "is an encoder", capsys)


def test_a_config_is_no_checkpoint(
    checkpoint: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = checkpoint("bert") / "config.json"
    _refused(["-m", str(file)], 2, "`--config ", capsys)
    _refused(["--config", "/dev/zero"], 3, "no regular file", capsys)


def test_two_names_of_one_file_are_one_file(tmp_path: Path) -> None:
    file, link = tmp_path / "a.png", tmp_path / "b.png"
    link.symlink_to(file)
    with pytest.raises(UsageError, match=r"--output and --from-here would both write .*b\.png"):
        check_distinct(output=file, plot=None, from_here=link)
    check_distinct(output=file, plot=tmp_path / "c.png")
    check_distinct(output=Path("/dev/null"), plot=Path("/dev/null"))
