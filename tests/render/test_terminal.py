"""What a terminal shows is decoded back and compared with the weights."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from attnscope.render.palette import LABELS, shade
from attnscope.render.terminal import head_heatmap, layer_grid
from attnscope.types import Token

HOSTILE = [
    *("[red]", "[/]", "$x$", "\\", "·東京", "🤗", "a" * 40, ":fire:", "x_1^2", "❤\ufe0f"),
    *("<script>", "[bold]b\\", "٣", "é\u0302", "·the"),
]
RAMP = " ·░▒▓█"


def tokens(words: Sequence[str]) -> list[Token]:
    return [Token(index, index, word, False) for index, word in enumerate(words)]


def words(length: int) -> list[Token]:
    return tokens([f"·w{index}" for index in range(length)])


def pattern(n_queries: int, n_keys: int | None = None, seed: int = 0) -> NDArray[np.floating]:
    """Causal; each row has most of its weight on one key, drawn at random."""
    n_keys = n_keys or n_queries
    draw = np.random.default_rng(seed)
    weights = np.zeros((n_queries, n_keys), np.float32)
    for row in range(n_queries):
        seen = row + n_keys - n_queries + 1
        weights[row, :seen] = 0.2 / seen
        weights[row, draw.integers(seen)] += 0.8
    return weights


def rows_of(text: Text, n_keys: int) -> dict[int, str]:
    """The line of every query, by its index."""
    digits = len(str(n_keys - 1))
    lines = [line for line in text.plain.split("\n") if re.match(rf"[ \d]{{{digits}}} \S", line)]
    return {int(line[:digits]): line for line in lines if line[:digits].strip().isdigit()}


def printed(text: Text, width: int, **console: object) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, **console).print(text)  # type: ignore[arg-type]
    return stream.getvalue()


@pytest.mark.parametrize(("length", "width"), [(15, 80), (3, 80), (40, 300), (2, 40)])
def test_numbers_are_the_weights(length: int, width: int) -> None:
    weights = pattern(length)
    text = head_heatmap(weights, words(length), width, colour=False, causal=True)
    for row, line in rows_of(text, length).items():
        shown = [0 if sign == "·" else int(sign) for sign in line.split()[2:]]
        assert shown == [round(100 * float(weight)) for weight in weights[row, : row + 1]]


@pytest.mark.parametrize(("length", "width"), [(40, 80), (15, 40), (40, 120), (150, 200)])
def test_the_darkest_sign_of_a_row_is_where_the_weight_is(length: int, width: int) -> None:
    weights = pattern(length)
    text = head_heatmap(weights, words(length), width, colour=False, causal=True)
    lines = rows_of(text, length)
    header = text.plain.split("\n")
    start = header[1].index("·w0")
    cell = header[2].index("·w1") - start
    assert len(lines) == min(length, 60)
    for row, line in lines.items():
        signs = [RAMP.index(line[at]) for at in range(start, len(line), cell)]
        assert signs.index(max(signs)) == weights[row].argmax()
        assert signs.count(max(signs)) == 1


def test_shades_are_those_of_the_weights_and_what_is_hidden_is_not_painted() -> None:
    weights = pattern(12)
    text = head_heatmap(weights, words(12), 80, colour=True, true_colour=True, causal=True)
    for row, line in enumerate(text.split("\n")[-14:-2]):
        painted = [
            span.style.bgcolor.get_truecolor().hex.upper()
            for span in line.spans
            if not isinstance(span.style, str) and span.style.bgcolor
        ]
        assert painted == [shade(float(weight)) for weight in weights[row, : row + 1]]


def test_a_bidirectional_pattern_hides_nothing() -> None:
    weights = pattern(6)[::-1, ::-1].copy()
    text = head_heatmap(weights, words(6), 80, colour=False, causal=False)
    assert all(len(line.split()) == 8 for line in rows_of(text, 6).values())
    assert "invisible" not in text.plain


def test_queries_may_be_the_last_of_the_keys() -> None:
    weights = pattern(3, 8)
    text = head_heatmap(weights, words(8), 80, colour=False, causal=True)
    lines = rows_of(text, 8)
    assert list(lines) == [5, 6, 7]
    assert [len(line.split()) - 2 for line in lines.values()] == [6, 7, 8]


@pytest.mark.parametrize("width", [10, 20, 40, 80, 200])
@pytest.mark.parametrize("length", [1, 2, 3, 15, 40, 200])
@pytest.mark.parametrize("colour", [False, True])
def test_no_line_is_wider_than_asked_and_none_wraps(length: int, width: int, colour: bool) -> None:
    shown = tokens([HOSTILE[index % len(HOSTILE)] for index in range(length)])
    maps = np.stack([pattern(length, seed=seed) for seed in range(5)])
    for text in (
        head_heatmap(maps[0], shown, width, colour=colour, causal=True, title="t" * 90),
        layer_grid(maps, shown, width, colour=colour, labels=LABELS[-6:-1], causal=True),
    ):
        lines = text.plain.split("\n")
        assert max(map(cell_len, lines)) <= width
        assert printed(text, width).count("\n") == len(lines)


def test_tokens_are_shown_exactly() -> None:
    text = head_heatmap(pattern(15), tokens(HOSTILE), 120, colour=True, causal=True)
    for console in ({}, {"force_terminal": True, "color_system": "truecolor"}):
        out = re.sub(r"\x1b\[[\d;]*m", "", printed(text, 120, **console))
        for word in HOSTILE:
            shown = word.replace("\ufe0f", "")
            count = 1 if word == "a" * 40 else 2  # a row's label is shorter than a column's
            assert out.count(shown if word != "a" * 40 else "a" * 17) >= count, word
        assert "… label shortened" in out


def test_only_what_was_shortened_is_said_to_be() -> None:
    text = head_heatmap(pattern(15), words(15), 80, colour=False, causal=True).plain
    assert "shortened" not in text
    assert "showing" not in text
    assert all(text.count(f"·w{index} ") + text.count(f"·w{index}\n") == 2 for index in range(15))


@pytest.mark.parametrize(("length", "width"), [(96, 80), (200, 200), (200, 40)])
def test_what_does_not_fit_is_counted_and_each_key_shown_is_the_right_one(
    length: int, width: int
) -> None:
    weights = np.zeros((length, length), np.float32)
    heavy = [5, 17, length - 70]
    weights[:, heavy] = [0.5, 0.3, 0.2]
    text = head_heatmap(weights, words(length), width, colour=False, causal=False)
    said = re.search(
        r"showing the (\d+) of (\d+) keys read most, last (\d+) of (\d+) queries",
        text.plain.replace("\n", " "),
    )
    assert said
    n_keys, of_keys, n_rows, of_rows = map(int, said.groups())
    lines = rows_of(text, length)
    assert (of_keys, of_rows, n_rows) == (length, length, len(lines))
    assert list(lines) == list(range(length - n_rows, length))
    labels = {
        int(index): at
        for line in text.plain.split("\n")[1:9]
        for index, at in ((m[1], m.start()) for m in re.finditer(r"(\d+) [·…]", line))
    }
    assert set(heavy) <= set(labels)
    assert ("…" in text.plain.split("showing")[0]) == ("… label shortened" in text.plain)
    header = "\n".join(text.plain.split("\n")[1:9])
    for index, label in re.findall(r"(\d+) (\S+)", header):
        assert label == f"·w{index}" or label.endswith("…")
    for line in lines.values():
        painted = {key for key, at in labels.items() if line[at : at + 1] in tuple("░▒▓█")}
        assert painted == set(heavy)
        assert len(line) - line.index("·", 6) <= 2 * n_keys


def test_a_plain_text_has_no_escape_codes_even_on_a_terminal() -> None:
    maps = np.stack([pattern(9)] * 2)
    for text in (
        head_heatmap(maps[0], words(9), 80, colour=False, causal=True, title="5.5"),
        layer_grid(maps, words(9), 80, colour=False, labels=["induction", "broad"]),
    ):
        assert "\x1b" not in printed(text, 80, force_terminal=True, color_system="truecolor")


def test_ascii_only_is_ascii() -> None:
    shown = tokens(HOSTILE * 4)
    maps = np.stack([pattern(60)] * 2)
    for text in (
        head_heatmap(maps[0], shown, 80, colour=False, causal=True, ascii_only=True, title="é"),
        head_heatmap(maps[0][:9, :9], shown[:9], 80, colour=False, causal=True, ascii_only=True),
        layer_grid(maps, shown, 80, colour=False, labels=["é", "broad"], ascii_only=True),
    ):
        assert text.plain.isascii()
    assert (
        "\\u6771"
        in head_heatmap(maps[0], shown, 200, colour=False, causal=True, ascii_only=True).plain
    )


def test_a_title_comes_first_and_the_legend_last() -> None:
    text = head_heatmap(pattern(5), words(5), 80, colour=False, causal=True, title="[b]5.5\n").plain
    assert text.startswith("[b]5.5\\x0a\nquery (reads)")
    assert text.split("\n")[-2].startswith("weight in hundredths")


def test_a_layer_shows_every_head_once_with_its_label() -> None:
    maps = np.stack([pattern(15, seed=seed) for seed in range(12)])
    text = layer_grid(maps, words(15), 80, colour=False, labels=LABELS, causal=True).plain
    numbers = " ".join(line for line in text.split("\n") if re.fullmatch(r"[\d ]+", line))
    assert numbers.split() == [str(head) for head in range(12)]
    assert all(text.count(label) == 1 for label in LABELS if label != "induction")


@pytest.mark.parametrize("length", [1, 2, 3, 8, 16, 64])
def test_a_small_map_keeps_the_shape_of_the_pattern(length: int) -> None:
    column = np.zeros((length, length), np.float32)
    column[:, 0] = 1
    text = layer_grid(np.stack([np.eye(length), column]), words(length), 80, colour=False).plain
    lines = text.split("\n0")[0].split("\n")
    size = len(lines[0].split()[0])
    for at, line in enumerate(lines):
        diagonal, first = line.split()
        middle = np.mean([place for place, sign in enumerate(diagonal) if sign == "█"])
        assert middle / size == pytest.approx(at / len(lines), abs=0.5 if length < 3 else 0.25)
        assert first == "█" * (size // min(length, size)) + "·" * (size - size // min(length, size))


def test_half_blocks_hold_two_rows() -> None:
    weights = np.array([[[1.0, 0.0], [0.25, 0.75]]])
    text = layer_grid(weights, words(2), 3, colour=True, true_colour=True, causal=True)
    upper_left, right = (span.style for span in text.split("\n")[0].spans[:2])
    assert text.plain[:2] == "▀▄"
    assert not isinstance(upper_left, str)
    assert not isinstance(right, str)
    assert upper_left.color.get_truecolor().hex.upper() == shade(1.0)  # type: ignore[union-attr]
    assert upper_left.bgcolor.get_truecolor().hex.upper() == shade(0.25)  # type: ignore[union-attr]
    assert right.color.get_truecolor().hex.upper() == shade(0.75)  # type: ignore[union-attr]
    assert right.bgcolor is None
