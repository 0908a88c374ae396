"""The figure of accuracies: every name is drawn, none on top of another, and rules stand apart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attnscope.errors import UsageError
from attnscope.render.accuracy import MOST, Mark, draw_accuracies

RULES = {"nearest candidate": 0.5, "first candidate": 0.5, "more often named": 0.59, "$x$_": 0.61}


def drawn(path: Path, marks: list[Mark], rules: dict[str, float] = RULES) -> list[str]:
    """The texts of the figure."""
    draw_accuracies(path, marks, rules, title="<b>$a$</b>")
    found = re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text())
    return [text.replace("&lt;", "<").replace("&gt;", ">") for text in found]


def heads(n: int) -> list[Mark]:
    """So many heads, the best first."""
    return [Mark(f"{k}.0", "unclassified", 0.9 - k / 200, 0.85 - k / 200, None) for k in range(n)]


def test_heads_and_rules_are_named(tmp_path: Path) -> None:
    marks = [
        Mark("3.1", "coreference", 0.8, 0.75, 0.84),
        Mark("0.2", "unclassified", 0.4, None, None),
    ]
    texts = drawn(tmp_path / "x.svg", marks)
    assert {"3.1", "0.2", "chance .500", "more often named .590", "$x$_ .610", "<b>$a$</b>"} <= {
        *texts
    }


def test_many_heads_are_cut_and_said_to_be(tmp_path: Path) -> None:
    texts = drawn(tmp_path / "x.svg", heads(MOST + 20))
    assert f"{MOST - 1}.0" in texts
    assert f"{MOST}.0" not in texts
    assert any(text.startswith("20 more heads lie between") for text in texts)


def test_rules_with_one_score_stand_on_lines_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "x.svg"
    draw_accuracies(path, heads(3), RULES)
    text = path.read_text()
    places = []
    for name in ("nearest candidate .500", "first candidate .500", "chance .500"):
        before = text[: text.index(f">{name}<")]
        places.append(re.findall(r'\by="([-\d.]+)"|translate\([-\d.]+ ([-\d.]+)\)', before)[-1])
    assert len(set(places)) == 3


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.png, \.svg or \.pdf"):
        draw_accuracies(tmp_path / "x.bmp", heads(1), RULES)
