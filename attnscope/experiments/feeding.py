"""What feeds the heads that copy: those below that look a fixed way back, switched off to see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from attnscope.attention.ablation import Ablation
from attnscope.attention.lens import Lens
from attnscope.experiments.head_sets import by_layer
from attnscope.models.load import Model
from attnscope.scoring.estimate import finite
from attnscope.scoring.profile import Copiers, shift_name
from attnscope.scoring.reference import mean_outputs
from attnscope.scoring.scan import BATCH_TOKENS
from attnscope.scoring.stimuli import RepeatedTokens
from attnscope.scoring.sums import concatenate, from_lens
from attnscope.types import Head, Progress, TokenBatch, no_progress

SEQUENCES = 8


@dataclass(frozen=True)
class Feeding:
    """Heads below that look a fixed way back, and the prefix matching with and without them."""

    feeders: tuple[Head, ...]
    clean: Mapping[Head, float]
    without: Mapping[Head, float]

    @property
    def feeds(self) -> bool:
        """Do the heads above lose more than half of what they have, taken together?"""
        return sum(self.without.values()) < sum(self.clean.values()) / 2

    def to_json(self) -> dict[str, Any]:
        """The `feeding` entry of a document."""
        return {
            "heads": [str(head) for head in self.feeders],
            "feeds": self.feeds,
            "prefix_matching": {
                str(head): {"clean": finite(self.clean[head]), "without": finite(value)}
                for head, value in self.without.items()
            },
        }


def feeding(
    model: Model,
    stimulus: RepeatedTokens,
    copiers: Copiers,
    found: list[Head],
    progress: Progress = no_progress,
) -> Feeding | None:
    """The share of attention that each of `found` has on its targets, as it is and without feeders.

    Feeders add their mean over unrepeated tokens instead. None where there is no feeder.
    """
    feeders = sorted(
        {h for head in found for heads in copiers.fed_by(head).values() for h in heads}
    )
    if not feeders:
        return None
    shifts = {head: int(copiers.shifts[head.layer, head.head]) for head in found}
    rows = max(1, BATCH_TOKENS // stimulus.batch.ids.shape[1])
    means = mean_outputs(model, stimulus.control(), rows)
    ablation = Ablation("mean", (by_layer(feeders),), means)
    repeated, n = stimulus.repeated(), min(SEQUENCES, stimulus.sequences)
    parts = []
    for start in range(0, n, max(1, rows // 2)):
        progress("switching off what feeds them", start, n)
        twice = _twice(repeated.rows(start, min(n, start + max(1, rows // 2))))
        asked = {shift_name(k): stimulus.ahead(twice, 1 + k) for k in set(shifts.values())}
        lens = Lens(asked, ablation=ablation)
        model.run(twice, lens)
        sums = from_lens(lens, model.shape.n_layers)
        half = len(sums) // 2
        parts.append((sums.take(range(half)), sums.take(range(half, 2 * half))))
    clean, without = (concatenate(side) for side in zip(*parts, strict=True))

    def share(sums: Any, head: Head) -> float:
        one = sums.of(shift_name(shifts[head]))
        return float(one.raw[:, head.layer, head.head].sum() / one.rows[:, head.layer].sum())

    return Feeding(
        tuple(feeders),
        {head: share(clean, head) for head in found},
        {head: share(without, head) for head in found},
    )


def _twice(batch: TokenBatch) -> TokenBatch:
    parts = (batch.ids, batch.valid, batch.special, batch.punctuation)
    return TokenBatch(*(torch.cat([part, part]) for part in parts))
