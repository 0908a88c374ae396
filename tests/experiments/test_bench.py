"""bench measures every way, and its ratios are to the plain forward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from attnscope.errors import UsageError
from attnscope.experiments.bench import WAYS, bench


def test_every_way_is_measured(checkpoint: Callable[[str], Path]) -> None:
    result = bench(str(checkpoint("llama-gqa")), [16], rounds=1)
    assert [row.what for row in result.rows] == list(WAYS)
    plain = result.rows[0]
    assert plain.time_ratio == plain.memory_ratio == 1
    for row in result.rows:
        assert row.seconds > 0
        assert row.memory_ratio == row.peak_bytes / plain.peak_bytes
    assert result.to_json()["schema"] == "attnscope.bench/1"


def test_a_text_longer_than_the_model_is_told(checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(UsageError, match="128 positions"):
        bench(str(checkpoint("bert")), [512], rounds=1)
