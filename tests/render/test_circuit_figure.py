"""The figure of circuits: which layers it draws."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from attnscope.render.circuit_figure import _layers
from attnscope.types import Head


def test_a_deep_model_is_drawn_where_its_pairs_are() -> None:
    def layers(n_layers: int, *pairs: tuple[int, int]) -> range:
        top = [SimpleNamespace(source=Head(a, 0), target=Head(b, 0)) for a, b in pairs]
        return _layers(cast(Any, SimpleNamespace(model={"n_layers": n_layers}, top=top)))

    assert layers(12, (3, 4)) == range(12)
    assert layers(30, (16, 18), (23, 29)) == range(15, 30)
    assert layers(30, (0, 5)) == range(7)
