"""Sums and scores as plain arrays, to be kept in a file, and back again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnscope.scoring.estimate import NUMBERS, Scores
from attnscope.scoring.store import Arrays
from attnscope.scoring.sums import HeadSums


def pack_sums(sums: HeadSums) -> Arrays:
    """Sums as arrays by name."""
    return {"names": np.array(sums.names), **{f"sums {k}": a for k, a in sums.arrays().items()}}


def pack_scores(name: str, scores: Mapping[str, Scores]) -> Arrays:
    """Scores by role as one table (roles, numbers, L, H), and the roles."""
    table = [[getattr(one, number) for number in (*NUMBERS, "n")] for one in scores.values()]
    return {f"{name} roles": np.array(list(scores)), name: np.array(table, dtype=float)}


def unpack_scores(name: str, arrays: Mapping[str, Any]) -> dict[str, Scores]:
    """What pack_scores packed."""
    found = {}
    for role, table in zip(arrays[f"{name} roles"].tolist(), arrays[name], strict=True):
        numbers = dict(zip(NUMBERS, table, strict=False))
        found[role] = Scores(**numbers, n=table[-1].astype(np.int64))
    return found


def unpack_sums(arrays: Mapping[str, Any]) -> HeadSums:
    """What pack_sums packed."""
    packed = {k.removeprefix("sums "): a for k, a in arrays.items() if k.startswith("sums ")}
    return HeadSums(tuple(arrays["names"].tolist()), **packed)
