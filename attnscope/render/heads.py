"""The table of `attnscope heads`: what the heads do, then the heads one by one, then the legend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.text import Text

from attnscope.experiments.heads import HeadsResult
from attnscope.plain import visible
from attnscope.render.model import model_lines
from attnscope.render.palette import LABELS, color
from attnscope.render.table import Column, joined, lay_out, wrapped
from attnscope.scoring.labels import RESTING, UNCLASSIFIED
from attnscope.scoring.roles import ROLES
from attnscope.types import Head

PER_LABEL = 10  # heads of one label before the rest is left to --all
_FEWER = {RESTING: 4, "broad": 4}  # rows of those that many heads of any model have

COLUMNS = (
    Column("head"),
    Column("label"),
    Column("score", right=True),
    Column("chance", right=True, keep=3),
    Column("interval", keep=4),
    Column("rests", right=True, keep=2),
    Column("in this text", keep=5),
)

_ON = {
    "first-token": "the first token",
    "special-token": "special tokens",
    "punctuation": "punctuation",
    "sink": "a learned sink",
}


@dataclass(frozen=True)
class Row:
    """One head as the table shows it; the numbers belong to its first label."""

    head: Head
    labels: tuple[str, ...]
    role: str | None
    score: float
    chance: float
    low: float
    high: float
    rests: float
    here: str

    @property
    def label(self) -> str:
        """The label that sorts and colours the row."""
        return self.labels[0] if self.labels else UNCLASSIFIED


def rows_of(result: HeadsResult) -> list[Row]:
    """Every head, grouped by its first label, strongest first."""
    rows = [_row(result, head) for head in result.heads]
    rows.sort(key=lambda row: (LABELS.index(row.label), -np.nan_to_num(row.score), row.head))
    return rows


def head_map(result: HeadsResult) -> tuple[list[list[tuple[str, ...]]], np.ndarray]:
    """Labels and scores [layer][head] for the layer × head figure."""
    labels = [[found.labels for found in layer] for layer in result.labels]
    scores = np.zeros(result.live_mass.shape)
    for row in rows_of(result):
        scores[row.head.layer, row.head.head] = np.nan_to_num(row.score)
    return labels, scores


def heads_table(result: HeadsResult, width: int, *, every: bool = False) -> Text:
    """The whole answer, each line within `width`; `every` head instead of the telling ones."""
    rows = rows_of(result)
    lines = model_lines(result.model, _about(result), width)
    lines += [Text(), Text("What the heads do", style="bold")]
    lines += _summary(result, rows, width)
    shown, left = (rows, 0) if every else _telling(rows)
    lines += [Text(), *lay_out(_columns(result), [_cells(row) for row in shown], width)]
    if left:
        lines.append(Text(f"  and {left} more; --all shows every head", style="dim"))
    lines += [Text(line, style="dim") for line in ["", *_legend(result, shown, width)]]
    return joined(lines)


def number(value: float) -> str:
    """`.94`, `1.00`, `-.08`; a dash where there is none."""
    if not math.isfinite(value):
        return "–"
    text = f"{value:.2f}"
    if text in ("0.00", "-0.00"):
        return ".00"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def _row(result: HeadsResult, head: Head) -> Row:
    found, at = result.labels_of(head), (head.layer, head.head)
    rests = 1 - float(result.live_mass[at])
    if not found.labels:
        none = math.nan
        return Row(head, (), None, none, none, none, none, rests, _top(result, head))
    role = found.roles[0]
    scores = result.decisive(role)
    chance = float(scores.chance[at])
    low, high = (float(bound[at]) * (1 - chance) + chance for bound in (scores.low, scores.high))
    return Row(
        head, found.labels, role, float(scores.raw[at]), chance, low, high, rests,
        _here(result, head, role),
    )  # fmt: skip


def _here(result: HeadsResult, head: Head, role: str) -> str:
    """What the head does of its role in these texts."""
    scores = result.scores.get(role)
    if scores is None or scores.n[head.layer, head.head] == 0:
        return ROLES[role].absent
    return f"{ROLES[role].phrase} {number(float(scores.raw[head.layer, head.head]))}"


def _top(result: HeadsResult, head: Head) -> str:
    keys = result.top_keys(head)
    return f"{keys[0].text} {number(keys[0].weight)}" if keys else ""


def _about(result: HeadsResult) -> str:
    if len(result.texts) == 1:
        size = f"{len(result.texts[0])} tokens"
    else:
        size = f"{len(result.texts)} texts, {sum(len(text) for text in result.texts)} tokens"
    bos = result.settings["bos"]["token"]
    parts = [size, f"{bos} first" if bos else "no BOS"]
    battery = result.settings["battery"]
    if battery is not None:
        parts.append(f"battery {battery['sequences']} × 2 × {battery['length']} random tokens")
    return " · ".join(parts)


def _summary(result: HeadsResult, rows: Sequence[Row], width: int) -> list[Text]:
    lines = []
    for label in LABELS:
        if label == UNCLASSIFIED:
            having = [row for row in rows if not row.labels]
        else:
            having = [row for row in rows if label in row.labels]
            having.sort(key=lambda row: row.label != label)  # those it is the first label of
        if not having:
            continue
        named = [str(row.head) for row in having[:PER_LABEL]]
        if len(having) > PER_LABEL:
            named.append(f"… {len(having) - PER_LABEL} more")
        words = "  ".join(named)
        if label == RESTING:
            words += f"  {_rests_on(result)}"
        start = f"  {label:<18}{len(having):>4}   "
        for n, line in enumerate(wrapped(words, width - len(start))):
            text = Text(start if n == 0 else " " * len(start))
            if n == 0:
                text.stylize(color(label), 2, 2 + len(label))
            lines.append(text.append(line))
    return lines


def _rests_on(result: HeadsResult) -> str:
    counts: dict[str, int] = {}
    for layer in result.labels:
        for found in layer:
            for place in found.rests_on:
                counts[place] = counts.get(place, 0) + 1
    most = sorted(counts.items(), key=lambda pair: -pair[1])
    return "(on " + ", ".join(f"{_ON[place]} {count}" for place, count in most) + ")"


def _telling(rows: Sequence[Row]) -> tuple[list[Row], int]:
    """The heads that carry a label, at most a few of each."""
    shown: list[Row] = []
    for label in LABELS:
        if label != UNCLASSIFIED:
            most = _FEWER.get(label, PER_LABEL)
            shown += [row for row in rows if row.label == label][:most]
    return shown, len(rows) - len(shown)


def _columns(result: HeadsResult) -> list[Column]:
    if len(result.texts) == 1:
        return list(COLUMNS)
    return [*COLUMNS[:-1], Column("in these texts", keep=5)]


def _cells(row: Row) -> list[Text]:
    faint = "dim" if not row.labels else ""
    named = [name for name in row.labels if name != RESTING or name == row.label] or [UNCLASSIFIED]
    label = Text(", ").join(Text(name, style=color(name)) for name in named)
    rests = color(RESTING) if RESTING in row.labels else "dim"
    interval = f"{number(row.low)}–{number(row.high)}" if math.isfinite(row.low) else "–"
    return [
        Text(str(row.head)),
        label,
        Text(number(row.score), style=faint),
        Text(number(row.chance or math.nan), style="dim"),  # evenness has no chance level
        Text(interval, style=faint),
        Text(number(row.rests), style=rests),
        Text(visible(row.here), style=faint),
    ]


def _legend(result: HeadsResult, shown: Sequence[Row], width: int) -> list[str]:
    words = (
        "score: share of attention on the label's targets. chance: what a head that looks "
        "everywhere equally would score. rests: share parked on the first and special tokens."
    )
    lines = wrapped(words, width)
    for note in result.notes:
        lines += wrapped(note, width)
    example = next((row.head for row in shown), None)
    if example is not None:
        lines += wrapped(f"Next: attnscope show … --head {example}", width)
    return lines
