"""The figures of compare are read back: lines, bars, names and their places."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from attnscope.errors import UsageError
from attnscope.experiments.compare import compare
from attnscope.models.shapes import known_shape
from attnscope.render.memory import draw_compare
from attnscope.render.sheet import Sheet
from tests.render.test_figures import assert_tidy, written


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


@pytest.mark.parametrize(
    ("names", "options"),
    [
        ((), {}),
        ((), {"context": "128k"}),
        ((), {"context": 1}),
        ((), {"context": 3000, "batch": 7}),
        ((), {"context": "1e18", "batch": "1e18"}),
        (("gemma-3-27b",), {"kv_heads": "16,8,4,2,1", "context": "128k"}),
        (("deepseek-v3",), {"kv_heads": "128,64,32,16,8,4,2,1"}),
        (("gpt2", "bert-base", "llama-2-7b", "mistral-7b-v0.1"), {"context": "32k"}),
        (("gpt2", "deepseek-v2-lite"), {"kv_heads": "4", "context": "1e18"}),
    ],
)
def test_no_name_lies_on_another(
    names: tuple[str, ...], options: dict[str, str], tmp_path: Path, sheets: list[Figure]
) -> None:
    draw_compare(tmp_path / "a.png", compare(*names, **options))  # type: ignore[arg-type]
    assert_tidy(sheets[0])


def test_lines_run_through_the_bytes(tmp_path: Path, sheets: list[Figure]) -> None:
    result = compare("gemma-2-9b", context="32k")
    draw_compare(tmp_path / "a.png", result)
    lines = sheets[0].axes[1].get_lines()
    solid = [line for line in lines if line.get_linestyle() == "-"]
    dashed = [line for line in lines if line.get_linestyle() != "-"]
    assert len(solid) == len(dashed) == 3
    for row, needed, reserved in zip(result.rows, solid, dashed, strict=True):
        assert needed.get_xdata()[-1] == reserved.get_xdata()[-1] == 15
        assert needed.get_ydata()[-1] == pytest.approx(math.log2(row.kv_bytes))
        assert reserved.get_ydata()[-1] == pytest.approx(math.log2(row.kv_bytes_allocated))
        assert needed.get_color() == reserved.get_color()
    assert len({line.get_color() for line in solid}) == 3


def test_nothing_is_dashed_where_nothing_more_is_reserved(
    tmp_path: Path, sheets: list[Figure]
) -> None:
    draw_compare(tmp_path / "a.svg", compare())
    assert {line.get_linestyle() for line in sheets[0].axes[1].get_lines()} == {"-"}
    shown = written(tmp_path / "a.svg")
    assert {"MHA", "GQA-8 *", "MQA", "8k", "4 GiB", "*: the model as it is"} <= set(shown)
    assert {"tokens, log scale", "KV cache, log scale"} <= set(shown)
    assert not any("dashed" in text for text in shown)


def test_bars_are_as_long_as_the_bytes(tmp_path: Path, sheets: list[Figure]) -> None:
    result = compare("llama-2-7b", "gpt2", "mistral-7b-v0.1", "bert-base", context="32k")
    draw_compare(tmp_path / "a.svg", result)
    bars = [patch.get_width() for patch in sheets[0].axes[1].patches]
    top = max(row.kv_bytes_allocated for row in result.rows)
    assert bars == [
        part / top for row in result.rows for part in (row.kv_bytes_allocated, row.kv_bytes)
    ]
    shown = written(tmp_path / "a.svg")
    assert "512 MiB, 4.00 GiB reserved" in shown
    assert "no cache" in shown
    assert "llama-2-7b  MHA" in shown


def test_one_context_is_points(tmp_path: Path, sheets: list[Figure]) -> None:
    draw_compare(tmp_path / "a.svg", compare("gemma-2-9b", context=17))
    axes = sheets[0].axes[1]
    assert [line.get_marker() for line in axes.get_lines()] == ["o"] * 6
    low, high = axes.get_xlim()
    assert low < math.log2(17) < high
    assert "17" in written(tmp_path / "a.svg")
    assert any("open: what an engine reserves" in text for text in written(tmp_path / "a.svg"))


def test_a_long_name_gives_way_to_the_rest(tmp_path: Path, sheets: list[Figure]) -> None:
    long = replace(known_shape("llama-3-8b"), name="a/very/long/name/" * 20)
    draw_compare(tmp_path / "a.svg", compare(shapes=[long]))
    titles = [t for t in written(tmp_path / "a.svg") if t.endswith("name/, batch 1, bfloat16")]
    assert titles[0].startswith("…")
    draw_compare(tmp_path / "b.svg", compare("gpt2", shapes=[long], context="1k,4k"))
    shown = written(tmp_path / "b.svg")
    assert any(text.endswith("…  GQA-8") for text in shown)
    assert "KV cache at 4 096 tokens (the longest asked for), batch 1, bfloat16" in shown
    for sheet in sheets:
        assert_tidy(sheet)


def test_what_keeps_no_cache_is_not_drawn(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="keeps no cache"):
        draw_compare(tmp_path / "a.png", compare("bert-base"))
    with pytest.raises(UsageError, match=r"\.png, \.svg or \.pdf"):
        draw_compare(tmp_path / "a.gif", compare())
    assert not list(tmp_path.iterdir())
