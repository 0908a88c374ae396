"""What `induction` returns: heads that copy, how surely, what feeds them, what breaks without."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import attnscope
from attnscope.experiments.ablation_result import AblationResult
from attnscope.experiments.feeding import Feeding
from attnscope.scoring.estimate import NUMBERS, Scores, finite
from attnscope.scoring.profile import SHIFTED, SHIFTS, Copiers, heads_where, shift_name
from attnscope.scoring.resampling import Mean
from attnscope.scoring.stimuli import RepeatedTokens
from attnscope.scoring.sums import Floats
from attnscope.types import Head

if TYPE_CHECKING:
    from pandas import DataFrame

FALLS = 0.1  # of the first half's loss: a smaller fall is none
COUNTS = 0.1  # logits: less changes the right token's odds by under a tenth
COPYING = ("induction", SHIFTED, "anti-induction")  # labels of heads that look for what comes next


@dataclass(frozen=True)
class Loss:
    """Nats per token: on the first copy, on the later ones, and there without any repeat.

    `fall` is first less second; by_position (S·R - 1,) is the mean over texts.
    """

    first: Mean
    second: Mean
    unrepeated: Mean
    fall: Mean
    by_position: Floats
    by_position_unrepeated: Floats

    @property
    def falls(self) -> bool:
        """Does the model copy? The fall is a tenth of the first half's loss, for sure."""
        low = self.fall.value if np.isnan(self.fall.low) else self.fall.low
        return bool(low > 0 and self.fall.value >= FALLS * self.first.value)

    def to_json(self) -> dict[str, Any]:
        """The `loss` entry of a document."""
        return {
            "first": finite(float(self.first.value)),
            "second": finite(float(self.second.value)),
            "unrepeated": finite(float(self.unrepeated.value)),
            "fall": self.fall.to_json(),
            "by_position": [finite(value) for value in self.by_position],
        }


@dataclass(frozen=True)
class Run:
    """Every head at one length. Arrays are (L, H).

    holds[label]: where the label's rule holds on these tokens. copying is None where heads have no
    direct path to the logits.
    """

    stimulus: RepeatedTokens
    about: dict[str, Any]
    scores: dict[str, Scores]
    control: dict[str, Scores]
    copiers: Copiers
    holds: dict[str, NDArray[np.bool_]]
    copying: Mean | None
    loss: Loss
    conventions: dict[str, Floats]

    def label(self, head: Head) -> str | None:
        """What the head is called: one label, None for none."""
        at = head.layer, head.head
        shift = self.copiers.shifts[at]
        if not np.isnan(shift):
            if self._negative(head):
                return "anti-induction"
            return SHIFTED if shift else "induction"
        return next((label for label, holds in self.holds.items() if holds[at]), None)

    def _negative(self, head: Head) -> bool:
        """Does it lower the right token's logit, for sure and by more than nothing?"""
        if self.copying is None:
            return False
        at = head.layer, head.head
        high = self.copying.value if np.isnan(self.copying.high[at]) else self.copying.high
        return bool(high[at] < 0 and self.copying.value[at] <= -COUNTS)

    def labelled(self, *labels: str) -> list[Head]:
        """The heads with one of these labels, highest prefix matching first."""
        heads = heads_where(np.ones_like(self.copiers.shifts, dtype=bool))
        having = [head for head in heads if self.label(head) in labels]
        return sorted(having, key=lambda head: -self.matching(head))

    @property
    def found(self) -> list[Head]:
        """The heads that copy: induction and shifted induction."""
        return self.labelled("induction", SHIFTED)

    def shift(self, head: Head) -> int:
        """Where it looks, past an earlier copy's next token; 0 for a head without such a label."""
        shift = self.copiers.shifts[head.layer, head.head]
        return 0 if np.isnan(shift) else int(shift)

    def matching(self, head: Head) -> float:
        """Its share of attention on its own targets: those of its shift."""
        name = shift_name(self.shift(head)) if self.shift(head) else "induction"
        return float(self.scores[name].raw[head.layer, head.head])

    def profile(self, head: Head) -> dict[int, float]:
        """Its mean weight at each shift, less that on unrepeated tokens; NaN where none is."""
        at = head.layer, head.head
        return {
            k: float(
                self.scores[shift_name(k)].raw[at]
                - np.nan_to_num(self.control[shift_name(k)].raw[at])
            )
            for k in SHIFTS
        }


@dataclass(frozen=True)
class InductionResult:
    """Every head at each length; labels and the rest are those at the first."""

    model: dict[str, Any]
    settings: dict[str, Any]
    runs: tuple[Run, ...]
    feeding: Feeding | None
    ablation: AblationResult | None
    asked_to_ablate: bool = False
    story: tuple[str, ...] = ()

    @property
    def first(self) -> Run:
        """The run that labels come from."""
        return self.runs[0]

    @property
    def heads(self) -> list[Head]:
        """Every head, in order."""
        return heads_where(np.ones_like(self.first.copiers.shifts, dtype=bool))

    def fed_by(self, run: Run, head: Head) -> dict[str, list[Head]]:
        """Heads below that hand on what this head needs: its keys, and what it copies (values).

        Of those that serve its keys only the ones that alone cost it a tenth of its share. Measured
        at the first length, and empty for others.
        """
        if run is not self.first:
            return {}
        found = run.copiers.fed_by(head)
        if self.feeding is not None and head in self.feeding.clean:
            found["key"] = self.feeding.of(head)
        return found

    def with_story(self, story: tuple[str, ...]) -> InductionResult:
        """The same with sentences that tell it."""
        return replace(self, story=story)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know to take the numbers rightly."""
        notes = []
        for run in self.runs:
            if run.stimulus.shortened_from:
                notes.append(
                    f"Shortened from {run.stimulus.shortened_from} to {run.stimulus.length} random "
                    f"tokens: {run.stimulus.limited_by}."
                )
        if self.first.stimulus.sequences == 1:
            notes.append("One sequence is weak evidence: its scores have no interval.")
        if self.first.copying is None:
            notes.append(
                "Copying is not measured: no direct path from the heads to the logits was found "
                "(models that norm their sums have none)."
            )
        if self.asked_to_ablate and not self.first.found:
            notes.append("Nothing was switched off: no head is labelled.")
        return tuple(notes)

    def to_json(self) -> dict[str, Any]:
        """The `attnscope.induction/1` document."""
        return {
            "schema": "attnscope.induction/1",
            "attnscope": attnscope.__version__,
            "model": self.model,
            "settings": self.settings,
            "stimulus": self.first.about,
            "loss": self.first.loss.to_json(),
            "copies": self.first.loss.falls,
            "heads": [self._entry(self.first, head) for head in self.heads],
            "lengths": [
                {
                    "stimulus": run.about,
                    "loss": run.loss.to_json(),
                    "heads": [self._entry(run, head) for head in self.heads],
                }
                for run in self.runs[1:]
            ],
            "feeding": None if self.feeding is None else self.feeding.to_json(),
            "ablation": None if self.ablation is None else _ablation_json(self.ablation),
            "story": list(self.story),
            "notes": list(self.notes),
        }

    def _entry(self, run: Run, head: Head) -> dict[str, Any]:
        at = head.layer, head.head
        size = int(self.model["n_heads"] // self.model["n_kv_heads"])
        copying = run.copying
        shifted = not np.isnan(run.copiers.shifts[at])
        return {
            "layer": head.layer,
            "head": head.head,
            "kv_head": head.head // size,
            "prefix_matching": _numbers(run.scores["induction"], head),
            "unrepeated": finite(float(run.control["induction"].raw[at])),
            "copying": None if copying is None else finite(float(copying.value[at])),
            "copying_low": None if copying is None else finite(float(copying.low[at])),
            "copying_high": None if copying is None else finite(float(copying.high[at])),
            "shift": run.shift(head) if shifted else None,
            "profile": {str(k): finite(w) for k, w in run.profile(head).items()},
            "previous_token": _numbers(run.scores["previous_token"], head),
            "duplicate_token": _numbers(run.scores["duplicate_token"], head),
            "conventions": {k: finite(float(values[at])) for k, values in run.conventions.items()},
            "fed_by": {
                side: [str(feeder) for feeder in heads]
                for side, heads in self.fed_by(run, head).items()
            },
            "label": run.label(head),
        }

    def to_frame(self) -> DataFrame:
        """One row per length and head."""
        from pandas import DataFrame

        rows = []
        for run in self.runs:
            for head in self.heads:
                entry = self._entry(run, head)
                row: dict[str, Any] = {"length": run.stimulus.length}
                for name, value in entry.items():
                    if name == "profile":
                        row |= {f"shift_{k}": weight for k, weight in value.items()}
                    elif name == "fed_by":
                        row[name] = " ".join(sorted({h for heads in value.values() for h in heads}))
                    elif name in ("prefix_matching", "previous_token", "duplicate_token"):
                        numbers = value or dict.fromkeys((*NUMBERS, "n"))
                        row |= {f"{name}_{key}": number for key, number in numbers.items()}
                    elif isinstance(value, dict):
                        row |= value
                    else:
                        row[name] = value
                rows.append(row)
        return DataFrame(rows)


def _numbers(scores: Scores, head: Head) -> dict[str, Any] | None:
    return scores.entry(head.layer, head.head)


def _ablation_json(found: AblationResult) -> dict[str, Any]:
    effects = {effect.on: effect for effect in found.effects}
    control = found.main.control
    return {
        "heads": [str(head) for head in found.heads],
        "texts": found.n_texts,
        "reference": found.reference,
        "method": found.method,
        "mode": found.mode,
        "first_delta": finite(effects["first half"].delta),
        "second_delta": finite(effects["second half"].delta),
        "control_second_delta": None if control is None else control.to_json(),
        "effects": [effect.to_json() for effect in found.effects],
        "notes": list(found.notes),
    }
