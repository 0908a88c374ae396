"""Figures are read back: pixels, labels and their boxes, bytes."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from html import unescape
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text
from numpy.typing import NDArray

from attnscope.errors import RunError, UsageError
from attnscope.render import sheet
from attnscope.render.figures import draw_head, draw_head_map, draw_layer
from attnscope.render.palette import LABELS, faded, shade
from attnscope.render.sheet import Sheet
from attnscope.types import Token

HOSTILE = [
    *("[red]", "[/]", "$x$", "\\", "·東京", "🤗", "a" * 40, ":fire:", "x_1^2", "❤\ufe0f"),
    *("<script>", "$\\frac{1}{", "٣", "é\u0302", "&amp;"),
]


def tokens(words: Sequence[str]) -> list[Token]:
    return [Token(index, index, word, False) for index, word in enumerate(words)]


def words(length: int) -> list[Token]:
    return tokens([f"·word{index}" for index in range(length)])


def pattern(length: int, seed: int = 0) -> NDArray[np.floating]:
    weights = np.tril(np.random.default_rng(seed).random((length, length)).astype(np.float32) ** 4)
    weights[:, 0] += 0.5
    return weights / weights.sum(axis=1, keepdims=True)


def head_map(
    n_layers: int, n_heads: int, seed: int = 0
) -> tuple[list[list[tuple[str, ...]]], NDArray[np.floating]]:
    draw = np.random.default_rng(seed)
    labels = [
        [
            tuple(str(label) for label in draw.choice(LABELS[:-1], draw.integers(4), replace=False))
            for _ in range(n_heads)
        ]
        for _ in range(n_layers)
    ]
    return labels, draw.random((n_layers, n_heads))


@pytest.fixture
def sheets(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures drawn, kept when they are saved."""
    kept: list[Figure] = []
    save = Sheet.save

    def keep(page: Sheet, path: Path) -> None:
        save(page, path)
        kept.append(page.figure)

    monkeypatch.setattr(Sheet, "save", keep)
    return kept


def texts(figure: Figure) -> Iterator[Text]:
    for text in figure.findobj(Text):
        if isinstance(text, Text) and text.get_visible() and text.get_text():
            yield text


def assert_tidy(figure: Figure) -> None:
    """No text lies on another or leaves the page."""
    figure.canvas.draw()
    boxes = [(text.get_text(), text.get_window_extent().padded(-0.5)) for text in texts(figure)]
    for (one, box), (other, beside) in itertools.combinations(boxes, 2):
        assert not box.overlaps(beside), (one, other)
    for text, box in boxes:
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= figure.bbox.width, text
        assert box.y1 <= figure.bbox.height, text


def written(path: Path) -> list[str]:
    """The texts of an SVG."""
    svg = path.read_text(encoding="utf-8")
    return [unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]


def pixel(path: Path, figure: Figure, axes: int, x: float, y: float) -> str:
    image = imread(path)
    across, up = figure.axes[axes].transData.transform((x, y))
    parts = image[image.shape[0] - 1 - int(up), int(across), :3]
    return "#" + "".join(f"{round(float(part) * 255):02X}" for part in parts)


@pytest.mark.parametrize("length", [1, 3, 15, 40, 73, 200])
def test_no_label_lies_on_another(tmp_path: Path, sheets: list[Figure], length: int) -> None:
    draw_head(tmp_path / "a.png", pattern(length), words(length), title="head 5.5")
    assert_tidy(sheets[0])


@pytest.mark.parametrize(("n_heads", "length"), [(1, 1), (12, 15), (3, 40), (33, 2)])
def test_no_label_of_a_layer_lies_on_another(
    tmp_path: Path, sheets: list[Figure], n_heads: int, length: int
) -> None:
    maps = np.stack([pattern(length, seed) for seed in range(n_heads)])
    names = [f"5.{head}" for head in range(n_heads)]
    labels = [LABELS[head % len(LABELS)] for head in range(n_heads)]
    draw_layer(tmp_path / "a.png", maps, words(length), names=names, labels=labels)
    draw_layer(tmp_path / "a.png", maps, tokens((HOSTILE * 3)[:length]), names=names)
    for figure in sheets:
        assert_tidy(figure)
    assert {*names, *labels} <= {text.get_text() for text in texts(sheets[0])}


@pytest.mark.parametrize(("n_layers", "n_heads"), [(6, 12), (30, 9), (80, 64), (3, 4)])
def test_no_label_of_the_map_lies_on_another(
    tmp_path: Path, sheets: list[Figure], n_layers: int, n_heads: int
) -> None:
    draw_head_map(tmp_path / "a.png", *head_map(n_layers, n_heads), title="gpt2")
    assert_tidy(sheets[0])


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf", ".PNG"])
def test_tokens_are_literal_and_none_warns(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    draw_head(path, pattern(15), tokens(HOSTILE), title="$x$ \\ 東 _")
    starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert path.read_bytes().startswith(starts[ending.lower()])


def test_every_token_is_named_once_on_each_axis(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    draw_head(path, pattern(15), tokens(HOSTILE), title="$x$")
    shown = written(path)
    replaced = {"·東京": "·U+6771 U+4EAC", "🤗": "U+1F917", "a" * 40: "a" * 17 + "…"}
    known = sheet._known_signs()
    for word in HOSTILE:
        drawn = word if all(ord(sign) in known for sign in word) else replaced[word]
        drawn = replaced.get(word, drawn) if len(word) == 40 else drawn
        assert shown.count(drawn) == 2 + (drawn == "$x$"), word
    assert {"key (is read)", "query (reads)", "weight", "… label shortened"} <= set(shown)


def test_thinned_labels_are_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    draw_head(path, pattern(200), words(200))
    shown = written(path)
    assert "one token in 3 is named" in shown
    named = [f"·word{index}" for index in range(0, 200, 3)]
    assert sorted(text for text in shown if "·" in text) == sorted(2 * named)
    draw_head(path, pattern(40), words(40))
    assert not any("named" in text for text in written(path))


def test_more_tokens_than_pixels_are_pooled_and_it_is_said(
    tmp_path: Path, sheets: list[Figure]
) -> None:
    weights = np.zeros((1500, 1500), np.float32)
    weights[:, 777] = 1
    draw_head(tmp_path / "a.png", weights, words(1500))
    assert any("1500 × 1500 weights as" in text.get_text() for text in texts(sheets[0]))
    image = imread(tmp_path / "a.png")
    assert (image[600, :, :3].sum(axis=-1) < 1).sum() >= 1  # the one dark column is still there


def test_a_pixel_has_the_colour_of_its_weight(tmp_path: Path, sheets: list[Figure]) -> None:
    weights, path = pattern(9), tmp_path / "a.png"
    draw_head(path, weights, words(9))
    for query, key in [(0, 0), (5, 2), (8, 8), (0, 8)]:
        assert pixel(path, sheets[0], 1, key, query) == shade(float(weights[query, key]))


def test_heads_of_a_layer_share_one_scale(tmp_path: Path, sheets: list[Figure]) -> None:
    path = tmp_path / "a.png"
    maps = np.stack([np.eye(6), np.full((6, 6), 1 / 6)])
    draw_layer(path, maps, words(6), names=["0.0", "0.1"])
    assert pixel(path, sheets[0], 1, 3, 3) == shade(1.0)
    assert pixel(path, sheets[0], 2, 3, 3) == shade(1 / 6)


def test_the_map_has_layer_0_at_the_bottom_and_the_hues_of_the_palette(
    tmp_path: Path, sheets: list[Figure]
) -> None:
    labels: list[list[tuple[str, ...]]] = [
        [("induction",), (), ("local", "broad")],
        [("unclassified",), ("resting",), ("coreference",)],
    ]
    scores = np.array([[1.0, np.nan, 0.5], [0.9, 0.0, 0.7]])
    path = tmp_path / "a.png"
    draw_head_map(path, labels, scores)
    near = 0.12  # of a cell, from its lower left corner: beside the letters
    for (layer, head), expected in {
        (0, 0): faded("induction", 1.0),
        (0, 1): faded("unclassified", 0),
        (0, 2): faded("local", 0.5),
        (1, 0): faded("unclassified", 0.9),
        (1, 1): faded("resting", 0.0),
        (1, 2): faded("coreference", 0.7),
    }.items():
        assert pixel(path, sheets[0], 1, head + near, layer + near) == expected
    assert pixel(path, sheets[0], 1, 2.9, 0.12) == faded("broad", 0.5)
    corners = sheets[0].axes[1].transData.transform([(0, 0), (0, 1), (1, 0)])
    assert corners[1][1] > corners[0][1]  # up the page
    assert corners[2][0] > corners[0][0]


def test_the_legend_lists_what_occurs_with_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    labels, scores = head_map(12, 12)
    labels = [[tuple(set(held) - {"broad", "local"}) for held in row] for row in labels]
    draw_head_map(path, labels, scores)
    shown = written(path)
    flat = [held for row in labels for held in row]
    for label in LABELS:
        count = sum((label in held) or (label == "unclassified" and not held) for held in flat)
        if count:
            assert shown[shown.index(label) + 1] == str(count)
        else:
            assert label not in shown


def test_a_map_without_any_label_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    draw_head_map(path, [[(), ()]], np.zeros((1, 2)))
    assert "score" not in written(path)


@pytest.mark.parametrize("name", ["a.jpg", "a", "a.png.txt", ".svg"])
def test_another_ending_is_refused_and_the_three_are_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"\.png, \.svg or \.pdf"):
        draw_head(tmp_path / name, pattern(3), words(3))
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="Cannot write"):
        draw_head(tmp_path / "no" / "a.png", pattern(3), words(3))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
def test_the_same_input_gives_the_same_file_whatever_the_users_style(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / f"a{ending}", tmp_path / f"b{ending}"
    draw_head(first, pattern(15), tokens(HOSTILE))
    user = {"text.usetex": True, "axes.facecolor": "black", "font.size": 20, "savefig.dpi": 30}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    with matplotlib.rc_context(user):
        draw_head(second, pattern(15), tokens(HOSTILE))
        assert matplotlib.rcParams["font.size"] == 20
    assert first.read_bytes() == second.read_bytes()


def test_another_installed_font_is_used_for_what_ours_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign = "\U0001d4d0"  # in STIX, not in DejaVu Sans
    caches = (sheet._fallbacks, sheet._known_signs, sheet.text_width)
    try:
        for fonts, shown in (((), "U+1D4D0"), (("STIXGeneral",), sign)):
            monkeypatch.setattr(sheet, "_FALLBACKS", fonts)
            for cache in caches:
                cache.cache_clear()
            draw_head(tmp_path / "a.svg", pattern(2), tokens(["a", sign]))
            assert shown in written(tmp_path / "a.svg")
    finally:
        for cache in caches:
            cache.cache_clear()


def test_pyplot_is_never_imported(tmp_path: Path) -> None:
    code = (
        "import sys, numpy, pathlib\n"
        "from attnscope.render.figures import draw_head\n"
        "from attnscope.types import Token\n"
        f"draw_head(pathlib.Path({str(tmp_path / 'a.png')!r}), numpy.eye(1), "
        "[Token(0, 0, 'a', False)])\n"
        "print(sorted({'matplotlib.pyplot', 'torch', 'pandas'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (out.stdout, out.stderr) == ("[]\n", "")
