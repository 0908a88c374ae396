"""Who shares, drawn: every head stands over the key/value head that it reads."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.render.wiring import wiring

HEADS = [(h, g) for h in (1, 2, 3, 8, 12, 25, 32, 128) for g in range(1, h + 1) if h % g == 0]


@pytest.mark.parametrize(
    ("heads", "drawn"),
    [
        ((4, 2), ("0 1   2 3", "╰0╯   ╰1╯")),
        ((4, 4), ("0 1 2 3", "0 1 2 3")),
        ((4, 1), ("0 1 2 3", "╰──0──╯")),
        ((1, 1), ("0", "0")),
        ((16, 2), ("0 1 2 … 7   8 9 10 … 15", "╰───0───╯   ╰────1────╯")),
    ],
)
def test_drawings(heads: tuple[int, int], drawn: tuple[str, str]) -> None:
    assert wiring(*heads, width=60) == drawn


@given(st.sampled_from(HEADS), st.integers(26, 90))
def test_a_head_stands_over_what_it_reads_and_the_last_is_there(
    heads: tuple[int, int], width: int
) -> None:
    n_heads, n_kv_heads = heads
    above, below = wiring(n_heads, n_kv_heads, width)
    assert max(len(above), len(below)) <= width
    spans = [(m.start(), m.end(), m[0]) for m in re.finditer(r"╰─*\d+─*╯|\d+", below)]
    seen = []
    for start, end, name in spans:
        over = [int(number) for number in re.findall(r"\d+", above[start:end])]
        shared = int(name.strip("╰─╯"))
        assert over
        assert {head // (n_heads // n_kv_heads) for head in over} == {shared}
        seen += over
    assert seen == sorted(set(seen))
    assert seen[0] == 0
    assert seen[-1] == n_heads - 1
    assert ("…" in above) == (len(seen) < n_heads)
