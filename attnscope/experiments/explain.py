"""Why a head has its labels, in words: the numbers, the thresholds, the nearest label missed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnscope.plain import number
from attnscope.scoring.coreference import ROLE as COREFERENCE
from attnscope.scoring.estimate import Scores
from attnscope.scoring.labels import Check, Verdict
from attnscope.scoring.rules import RESTING
from attnscope.types import Head

if TYPE_CHECKING:
    from attnscope.experiments.heads_result import HeadsResult

MOSTLY_LIVE = 0.8  # live mass above which the score without resting places says nothing new
NEAR = 0.25  # what lacks more is not told as missed
MOSTLY_RESTING = 0.1  # live mass below which a score says little of what a head is for


def explain(result: HeadsResult, head: Head) -> tuple[str, ...]:
    """Say in sentences why the head has its labels, and which it missed most narrowly."""
    found = result.labels_of(head)
    at = head.layer, head.head
    held = [one for one in result.verdicts if one.holds[at] and one.rule.label in found.labels]
    sentences = [_held(result, verdict, head) for verdict in held]
    if not held:
        sentences.append("No label: no rule is met in full.")
    sentences += _hidden(result, head)
    sentences += _missed(result, found.labels, head)
    sentences += [_parked(result, head), *_resting(result, head), *_reach(result, head)]
    sentences += _own_roles(result, head)
    return tuple(sentences)


def _held(result: HeadsResult, verdict: Verdict, head: Head) -> str:
    rule, at = verdict.rule, (head.layer, head.head)
    parts = []
    for kind in dict.fromkeys(check.on for check in verdict.checks):
        scores = result.evidence[kind].scores[rule.role]
        checks = [_told(check, at) for check in verdict.checks if check.on == kind]
        chance = float(scores.chance[at])
        parts.append(
            f"{result.name_of(kind)}: score {number(float(scores.raw[at]))}"
            + (f" where an even head would have {number(chance)}" if chance else "")
            + f"; {', '.join(checks)}{_sink_free(rule.role, scores, at)}"
        )
    place = f" on {rule.rests_on}" if rule.rests_on else ""
    return f"{rule.label}{place} holds. On {'; on '.join(parts)}."


def _sink_free(role: str, scores: Scores, at: tuple[int, int]) -> str:
    """The score among what is not parked, where much is; of a pronoun, among its candidates."""
    share, live = float(scores.sink_free[at]), float(scores.live_mass[at])
    if role == COREFERENCE:
        return f"; its candidates get {number(live)}, the right one {number(share)} of that"
    if not np.isfinite(share) or live > MOSTLY_LIVE:
        return ""
    return f"; of the {number(live)} that is not parked {number(share)}"


def _told(check: Check, at: tuple[int, int]) -> str:
    value, least = float(check.value[at]), float(check.least[at])
    form = f"{value:.0f}" if check.what.startswith("rows") else number(value)
    asked = f"{least:.0f}" if check.what.startswith("rows") else number(least)
    return f"{check.what} {form} (asked: {asked})"


def _hidden(result: HeadsResult, head: Head) -> list[str]:
    """Rules that hold, but are said already by another label."""
    found = result.labels_of(head).labels
    return [
        f"{one.rule.label} holds too, but {' or '.join(set(one.rule.unless) & set(found))} says so."
        for one in result.verdicts
        if one.holds[head.layer, head.head] and one.rule.label not in found
    ]


def _missed(result: HeadsResult, labels: Sequence[str], head: Head) -> list[str]:
    """The label that lacks least, and what it lacks."""
    at = head.layer, head.head
    closest: tuple[float, Verdict, Check] | None = None
    for verdict in result.verdicts:
        if verdict.holds[at] or verdict.rule.label in labels:
            continue
        lacks = [(float(c.least[at] - c.value[at]), c) for c in verdict.checks if not c.holds[at]]
        if any(not np.isfinite(lack) for lack, _ in lacks):
            continue  # it could not be scored at all
        lack, check = max(lacks, key=lambda pair: pair[0])
        if closest is None or lack < closest[0]:
            closest = lack, verdict, check
    if closest is None or closest[0] > NEAR:
        return ["No other label is near."]
    _, verdict, check = closest
    place = f" on {verdict.rule.rests_on}" if verdict.rule.rests_on else ""
    return [
        f"Nearest label missed: {verdict.rule.label}{place}, by its {_told(check, at)} on "
        f"{result.name_of(check.on)}."
    ]


def _parked(result: HeadsResult, head: Head) -> str:
    live = float(result.general_live_mass[head.layer, head.head])
    rest = " It is mostly resting: little is left for anything else." * (live < MOSTLY_RESTING)
    return (
        f"On {result.name_of('text')} {number(1 - live)} of its attention is parked on the first "
        f"and special tokens.{rest}"
    )


def _resting(result: HeadsResult, head: Head) -> list[str]:
    if RESTING not in result.labels_of(head).labels:
        return []
    said = []
    for place in result.resting(head):
        ratio = place["value_norm_ratio"]
        if ratio is not None:
            kind = "a rest, which moves little" if ratio < 0.5 else "it moves something there, too"
            named = f" ({place['is']})" if place["is"] else ""
            said.append(
                f"‖value · W_O‖ on {place['on']}{named} is {number(ratio)} of the mean elsewhere: "
                f"{kind}."
            )
    return said


def _own_roles(result: HeadsResult, head: Head) -> list[str]:
    at = head.layer, head.head
    said = []
    for role in result.roles:
        scores = result.decisive(role.name) if role.name in result.scores else None
        if scores is not None and scores.n[at]:
            said.append(
                f"Your role {role.name}: score {number(float(scores.raw[at]))} where an even head "
                f"would have {number(float(scores.chance[at]))}."
            )
    return said


def _reach(result: HeadsResult, head: Head) -> list[str]:
    reach = float(result.general.reach[head.layer, head.head])
    if not np.isfinite(reach):
        return []
    return [f"Half of what is not parked lies within {reach:.0f} token{'s' * (reach != 1)}."]
