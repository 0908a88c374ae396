"""Who shares, drawn in two lines: query heads above, the key/value head that each reads below."""

from __future__ import annotations

_APART = "   "


def wiring(n_heads: int, n_kv_heads: int, width: int) -> tuple[str, str]:
    """As many groups as fit `width` cells, the last one among them; left out is what "…" says.

    `0 1 2 3   4 5 6 7   …   28 29 30 31` over `╰──0──╯   ╰──1──╯   …   ╰────7────╯`.
    """
    drawn = ("", "")
    for first, heads in ((3, 4), (2, 4), (1, 4), (2, 2), (1, 2), (1, 0)):
        drawn = _draw(n_heads, n_kv_heads, first, heads)
        if max(map(len, drawn)) <= width:
            break
    return drawn


def _draw(n_heads: int, n_kv_heads: int, first: int, heads: int) -> tuple[str, str]:
    size = n_heads // n_kv_heads
    if size == 1:
        first *= 4  # single heads take little room
    shown = range(n_kv_heads)
    groups = list(shown) if n_kv_heads <= first + 1 else [*shown[:first], None, shown[-1]]
    above, below = [], []
    for group in groups:
        if group is None:
            above.append("…")
            below.append("…")
            continue
        queries = _queries(range(group * size, (group + 1) * size), heads)
        above.append(queries)
        below.append(_under(str(group), len(queries), alone=size == 1))
    apart = " " if size == 1 else _APART
    return apart.join(above), apart.join(below).rstrip()


def _queries(heads: range, most: int) -> str:
    if len(heads) <= max(most, 2):
        return " ".join(map(str, heads))
    front = " ".join(map(str, heads[: most - 1])) if most > 1 else str(heads[0])
    return f"{front} … {heads[-1]}"


def _under(name: str, width: int, *, alone: bool) -> str:
    """The key/value head's number in a brace as wide as its query heads."""
    if alone or width < len(name) + 2:
        return name.center(width)
    return f"╰{name.center(width - 2, '─')}╯"
