"""README is true: its commands exist, its Python runs, its outputs are what a run prints."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from attnscope.cli.app import app, run
from attnscope.models.shapes import known_shapes
from attnscope.models.supported import SUPPORTED

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
_NUMBER = re.compile(r"-?\d*\.?\d+(?:e-?\d+)?")


def _commands() -> list[list[str]]:
    blocks = "\n".join(re.findall(r"```(?:sh|console)\n(.*?)```", README, re.DOTALL))
    inline = "\n".join(re.findall(r"`(attnscope [^`]+)`", README))
    found = []
    for line in (blocks + "\n" + inline).splitlines():
        for part in line.removeprefix("$ ").split(" && "):
            if part.startswith("attnscope "):
                found.append(shlex.split(part)[1:])
    return found


@pytest.mark.parametrize("command", _commands(), ids=" ".join)
def test_commands_and_options_exist(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    names = [word for word in command if re.fullmatch(r"[a-z]+", word)]
    words = command[:2] if names[0] in ("compare", "models") else names[:1]
    assert run([*words, "--help"]) == 0
    text = capsys.readouterr().out
    for option in (word for word in command if word.startswith("--")):
        assert option in text, f"attnscope {' '.join(words)} has no {option}"


def test_every_command_stands_in_readme() -> None:
    names = {command.name or command.callback.__name__ for command in app.registered_commands}
    shown = {words[0] for words in _commands()}
    assert names <= shown


def _python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("block", _python_blocks())
def test_python_runs(block: str, checkpoint: Callable[[str], Path]) -> None:
    program = block.replace('"minilm-l6"', repr(str(checkpoint("bert")))).replace("[3]", "[2]")
    names: dict[str, object] = {}
    exec(compile(program, "README.md", "exec"), names)
    assert {"result", "weights"} <= set(names) or "attention" in names


def test_the_supported_table_is_the_code_s() -> None:
    section = README.split("## What is supported")[1].split("## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE)[2:]
    shown = {name: layout for layout, names in rows for name in names.split(", ")}
    assert shown == dict(SUPPORTED)


def test_the_memory_table_is_what_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = {" ".join(command): output for command, output in _outputs()}
    assert run(["compare", "mha-vs-gqa"]) == 0
    assert capsys.readouterr().out == shown["compare mha-vs-gqa"]
    named = re.search(r"names (\d+) published models", README)
    assert named is not None
    assert int(named[1]) == len(known_shapes())


def _outputs() -> list[tuple[list[str], str]]:
    found = []
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL):
        command, output = block.split("\n", 1)
        found.append((shlex.split(command.removeprefix("$ "))[1:], output))
    return found


@pytest.mark.real
@pytest.mark.parametrize(("command", "shown"), _outputs(), ids=lambda v: " ".join(v[:1]))
def test_outputs_are_real(
    command: list[str],
    shown: str,
    pulled: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same words, and numbers that differ by no more than another processor's rounding."""
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*command, "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert _NUMBER.sub("#", printed).split() == _NUMBER.sub("#", shown).split()
    for ours, theirs in zip(_NUMBER.findall(printed), _NUMBER.findall(shown), strict=True):
        assert float(ours) == pytest.approx(float(theirs), abs=0.02)
