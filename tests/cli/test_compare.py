"""`attnscope compare mha-vs-gqa`, from the command line's edge."""

from __future__ import annotations

import csv
import io
import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attnscope.cli.app import run
from attnscope.cli.compare_options import CacheType, Sliding
from attnscope.experiments.compare import DTYPES, WINDOWS

CLASSIC = ["compare", "mha-vs-gqa"]


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_the_classic_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(CLASSIC) == 0
    out, err = capsys.readouterr()
    assert err == ""
    cells = [re.split(r"  +", line.strip()) for line in out.splitlines()[3:7]]
    rows = {row[0].removesuffix(" *"): row for row in cells}
    assert rows["MHA"] == ["MHA", "32", "512 KiB", "4.00 GiB", "4.00 GiB", "100 %", "1"]
    assert rows["GQA-8"] == ["GQA-8 *", "8", "128 KiB", "1.00 GiB", "1.00 GiB", "25 %", "4"]
    assert rows["MQA"] == ["MQA", "1", "16 KiB", "0.13 GiB", "0.13 GiB", "3.1 %", "32"]
    assert "no room for" not in out
    assert "Q   0 1 2 3   4 5 6 7   8 9 10 11   …   28 29 30 31" in out
    assert "KV  ╰──0──╯   ╰──1──╯   ╰───2───╯   …   ╰────7────╯" in out
    for source in ("Ainslie et al. 2023", "Touvron et al. 2023", "DeepSeek-AI 2024"):
        assert source in out


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["gemma-2-9b", "--context", "4k,32k"],
        ["gemma-2-9b", "--context", "1k,1M"],
        ["deepseek-v3", "--context", "1k,1G", "--batch", "1k"],
        ["deepseek-v3", "--memory", "1TiB"],
        ["bert-base"],
        ["gpt2", "llama-3-8b", "bert-large"],
        ["--dtype", "int4"],
        ["--list"],
    ],
    ids=" ".join,
)
def test_no_line_is_broken_and_nothing_is_lost_in_silence(
    arguments: list[str],
    columns: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run([*CLASSIC, *arguments]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    assert ("no room for" in out) <= (columns < 200)


def test_a_narrow_terminal_says_what_it_leaves_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert run(CLASSIC) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "no room for: per token, in pages, FLOP/byte (COLUMNS=69)" in out
    assert "no room for: weights, new token, prefill, texts fit (COLUMNS=78)" in out
    assert "variant kv heads KV cache of MHA MHA 32 4.00 GiB 100 %" in out
    assert run([*CLASSIC, "gemma-2-9b", "--context", "1k,1M"]) == 0
    out = capsys.readouterr().out
    assert "  GQA-8 *  1 048 576  168.66 GiB    50 %" in out.splitlines()
    assert "no room for: kv heads, per token," in out
    monkeypatch.setenv("COLUMNS", "60")
    assert run([*CLASSIC, "--list"]) == 0
    assert "no room for: window, positions (COLUMNS=78)" in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "20")
    assert run(CLASSIC) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "no room for: kv heads, per token, in pages, of MHA, FLOP/byte" in out


def test_it_is_quick_and_brings_no_torch() -> None:
    program = (
        "import sys\n"
        "from attnscope.cli.app import run\n"
        "assert run(['compare', 'mha-vs-gqa']) == 0\n"
        "heavy = {'torch', 'transformers', 'pandas', 'matplotlib', 'numpy', 'huggingface_hub'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1


def test_several_models_are_said_to_stand_as_they_are_when_they_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([*CLASSIC, "gpt2", "llama-2-7b"]) == 0
    assert capsys.readouterr().out.startswith("2 models  as they are, 1 024 tokens, batch 1")
    assert run([*CLASSIC, "gpt2", "llama-2-7b", "--kv-heads", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("2 models  1 024 tokens, batch 1")
    assert out.count("MHA *") == 4  # in both tables


def test_json_csv_and_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*CLASSIC, "-F", "json", "--context", "1e12", "--batch", "1000"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["kv_bytes"] for row in rows] == [
        524_288 * 10**15,
        131_072 * 10**15,
        16_384 * 10**15,
    ]
    assert run([*CLASSIC, "-F", "csv", "--context", "1e12", "--batch", "1000"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [int(row["kv_bytes"]) for row in table] == [row["kv_bytes"] for row in rows]
    assert list(table[0]) == list(rows[0])
    assert run([*CLASSIC, "-F", "markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 3
    assert lines[0].count("|") == lines[2].count("|") == len(rows[0]) + 1


def test_to_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, figure = tmp_path / "table.txt", tmp_path / "figure.svg"
    assert run([*CLASSIC, "-o", str(table), "--plot", str(figure)]) == 0
    assert capsys.readouterr().out == ""
    assert "512 KiB" in table.read_text(encoding="utf-8")
    assert "GQA-8" in figure.read_text(encoding="utf-8")


def test_the_known_models_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*CLASSIC, "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    names = [line.split()[0] for line in lines[1:] if not line.startswith("no room")]
    assert run([*CLASSIC, "--list", "-F", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [shape["name"] for shape in document["shapes"]] == names
    assert all(shape["source"] for shape in document["shapes"])
    assert run([*CLASSIC, "--list", "-F", "csv"]) == 0
    assert [row["name"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))] == names


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--kv-heads", "3"], 2, "32 query heads cannot share 3 key/value heads evenly."),
        (["--kv-heads", "0"], 2, "share 0 key/value heads"),
        (["--kv-heads=-1"], 2, "share -1 key/value heads"),
        (["--context", "0"], 2, "at least 1"),
        (["--context", "1e99"], 2, "at most 1e18"),
        (["--batch", "none"], 2, "Cannot read 'none' as a number of texts"),
        (["--page-size", "0"], 2, "at least 1"),
        (["--memory", "24"], 2, "write 24GiB"),
        (["--dtype", "int3"], 2, "int3"),
        (["llama3-8b"], 2, "Did you mean 'llama-3-8b'?"),
        (["--config", "no.json"], 2, "There is no config 'no.json'"),
        (["--model", "llama-3-8"], 3, "Did you mean 'llama-3-8b'?"),
        (["bert-base", "--plot", "a.png"], 2, "an encoder keeps no cache"),
        (["--plot", "a.jpg"], 2, "must end in .png"),
        (["--output", "no/such/place"], 1, "there is no directory"),
    ],
)
def test_what_goes_wrong_is_told_in_two_lines(
    arguments: list[str],
    code: int,
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*CLASSIC, *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert len(err.splitlines()) <= 2
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_s_own_config_is_read(
    checkpoint: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    directory = checkpoint("llama-gqa")
    assert run([*CLASSIC, "--model", str(directory), "-F", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["model"]["id"] == str(directory)
    assert [row["n_kv_heads"] for row in document["rows"]] == [4, 2, 1]
    assert document["rows"][0]["context"] == 128  # its positions
    assert run([*CLASSIC, "--model", "demo-llama", "-F", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["n_heads"] == 8


def test_the_model_of_the_environment_counts_where_none_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATTNSCOPE_MODEL", "gpt2")
    for arguments, models in (
        ([], ["gpt2"]),
        (["bert-base"], ["bert-base"]),
        (["bert-base", "--model", "llama-3-8b"], ["bert-base", "llama-3-8b"]),
    ):
        assert run([*CLASSIC, *arguments, "-F", "json"]) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        assert list(dict.fromkeys(row["model"] for row in rows)) == models


def test_the_choices_are_those_of_the_library() -> None:
    assert tuple(each.value for each in CacheType) == DTYPES
    assert tuple(each.value for each in Sliding) == WINDOWS


def test_the_group_shows_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "--help"]) == 0
    assert "mha-vs-gqa" in capsys.readouterr().out


def test_a_name_with_markup_is_shown_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "[red]x"
    directory.mkdir()
    config = {"model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 2}
    (directory / "config.json").write_text(json.dumps(config | {"hidden_size": 8}))
    assert run([*CLASSIC, "--config", str(directory), "--plot", str(tmp_path / "a.svg")]) == 0
    assert "[red]x" in capsys.readouterr().out.replace("\n", "")
