"""What feeds the heads that copy: those below that look a fixed way back, switched off to see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnscope.attention.ablation import Ablation
from attnscope.attention.lens import Lens
from attnscope.experiments.ablation_result import Control
from attnscope.experiments.head_sets import by_layer, control_sets
from attnscope.models.load import Model
from attnscope.scoring.estimate import finite
from attnscope.scoring.profile import Copiers, shift_name
from attnscope.scoring.reference import mean_outputs
from attnscope.scoring.scan import BATCH_TOKENS
from attnscope.scoring.stimuli import RepeatedTokens
from attnscope.scoring.sums import from_lens
from attnscope.types import Head, Progress, TokenBatch, no_progress

SEQUENCES = 4
CONTROLS = 5  # random sets to compare with
COSTS = 0.1  # of a head's share: what loses less without a feeder does not need it

Shares = Mapping[Head, float]


@dataclass(frozen=True)
class Feeding:
    """Heads below that look the way back which heads above need, and what those have without.

    clean, without and alone[candidate] are each head's share of attention on its targets: as it is,
    with all candidates off, with one. control: the mean of the shares without random sets of as
    many heads of the same layers.
    """

    candidates: tuple[Head, ...]
    clean: Shares
    without: Shares
    alone: Mapping[Head, Shares]
    control: Control | None

    @property
    def feeds(self) -> bool:
        """Do the heads above lose more than half of what they have, taken together?"""
        return mean(self.without) < mean(self.clean) / 2

    def of(self, head: Head) -> list[Head]:
        """The candidates that alone cost a head above a tenth of its share."""
        least = (1 - COSTS) * self.clean[head]
        return [one for one in self.candidates if self.alone[one][head] < least]

    @property
    def feeders(self) -> list[Head]:
        """The candidates that some head needs, the dearest first.

        All of them where they are needed, but none alone: each stands in for the others.
        """
        needed = {one for head in self.clean for one in self.of(head)}
        if not needed and self.feeds:
            needed = set(self.candidates)
        return sorted(needed, key=lambda one: mean(self.alone[one]))

    def to_json(self) -> dict[str, Any]:
        """The `feeding` entry of a document."""
        return {
            "heads": [str(head) for head in self.feeders],
            "candidates": [str(head) for head in self.candidates],
            "feeds": self.feeds,
            "prefix_matching": {
                str(head): {
                    "clean": finite(self.clean[head]),
                    "without": finite(value),
                    "alone": {str(one): finite(left[head]) for one, left in self.alone.items()},
                }
                for head, value in self.without.items()
            },
            "control": None if self.control is None else self.control.to_json(),
        }


def mean(shares: Shares) -> float:
    """The mean share of some heads."""
    return sum(shares.values()) / len(shares)


def feeding(
    model: Model,
    stimulus: RepeatedTokens,
    copiers: Copiers,
    found: Sequence[Head],
    seed: int = 0,
    progress: Progress = no_progress,
) -> Feeding | None:
    """The share of attention that each of `found` has on its targets, with and without feeders.

    Heads that are off add their mean over unrepeated tokens instead. None where no head looks the
    way back that is needed.
    """
    candidates = sorted({h for head in found for h in copiers.fed_by(head).get("key", [])})
    if not candidates:
        return None
    draws, _ = control_sets(model, candidates, CONTROLS, seed)
    sets = [candidates, *([one] for one in candidates), *draws]
    shifts = {head: int(copiers.shifts[head.layer, head.head]) for head in found}
    clean, *rest = _shares(model, stimulus, sets, shifts, progress)
    joint, alone, random = rest[0], rest[1 : 1 + len(candidates)], rest[1 + len(candidates) :]
    return Feeding(
        tuple(candidates),
        clean,
        joint,
        dict(zip(candidates, alone, strict=True)),
        Control.of(np.array([mean(shares) for shares in random])),
    )


def _shares(
    model: Model,
    stimulus: RepeatedTokens,
    sets: Sequence[Sequence[Head]],
    shifts: Mapping[Head, int],
    progress: Progress,
) -> list[Shares]:
    """Each head's share on the keys of its shift: of the clean run, and without each set."""
    texts = stimulus.repeated().rows(0, SEQUENCES)
    means = mean_outputs(
        model, stimulus.control(), max(1, BATCH_TOKENS // stimulus.batch.ids.shape[1])
    )
    room = max(1, BATCH_TOKENS // texts.ids.numel() - 1)
    found: list[Shares] = []
    for start in range(0, len(sets), room):
        progress("switching off what may feed them", start, len(sets))
        off = tuple(by_layer(heads) for heads in sets[start : start + room])
        runs = 1 + len(off)
        batch = _again(texts, runs)
        asked = {shift_name(k): stimulus.ahead(batch, 1 + k) for k in set(shifts.values())}
        lens = Lens(asked, ablation=Ablation("mean", off, means))
        model.run(batch, lens)
        sums = from_lens(lens, model.shape.n_layers)
        for run in range(1 if found else 0, runs):  # the clean run is the same in each part
            part = sums.take(range(run * len(texts), (run + 1) * len(texts)))
            shares = {}
            for head, k in shifts.items():
                one = part.of(shift_name(k))
                on_targets, rows = one.raw[:, head.layer, head.head], one.rows[:, head.layer]
                shares[head] = float(on_targets.sum() / rows.sum())
            found.append(shares)
    return found


def _again(batch: TokenBatch, times: int) -> TokenBatch:
    parts = (batch.ids, batch.valid, batch.special, batch.punctuation)
    return TokenBatch(*(part.repeat(times, 1) for part in parts))
