"""Texts from files and standard input, as people's editors and shells make them."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from attnscope.errors import UsageError
from attnscope.scoring.corpus import given_texts, read_lines


def written(directory: Path, data: bytes) -> Path:
    path = directory / "texts.txt"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"the cat\nthe dog\n", {1: "the cat", 2: "the dog"}),
        (b"the cat\nthe dog", {1: "the cat", 2: "the dog"}),
        (b"\xef\xbb\xbfthe cat\r\n\r\n  \r\nthe dog\r\n", {1: "the cat", 4: "the dog"}),
        (b"\n\nthe cat\n\nthe dog", {3: "the cat", 5: "the dog"}),
        (b"the cat\rthe dog\r", {1: "the cat", 2: "the dog"}),
        ("café\n東京 🤗\n".encode(), {1: "café", 2: "東京 🤗"}),
        ("one\u2028line\n".encode(), {1: "one\u2028line"}),
    ],
)
def test_one_text_a_line(data: bytes, lines: dict[int, str], tmp_path: Path) -> None:
    path = written(tmp_path, data)
    found = read_lines(path)
    assert [one.text for one in found] == list(lines.values())
    for one, number in zip(found, lines, strict=True):
        assert f"line {number} " in f"{one.what} "
        assert str(path) in one.what


@pytest.mark.parametrize(
    ("data", "line", "offset", "told"),
    [
        (b"the cat\ncaf\xe9\n", 2, 3, "0xe9"),
        (b"\xe9", 1, 0, "0xe9"),
        (b"the\x00cat", 1, 3, "NUL"),
        ("café\n東\0".encode(), 2, 3, "NUL"),
        (b"\xef\xbb\xbfcaf\xe9\n", 1, 6, "0xe9"),
        (b"\xef\xbb\xbfab\ncd\xffe\n", 2, 2, "0xff"),
        (b"\xef\xbb\xbfab\0", 1, 5, "NUL"),
        (b"\xff\xfet\x00h\x00e\x00", 1, 0, "0xff"),  # UTF-16
        (b"the cat\r\ncaf\xe9\r\n", 2, 3, "0xe9"),
        (b"ok\ntrunc\xc3", 2, 5, "0xc3"),
    ],
)
def test_bad_bytes_are_named_by_file_line_and_offset(
    data: bytes, line: int, offset: int, told: str, tmp_path: Path
) -> None:
    path = written(tmp_path, data)
    with pytest.raises(UsageError) as caught:
        read_lines(path)
    assert f"{path}, line {line}, byte {offset}:" in str(caught.value)
    assert told in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\n", b"  \r\n\t\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_a_file_without_text(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"texts\.txt holds no text"):
        read_lines(written(tmp_path, data))


def test_places_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no text"):
        read_lines(Path(os.devnull))
    with pytest.raises(UsageError, match="is a directory"):
        read_lines(tmp_path)
    with pytest.raises(UsageError, match=r"no file .*nothing\.txt"):
        read_lines(tmp_path / "nothing.txt")


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def typed(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))

    typed("\ufeffcafé\r\n\r\nthe dog".encode())
    found = given_texts(None, Path("-"))
    assert [one.text for one in found] == ["café", "the dog"]
    assert [one.what for one in found] == [
        "text in line 1 of standard input",
        "text in line 3 of standard input",
    ]
    typed("\ufeffcafé\nthe dog\n".encode())
    [whole] = given_texts("-", None)
    assert whole.text == "café\nthe dog"
    typed(b"caf\xe9")
    with pytest.raises(UsageError, match="standard input, line 1, byte 3"):
        given_texts("-", None)


@pytest.mark.parametrize(("text", "file"), [(None, None), ("the cat", Path("x"))])
def test_a_text_or_a_file(text: str | None, file: Path | None) -> None:
    with pytest.raises(UsageError, match="--file"):
        given_texts(text, file)
