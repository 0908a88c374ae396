"""A mean over texts with its interval: texts are resampled, never tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnscope.scoring.estimate import finite, resamples
from attnscope.scoring.sums import Floats


@dataclass(frozen=True)
class Mean:
    """A mean and its 95 % interval, each of any shape; bounds are NaN where there is one text."""

    value: Floats
    low: Floats
    high: Floats

    def to_json(self) -> dict[str, float | None]:
        """Of a single number."""
        return {name: finite(float(getattr(self, name))) for name in ("value", "low", "high")}


def mean_over_texts(totals: Floats, counts: Floats, seed: int = 0) -> Mean:
    """Sums per text (N, ...) over how many rows they were (N,): the mean over all rows."""
    shape = totals.shape[1:]
    flat = totals.reshape(len(totals), -1)
    with np.errstate(invalid="ignore", divide="ignore"):
        value = (flat.sum(0) / counts.sum()).reshape(shape)
        if len(totals) < 2 or np.isnan(value).all():
            return Mean(value, np.full(shape, np.nan), np.full(shape, np.nan))
        draws = resamples(len(totals), seed)  # (draws, N)
        means = draws @ flat / (draws @ counts)[:, None]
    low, high = np.nanpercentile(means, [2.5, 97.5], axis=0)
    return Mean(value, low.reshape(shape), high.reshape(shape))
