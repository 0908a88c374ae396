"""The shift profile: how far past an earlier copy's next token a head looks, and what feeds it.

Shift 0 is induction, shift -1 the copy itself. A model may copy through another shift k, when the
key there has been handed the token k back by a head that looks k back (see `fed_by`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attnscope.attention.probes import Probe
from attnscope.scoring.estimate import Scores
from attnscope.scoring.labels import Evidence, judge
from attnscope.scoring.roles import offset
from attnscope.scoring.rules import Rule
from attnscope.scoring.stimuli import RepeatedTokens
from attnscope.scoring.sums import Floats
from attnscope.types import Head, TokenBatch

SHIFTS = tuple(range(-8, 9))
STEPS_BACK = tuple(range(1, 10))  # offsets at which a head may hand tokens on
SHIFTED = "shifted-induction"


def shift_name(shift: int) -> str:
    """What the question about one shift is called among the sums."""
    return f"shift {shift}"


def back_name(steps: int) -> str:
    """What the question about one offset is called among the sums."""
    return f"{steps} back"


def profile_probes(stimulus: RepeatedTokens, batch: TokenBatch) -> dict[str, Probe]:
    """Every shift, and every fixed offset, as questions about a part of the stimulus.

    Keys that come before the random tokens, and the first key of all, are no shift's target: heads
    rest there.
    """
    first = max(stimulus.start, 1)
    shifts: dict[str, Probe] = {
        shift_name(k): stimulus.ahead(batch, 1 + k, first if k else 0) for k in SHIFTS
    }
    return shifts | {back_name(n): offset(batch, -n) for n in STEPS_BACK}


@dataclass(frozen=True)
class Copiers:
    """Which heads look at a fixed place beside earlier copies, and which look a fixed way back.

    shifts (L, H): the shift of a head that passes the rule, NaN for others; 0 wins over any other.
    back[n] (L, H): does the head look n tokens back?
    """

    shifts: Floats
    back: Mapping[int, NDArray[np.bool_]]

    def fed_by(self, head: Head) -> dict[str, list[Head]]:
        """Heads in lower layers that hand on what a head with this shift needs, by what they do.

        `key`: the token by which the key is found, shift + 1 back. `value`: the token that is
        copied, shift back; a key has its own token anyway.
        """
        shift = self.shifts[head.layer, head.head]
        if np.isnan(shift):
            return {}
        needed = {"key": int(shift) + 1, "value": int(shift)}
        return {
            side: [h for h in heads_where(self.back[steps]) if h.layer < head.layer]
            for side, steps in needed.items()
            if steps in self.back
        }


def find_copiers(
    rules: Sequence[Rule],
    scores: Mapping[str, Scores],
    control: Mapping[str, Scores],
    induction: NDArray[np.bool_],
) -> Copiers:
    """Judge every shift by the rule of induction, every offset by that of previous-token.

    `induction` (L, H) are the heads that earn that label already.
    """
    by_label = {rule.label: rule for rule in rules}
    evidence = {"random": Evidence(scores, control)}
    shifts = np.where(induction, 0.0, np.nan)
    best = np.where(induction, np.inf, -np.inf)
    for k in SHIFTS:
        if k in (0, -1):  # induction itself, and the copy: a role of its own
            continue
        held = _held(by_label["induction"], shift_name(k), evidence)
        lift = np.where(held, scores[shift_name(k)].lift, -np.inf)
        shifts, best = np.where(lift > best, k, shifts), np.maximum(best, lift)
    back = {n: _held(by_label["previous-token"], back_name(n), evidence) for n in STEPS_BACK}
    return Copiers(shifts, back)


def _held(rule: Rule, name: str, evidence: Mapping[str, Evidence]) -> NDArray[np.bool_]:
    """Where the rule holds for another question than its own, on random tokens alone."""
    [verdict] = judge([replace(rule, role=name, evidence=("random",))], evidence, causal=True)
    return verdict.holds


def heads_where(holds: NDArray[np.bool_]) -> list[Head]:
    """The heads for which (L, H) is true, in order."""
    return [Head(int(layer), int(head)) for layer, head in np.argwhere(holds)]
