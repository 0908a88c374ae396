"""The table of `attnscope induction`: the answer in a line, then the heads, then what they cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from rich.text import Text

from attnscope.experiments.induction_result import COPYING, InductionResult, Run
from attnscope.experiments.story import nobody
from attnscope.plain import number, signed
from attnscope.render.ablation import control_words, effect_lines, stimulus_words
from attnscope.render.model import model_lines
from attnscope.render.palette import color
from attnscope.render.table import Column, joined, lay_out, wrapped
from attnscope.scoring.profile import SHIFTED, shift_name
from attnscope.types import Head

_MOST = 20  # heads that copy are shown up to so many
_BESIDE = 4  # of each other label
_BEST = 5  # heads shown where none is labelled
_FEEDERS = 4  # that are named in the summary
_ROLES = ("previous_token", "duplicate_token")
_CONVENTIONS = ("diagonal", "ratio")


def induction_table(
    result: InductionResult, width: int, *, conventions: bool = False, every: bool = False
) -> Text:
    """The whole answer, each line within `width`; with the same heads by other `conventions`."""
    lines = model_lines(result.model, stimulus_words(result.first.about), width)
    lines.append(Text())
    lines += [Text(line, style="bold") for line in wrapped(summary(result), width)]
    if result.story:
        for sentence in (told for told in result.story if told not in summary(result)):
            lines += [Text(line) for line in wrapped(sentence, width, rest=2)]
    heads, left = _shown(result, every)
    columns = _columns(result, conventions)
    cells = [_cells(result, head, conventions) for head in heads]
    lines += [Text(), *lay_out(columns, cells, width)]
    if left:
        lines.append(Text(f"  and {left} more; --all shows every head", style="dim"))
    lines.append(Text())
    if result.ablation is not None:
        lines += effect_lines(result.ablation, width)
    for words in (_legend(result, conventions), *_notes(result)):
        lines += [Text(line, style="dim") for line in wrapped(words, width)]
    return joined(lines)


def summary(result: InductionResult) -> str:
    """`4 induction heads, fed by previous-token heads 11.1, 16.0; loss 13.6 → 2.5`."""
    run = result.first
    loss = f"loss {run.loss.first.value:.1f} → {run.loss.second.value:.1f}"
    if not run.found:
        return f"{nobody(result)} ({loss})"
    plain, shifted = run.labelled("induction"), run.labelled(SHIFTED)
    counts = [
        f"{len(heads)} {name} head{'s' * (len(heads) != 1)}"
        for name, heads in (("induction", plain), (SHIFTED, shifted))
        if heads
    ]
    return f"{' and '.join(counts)}{_fed(result)}{_handed(run)}; {loss}"


def _fed(result: InductionResult) -> str:
    found, run = result.feeding, result.first
    if found is None:
        return ", with nothing below that feeds them"
    feeders = found.feeders or found.candidates
    names = ", ".join(str(head) for head in feeders[:_FEEDERS])
    if len(feeders) > _FEEDERS:
        names += f" and {len(feeders) - _FEEDERS} more"
    steps = {n for n, holds in run.copiers.back.items() for h in feeders if holds[h.layer, h.head]}
    plural = "s" * (len(feeders) != 1)
    kind = f"previous-token head{plural}" if steps == {1} else f"the look back of head{plural}"
    if found.feeds:
        return f", fed by {kind} {names}"
    part = "in part " if found.feeders else "though not "
    return f", {part}fed by {kind} {names}"


def _handed(run: Run) -> str:
    """Which heads below look so far back as a shifted head must, for what it copies."""
    steps: dict[int, list[str]] = {}
    for head in run.labelled(SHIFTED):
        for below in run.copiers.fed_by(head).get("value", []):
            named = steps.setdefault(run.shift(head), [])
            named += [] if str(below) in named else [str(below)]
    told = [
        f"{', '.join(named[:_FEEDERS])} look{'s' * (len(named) == 1)} {back} back"
        for back, named in steps.items()
    ]
    return f"; below, {' and '.join(told)}" if told else ""


def _shown(result: InductionResult, every: bool) -> tuple[list[Head], int]:
    """The telling heads, strongest first within a label, and how many are left."""
    run = result.first
    heads = run.labelled(*COPYING)
    beside: list[list[Head]] = []
    for label in ("previous-token", "duplicate-token"):
        raw = run.scores[label.replace("-", "_")].raw
        beside.append(sorted(run.labelled(label), key=lambda h: -float(raw[h.layer, h.head])))
    lift = np.nan_to_num(run.scores["induction"].lift, nan=-1.0)
    rest = [head for head in result.heads if run.label(head) is None]
    rest.sort(key=lambda head: -lift[head.layer, head.head])
    if every:
        return [*heads, *beside[0], *beside[1], *rest], 0
    few = [head for having in beside for head in having[:_BESIDE]]
    shown = [*heads[:_MOST], *few, *([] if heads else rest[:_BEST])]
    return shown, len(result.heads) - len(shown)


def _columns(result: InductionResult, conventions: bool) -> list[Column]:
    lengths = [f"at {run.stimulus.length}" for run in result.runs[1:]]
    return [
        Column("head"),
        Column("label"),
        Column("score", right=True),
        Column("chance", right=True, keep=3),
        Column("interval", keep=5),
        *(Column(name, right=True, keep=2) for name in lengths),
        Column("copying", right=True, keep=6),
        Column("previous", right=True, keep=7),
        Column("duplicate", right=True, keep=8),
        *(Column(name, right=True, keep=4) for name in _CONVENTIONS if conventions),
    ]


def _cells(result: InductionResult, head: Head, conventions: bool) -> list[Text]:
    run, at = result.first, (head.layer, head.head)
    label, shift = run.label(head), run.shift(head)
    scores = run.scores[shift_name(shift) if shift else "induction"]
    chance = float(scores.chance[at])
    low, high = (float(bound[at]) * (1 - chance) + chance for bound in (scores.low, scores.high))
    name = label or "unclassified"
    faint = "" if label in COPYING else "dim"
    copying = math.nan if run.copying is None else float(run.copying.value[at])
    return [
        Text(str(head)),
        Text(name + (f" {shift:+d}" if shift else ""), style=color(name)),
        Text(number(float(scores.raw[at])), style=faint),
        Text(number(chance), style="dim"),
        Text(f"{number(low)}–{number(high)}" if math.isfinite(low) else "–", style=faint),
        *(Text(number(_same(other, head, shift)), style=faint) for other in result.runs[1:]),
        Text(signed(copying), style=faint),
        *(Text(number(float(run.scores[role].raw[at])), style="dim") for role in _ROLES),
        *(Text(number(float(run.conventions[key][at]))) for key in _CONVENTIONS if conventions),
    ]


def _same(run: Run, head: Head, shift: int) -> float:
    scores = run.scores[shift_name(shift) if shift else "induction"]
    return float(scores.raw[head.layer, head.head])


def _legend(result: InductionResult, conventions: bool) -> str:
    words = (
        "score: share of attention on the token after the earlier copy, from each repeated token "
        "(shifted heads: so many past it). chance: what a head that looks everywhere equally "
        "would score. copying: what the head by itself adds to the right next token's logit, less "
        "the mean over all tokens. loss: nats per token, first time → again."
    )
    for run in result.runs[1:]:
        chance = float(np.nanmean(run.scores["induction"].chance))
        words += f" at {run.stimulus.length}: the score there, {number(chance)} by chance."
    if conventions:
        words += (
            " diagonal: mean of the whole diagonal, first half included. ratio: the pattern's "
            "share of all attention, first half included; a perfect head reaches about one half."
        )
    return words


def _notes(result: InductionResult) -> Sequence[str]:
    notes = list(result.notes)
    if result.ablation is not None:
        control = result.ablation.main.control
        notes += [] if control is None else [control_words(control)]
        notes += result.ablation.notes
    elif result.first.found:
        notes.append("Does it matter? --ablate switches these heads off, and random others.")
    return notes


def induction_map(result: InductionResult) -> tuple[list[list[tuple[str, ...]]], np.ndarray]:
    """Labels and scores [layer][head] for the layer × head figure."""
    run = result.first
    shape = run.copiers.shifts.shape
    labels: list[list[tuple[str, ...]]] = [[() for _ in range(shape[1])] for _ in range(shape[0])]
    scores = np.zeros(shape)
    for head in result.heads:
        label, at = run.label(head), (head.layer, head.head)
        if label is not None:
            role = label.replace("-", "_")
            labels[head.layer][head.head] = (label,)
            scores[at] = run.matching(head) if label in COPYING else run.scores[role].raw[at]
    return labels, np.nan_to_num(scores)
