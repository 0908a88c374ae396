"""Hostile input: markup, control characters, narrow and odd terminals, pipes that close."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from attnscope.cli.app import run
from attnscope.models.text import Reader
from tests import tiny

Checkpoint = Callable[[str], Path]
HOSTILE = ["[red]", "[/]", "[bold]", ":fire:", "back\\", "[unused1]"]
FORTY = " ".join(["the cat sang a song , the dog sang ."] * 4)
NAME = "[red]m[/] :fire: \\"


@pytest.fixture(scope="module")
def marked_up(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT whose vocabulary holds console markup, in a directory named in markup."""
    directory = tmp_path_factory.mktemp("hostile") / NAME
    shutil.copytree(checkpoint("bert"), directory)
    plain = tiny.wordpiece_tokenizer()
    stored = json.loads(plain.backend_tokenizer.to_str())
    vocabulary = stored["model"]["vocab"]
    for number, token in enumerate(HOSTILE[:-1]):
        vocabulary[token] = vocabulary.pop(f"filler{300 + number}")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(stored)),
        unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]",
        mask_token="[MASK]", model_input_names=plain.model_input_names,
    )  # fmt: skip
    tokenizer.add_tokens(HOSTILE)
    assert len(tokenizer) == tiny.VOCABULARY
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)


def program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "attnscope", *arguments],
        env=os.environ | environment,
        capture_output=True,
        check=False,
    )


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """What the command writes to a terminal."""
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "attnscope", *arguments],
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "80"} | environment,
        stdout=follower,
        stderr=follower,
        stdin=follower,
    ) as process:
        os.close(follower)
        written = b""
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:  # Linux: the other end is closed
                break
            if not part:
                break
            written += part
        assert process.wait() == 0
    os.close(leader)
    return written.decode()


# O1: markup


def test_tokens_are_shown_exactly(
    marked_up: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = " ".join(HOSTILE)
    arguments = ["show", text, "--head", "0.0", "-m", str(marked_up)]
    assert run([*arguments, "-F", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [token["text"] for token in found["tokens"]] == ["[CLS]", *HOSTILE, "[SEP]"]
    assert found["model"]["id"] == str(marked_up)
    assert run(arguments) == 0
    out = capsys.readouterr().out
    queries = [line for line in out.splitlines() if re.match(r"\d \S", line)]
    assert [line.split()[1] for line in queries] == ["[CLS]", *HOSTILE, "[SEP]"]
    assert NAME in out


@pytest.mark.parametrize("arguments", [[], ["--all"], ["-F", "csv"], ["-F", "markdown"]])
def test_heads_survive_markup(
    arguments: list[str], marked_up: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = " ".join(HOSTILE)
    assert run(["heads", text, "-m", str(marked_up), "--no-battery", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    if arguments in ([], ["--all"]):
        assert NAME in out
    if arguments == ["--all"]:
        assert any(token in out.replace(NAME, "") for token in HOSTILE)


@pytest.mark.parametrize("command", [["heads", "the cat"], ["show", "the cat", "--head", "0.0"]])
def test_names_in_messages_are_shown_exactly(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "-m", str(tmp_path / NAME)]) == 3
    assert NAME in capsys.readouterr().err
    for bad in ("--[red]x[/]", "--:fire:", "--back\\"):
        assert run([*command, bad]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert bad in err
    assert run([*command, "-F", "[red]"]) == 2
    assert "[red]" in capsys.readouterr().err


def test_nothing_in_a_name_acts(
    checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a\x1b[31mb\u202ec\nd"
    directory = Path(shutil.copytree(checkpoint("gpt2"), tmp_path / name))
    path = tmp_path / f"{name}.npz"
    for arguments in (
        ["heads", "the cat", "--no-battery", "-m", str(directory)],
        ["show", "the cat", "--head", "0.0", "-m", str(directory)],
        ["verify", "--length", "4", "-m", str(directory)],
        ["capture", "the cat", "-o", str(path), "-m", str(directory)],
        ["heads", "the cat", "-m", str(directory) + "x"],
        ["heads", "-f", str(directory) + "x"],
        ["show", "the cat", "--head", name, "-m", str(directory)],
    ):
        run(arguments)
        out, err = capsys.readouterr()
        for written in (out, err):
            assert "\x1b" not in written, arguments
            assert "\u202e" not in written, arguments
        assert "\\x1b[31mb\\u{202e}c" in (out + err).replace("\n", ""), arguments


# O2: narrow terminals


@pytest.mark.parametrize("columns", ["100", "40", "20", "1", "0", "x"])
def test_no_number_is_lost_in_a_narrow_table(
    columns: str,
    checkpoint: Checkpoint,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A column that does not fit is named; one that stays has every figure in full."""
    directory = str(checkpoint("llama-gqa"))
    monkeypatch.setenv("COLUMNS", columns)
    arguments = ["heads", FORTY, "-m", directory, "--no-battery"]
    assert run([*arguments, "-F", "json"]) == 0
    heads = json.loads(capsys.readouterr().out)["heads"]
    assert run([*arguments, "--all"]) == 0
    out = capsys.readouterr().out
    squeezed = re.sub(r"\s", "", out)  # where nothing fits, lines are folded
    left_out = squeezed.partition("noroomfor:")[2]
    titles = ["score", "chance", "interval", "rests", "inthistext"]
    kept = [title for title in titles if title not in left_out]
    assert "headlabel" + "".join(kept) in squeezed
    number = r"(-?\d?\.\d\d|–)"
    assert len(heads) == 12
    for entry in heads:
        labels = [label for label in entry["labels"] if label != "resting"] or entry["labels"][:1]
        row = f"{entry['layer']}.{entry['head']}{','.join(labels) or 'unclassified'}"
        figures = number * len({"score", "chance"} & set(kept))
        assert re.search(re.escape(row) + figures, squeezed), row


def test_verify_keeps_its_figures_when_narrow(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    assert run(["verify", "-m", str(checkpoint("gpt2")), "--length", "4"]) == 0
    squeezed = re.sub(r"\s", "", capsys.readouterr().out)
    figure = r"\d\.\de[-+]\d\d"
    assert re.search(rf"layerattention0{figure}1{figure}2{figure}noroomfor:output", squeezed)


@pytest.mark.parametrize("what", [["--head", "0.0"], ["--layer", "1"]])
@pytest.mark.parametrize("columns", ["100", "40", "9"])
def test_a_pattern_says_what_it_leaves_out(
    what: list[str],
    columns: str,
    checkpoint: Checkpoint,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert run(["show", FORTY, *what, "-m", str(checkpoint("gpt2"))]) == 0
    out = capsys.readouterr().out
    assert "40 tokens" in " ".join(out.split())
    name = str(checkpoint("gpt2"))
    assert max(len(line) for line in out.splitlines() if name not in line) <= max(
        int(columns), 30 if columns == "9" else 0
    )


def test_a_table_in_a_file_is_as_in_a_pipe(
    checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("FORCE_COLOR", "1")  # a file is still no terminal
    arguments = ["heads", FORTY, "-m", str(checkpoint("gpt2")), "--no-battery", "--all"]
    assert run([*arguments, "-o", str(tmp_path / "table")]) == 0
    monkeypatch.delenv("FORCE_COLOR")
    assert run(arguments) == 0
    assert (tmp_path / "table").read_text() == capsys.readouterr().out


# O4: colour and encodings


def test_no_escape_codes_unless_forced(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = str(checkpoint("gpt2"))
    commands = [
        ["heads", "the cat", "-m", directory, "--no-battery", "--all"],
        ["show", "the cat", "--head", "0.0", "-m", directory],
        ["models", "list"],
    ]
    for command in commands:
        assert run(command) == 0
        assert "\x1b" not in capsys.readouterr().out
        monkeypatch.setenv("FORCE_COLOR", "1")
        assert run(command) == 0
        assert "\x1b[" in capsys.readouterr().out
        assert run([*command[:4], *command[4:], "-F", "json"]) == 0
        json.loads(capsys.readouterr().out)  # data is never coloured
        monkeypatch.delenv("FORCE_COLOR")


@pytest.mark.parametrize(
    ("environment", "colour"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colour_on_a_terminal(environment: dict[str, str], colour: bool) -> None:
    written = on_a_terminal("models", "list", **environment)
    assert "minilm-l6" in written
    assert ("\x1b[" in written) is colour


def test_a_locale_without_letters(checkpoint: Checkpoint) -> None:
    """LC_ALL=C and output in ASCII: stand-ins, no traceback; JSON keeps every character."""
    shared = ["show", "café 東", "-q", "-m", str(checkpoint("gpt2"))]
    ascii_only = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    table = program(*shared, "--head", "0.0", **ascii_only)
    assert table.returncode == 0
    assert table.stderr == b""
    table.stdout.decode("ascii")
    document = program(*shared, "--layer", "0", "-F", "json", **ascii_only)
    assert document.returncode == 0
    texts = [token["text"] for token in json.loads(document.stdout)["tokens"]]
    read = Reader(tiny.byte_tokenizer()).read("café 東")
    assert texts == [token.text for token in read.tokens]  # "·" is data here, not a sign


def test_a_reader_that_leaves(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """`| head -1` is no failure and no traceback, whether the output is JSON or a table."""
    directory = str(checkpoint("gpt2"))
    text = FORTY + " " + FORTY
    for form in ("json", "table"):
        command = (
            f'{sys.executable} -m attnscope show "{text}" --layers 0-2 -q -m "{directory}" '
            f'-F {form} 2>"{tmp_path}/err" | head -1 >"{tmp_path}/out"; echo "${{PIPESTATUS[0]}}"'
        )
        done = subprocess.run(["bash", "-c", command], capture_output=True, check=True, text=True)
        assert (tmp_path / "err").read_text() == ""
        assert (tmp_path / "out").read_text().strip() != ""
        assert done.stdout.strip() == "0"


# I2: standard input


def test_standard_input(checkpoint: Checkpoint) -> None:
    command = [
        sys.executable,
        "-m",
        "attnscope",
        "heads",
        "-f",
        "-",
        "-F",
        "json",
        "-q",
        "--no-battery",
    ]
    done = subprocess.run(
        [*command, "-m", str(checkpoint("gpt2"))],
        input=b"\xef\xbb\xbfthe cat\r\n\r\nthe dog",
        capture_output=True,
        check=False,
    )
    assert done.stderr == b""
    found = json.loads(done.stdout)
    assert found["texts"] == 2
    assert found["heads"][0]["scores"]["current_token"]["n"] == 4


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"the cat\ncaf\xe9\n", "line 2, byte 3"),
        (b"the\x00cat", "line 1, byte 3"),
        (b"", "no text"),
        (b"\n \n", "no text"),
    ],
)
def test_files_that_hold_no_text(
    data: bytes,
    told: str,
    checkpoint: Checkpoint,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "texts.txt"
    path.write_bytes(data)
    assert run(["heads", "-f", str(path), "-m", str(checkpoint("gpt2"))]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert str(path) in err
    assert told in err


@pytest.mark.parametrize("place", ["/dev/null", "."])
def test_places_that_hold_no_text(
    place: str, checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["heads", "-f", place, "-m", str(checkpoint("gpt2"))]) == 2
    assert place in capsys.readouterr().err


def test_a_line_that_is_too_long_is_named(
    checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("the cat\n\n" + "the cat " * 80 + "\n")
    assert run(["heads", "-f", str(path), "-m", str(checkpoint("gpt2"))]) == 2
    err = capsys.readouterr().err
    assert "line 3" in err
    assert "128 positions" in err


# The two failures that stand in INTERFACE.md beside the exit codes


def test_interrupted_is_130(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("attnscope.api.load", interrupted)
    assert run(["heads", "the cat", "-m", str(checkpoint("gpt2"))]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err


def test_debug_shows_the_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNSCOPE_DEBUG", "1")
    assert run(["heads", "", "-m", "x"]) == 2
    assert "Traceback" in capsys.readouterr().err
