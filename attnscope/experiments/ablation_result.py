"""What `ablate` returns: what the model loses without some heads, beside what random heads cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import attnscope
from attnscope.scoring.estimate import finite
from attnscope.scoring.sums import Floats
from attnscope.types import Head

if TYPE_CHECKING:
    from pandas import DataFrame


_FEW = 5  # texts: resampling so few shows too little of how they differ
_SEVERAL = 10  # random sets: fewer have no range to speak of


@dataclass(frozen=True)
class Control:
    """What random sets of heads cost: the mean over `draws` of them, and where 95 % lie."""

    mean: float
    low: float
    high: float
    draws: int

    @classmethod
    def of(cls, found: Floats) -> Control | None:
        """From the figure of each set, (draws,); None without any, or where it says nothing."""
        if not len(found) or np.isnan(found).all():
            return None
        low, high = np.percentile(found, [2.5, 97.5])
        return cls(float(found.mean()), float(low), float(high), len(found))

    def to_json(self) -> dict[str, float | int | None]:
        """The entry of a document."""
        bounds = {name: finite(getattr(self, name)) for name in ("mean", "low", "high")}
        return {**bounds, "draws": self.draws}


@dataclass(frozen=True)
class Effect:
    """Loss on some rows, in nats per token, with and without the heads; and KL in nats.

    low and high bound the delta over texts (95 %), clean_low and clean_high the loss of the whole
    model; NaN with one text. kl is NaN where an effect has none.
    """

    on: str
    clean: float
    ablated: float
    delta: float
    low: float
    high: float
    kl: float
    kl_low: float
    kl_high: float
    control: Control | None
    control_kl: Control | None
    clean_low: float = math.nan
    clean_high: float = math.nan
    unit: str = "nats"  # or "share", of answers that are right

    def to_json(self) -> dict[str, Any]:
        """The entry of a document."""
        numbers = {
            name: finite(value) for name, value in vars(self).items() if isinstance(value, float)
        }
        return {
            "on": self.on,
            "unit": self.unit,
            **numbers,
            "control": None if self.control is None else self.control.to_json(),
            "control_kl": None if self.control_kl is None else self.control_kl.to_json(),
        }


@dataclass(frozen=True)
class AblationResult:
    """What the model loses without some heads. `siblings` share their keys and values."""

    model: dict[str, Any]
    settings: dict[str, Any]
    heads: tuple[Head, ...]
    siblings: Mapping[Head, tuple[Head, ...]]
    method: str
    mode: str
    effects: tuple[Effect, ...]
    overlap: bool  # do the control sets hold some of these heads?
    controls: int  # how many control sets were wanted
    n_texts: int
    n_tokens: int
    stimulus: dict[str, Any] | None
    cloze: Mapping[str, Any] | None = None
    reference: str | None = None  # the other texts that heads are set to, in words

    @property
    def main(self) -> Effect:
        """The effect that counts: on the second half, on the choice of a name, or on the text."""
        return self.effects[-1]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know to take the numbers rightly."""
        notes = []
        if not math.isfinite(self.main.low):
            notes.append("One text is weak evidence: its effects have no interval.")
        elif self.n_texts < _FEW:
            notes.append(f"{self.n_texts} texts are few: their intervals are too narrow.")
        drawn = 0 if self.main.control is None else self.main.control.draws
        if drawn < self.controls:
            sets = {0: "is no other set", 1: "is only one other set"}.get(
                drawn, f"are only {drawn} other sets"
            )
            notes.append(
                f"Control: there {sets} of as many heads of the same layers"
                f"{'' if self.overlap else ', without these heads'}."
            )
        if drawn and self.overlap:
            notes.append(
                "A layer has not enough other heads: control sets hold some of the heads too."
            )
        if self.cloze is not None:
            notes += self._cloze_notes(self.cloze)
        shared = {str(h): [str(other) for other in o] for h, o in self.siblings.items() if o}
        if shared:
            words = ", ".join(f"{head} with {' '.join(others)}" for head, others in shared.items())
            notes.append(f"Shared keys and values stay as they are: {words}.")
        return tuple(notes)

    def _cloze_notes(self, cloze: Mapping[str, Any]) -> Iterator[str]:
        if self.main.clean_high >= 0:
            yield (
                "The whole model does not clearly prefer the right name here: there is little to "
                "lose."
            )
        control = self.main.control
        if control is not None and control.draws >= _SEVERAL and self.n_texts > 1:
            if self.main.low > control.high:
                yield "The right name loses more than without random heads: these matter for it."
            elif self.main.high <= control.high:
                yield "The right name does not lose more than without random heads."
            else:
                yield (
                    "Whether the right name loses more than without random heads cannot be told "
                    f"from {self.n_texts} pronouns."
                )
        for reason, n in cloze["skipped"].items():
            yield f"Not asked: {n}, {reason}."
        if cloze["items"] < cloze["of"] - sum(cloze["skipped"].values()):
            yield "Drawn by the seed; --items asks for more."

    def to_json(self) -> dict[str, Any]:
        """The `attnscope.ablate/1` document."""
        control = self.main.control
        return {
            "schema": "attnscope.ablate/1",
            "attnscope": attnscope.__version__,
            "model": self.model,
            "settings": {**self.settings, "controls": self.controls},
            "heads": [str(head) for head in self.heads],
            "siblings": {str(h): [str(other) for other in o] for h, o in self.siblings.items()},
            "method": self.method,
            "reference": self.reference,
            "mode": self.mode,
            "texts": self.n_texts,
            "stimulus": self.stimulus,
            "cloze": self.cloze,
            "effects": [effect.to_json() for effect in self.effects],
            "control": None if control is None else control.to_json(),
            "notes": list(self.notes),
        }

    def to_frame(self) -> DataFrame:
        """One row per effect."""
        from pandas import DataFrame

        rows = []
        for effect in self.effects:
            row = effect.to_json()
            for name in ("control", "control_kl"):
                entry = row.pop(name) or dict.fromkeys(("mean", "low", "high", "draws"))
                row |= {f"{name}_{key}": value for key, value in entry.items()}
            heads = " ".join(map(str, self.heads))
            rows.append({"heads": heads, "method": self.method, "mode": self.mode, **row})
        return DataFrame(rows)
