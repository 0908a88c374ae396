"""The table of `attnscope heads`: what the heads do, then the heads one by one, then the legend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from attnscope.experiments.heads_result import HeadsResult
from attnscope.plain import number, visible
from attnscope.render.model import model_lines
from attnscope.render.palette import color, in_order
from attnscope.render.table import Column, joined, lay_out, wrapped
from attnscope.scoring.estimate import Scores
from attnscope.scoring.labels import HeadLabels
from attnscope.scoring.rules import RESTING, UNCLASSIFIED
from attnscope.types import Head

PER_LABEL = 10  # heads of one label before the rest is left to --all
TOKEN_CELLS = 10  # of a token in the table
OWN_SHOWN = 5  # heads for each role of the user's
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
    place = {label: n for n, label in enumerate(in_order(row.label for row in rows))}
    rows.sort(key=lambda row: (place[row.label], -np.nan_to_num(row.score), row.head))
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
    lines += own_roles(result, width)
    shown, left = (rows, 0) if every else _telling(rows)
    lines += [Text(), *lay_out(_columns(result), [_cells(row) for row in shown], width)]
    if left:
        lines.append(Text(f"  and {left} more; --all shows every head", style="dim"))
    lines += [Text(line, style="dim") for line in ["", *_legend(result, shown, width)]]
    return joined(lines)


def _row(result: HeadsResult, head: Head) -> Row:
    found, at = result.labels_of(head), (head.layer, head.head)
    rests = 1 - float(result.general_live_mass[at])
    if not found.labels:
        none = math.nan
        return Row(head, (), None, none, none, none, none, rests, _top(result, head))
    role = found.roles[0]
    scores = result.decisive(role)
    chance = float(scores.chance[at])
    low, high = (_share(float(bound[at]), chance) for bound in (scores.low, scores.high))
    return Row(
        head, found.labels, role, float(scores.raw[at]), chance, low, high, rests,
        _here(result, head, role),
    )  # fmt: skip


def _here(result: HeadsResult, head: Head, role: str) -> str:
    """What the head does of its role in these texts."""
    scores, meant = result.scores.get(role), result.all_roles[role]
    if scores is None or scores.n[head.layer, head.head] == 0:
        return meant.absent or _top_live(result, head)
    return f"{meant.phrase} {number(float(scores.raw[head.layer, head.head]))}"


def _top(result: HeadsResult, head: Head) -> str:
    keys = result.top_keys(head)
    return f"{_short(keys[0].text)} {number(keys[0].weight)}" if keys else ""


def _short(token: str) -> str:
    return token if cell_len(token) <= TOKEN_CELLS else set_cell_size(token, TOKEN_CELLS - 1) + "…"


def _top_live(result: HeadsResult, head: Head) -> str:
    """What the head looks at most beside the places where heads rest."""
    if result.received is None or result.text is None:
        return ""
    awake = [token for token in result.text.tokens if token.index and not token.special]
    if not awake:
        return ""
    shares = result.received[head.layer, head.head]
    best = max(awake, key=lambda token: float(shares[token.index]))
    return f"{_short(best.text)} {number(float(shares[best.index]))}"


def _about(result: HeadsResult) -> str:
    size = f"{result.n_tokens} tokens"
    if result.n_texts > 1:
        size = f"{result.n_texts} texts, {size}"
    bos = result.settings["bos"]["token"]
    parts = [size, f"{bos} first" if bos else "no BOS"]
    battery = result.settings["battery"]
    if battery is not None:
        texts = battery["text"]
        what = f"{texts['texts']} {texts.get('what') or 'texts'}"
        random = f"{battery['sequences']} × 2 × {battery['length']} random tokens"
        parts.append(f"battery: {what}, {random}")
    return " · ".join(parts)


def _summary(result: HeadsResult, rows: Sequence[Row], width: int) -> list[Text]:
    lines = []
    for label in in_order(name for row in rows for name in row.labels or (UNCLASSIFIED,)):
        if label == UNCLASSIFIED:
            having = [row for row in rows if not row.labels]
        else:
            having = [row for row in rows if label in row.labels]
            having.sort(key=lambda row: row.label != label)  # those it is the first label of
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
    bos = result.settings["bos"]["token"]
    first = f"the first token ({f'always {bos}' if bos else 'a word'})"
    on = {**_ON, "first-token": first}
    return "(on " + ", ".join(f"{on[place]} {count}" for place, count in most) + ")"


def own_roles(result: HeadsResult, width: int) -> list[Text]:
    """The heads that do most of what the user asked about, for each role of the user's."""
    if not result.roles:
        return []
    lines = [Text(), Text("Your roles", style="bold")]
    for role in result.roles:
        scores = result.decisive(role.name) if role.name in result.scores else None
        start = f"  {visible(role.name):<18}"
        if scores is None or not np.isfinite(scores.lift).any():
            lines.append(Text(f"{start}{role.absent}"))
            continue
        order = np.argsort(-np.nan_to_num(scores.lift, nan=-np.inf), axis=None)[:OWN_SHOWN]
        for n, flat in enumerate(order):
            layer, head = np.unravel_index(flat, scores.lift.shape)
            words = f"{Head(int(layer), int(head))!s:<6}{_score_words(scores, layer, head)}"
            lines.append(Text((start if n == 0 else " " * len(start)) + words))
    return lines


def _score_words(scores: Scores, layer: int, head: int) -> str:
    raw, chance = float(scores.raw[layer, head]), float(scores.chance[layer, head])
    words = f"{number(raw)}  chance {number(chance)}"
    low, high = float(scores.low[layer, head]), float(scores.high[layer, head])
    if math.isfinite(low):
        words += f"  {number(_share(low, chance))}–{number(_share(high, chance))}"
    return words


def _share(lift: float, chance: float) -> float:
    """The share of attention that a lift stands for."""
    return lift * (1 - chance) + chance


def _each(result: HeadsResult) -> list[HeadLabels]:
    return [found for layer in result.labels for found in layer]


def _values_at_rest(result: HeadsResult) -> str:
    """What resting heads move: their values at the place where they rest."""
    ratios = [
        place["value_norm_ratio"]
        for head in result.heads
        for place in result.resting(head)
        if place["value_norm_ratio"] is not None
    ]
    if not ratios:
        return "The values where heads rest were not measured."
    return (
        f"Where heads rest, ‖value · W_O‖ is {number(float(np.median(ratios)))} of the mean "
        "elsewhere (median over these heads): near 0 they add little, which is what resting is."
    )


def _telling(rows: Sequence[Row]) -> tuple[list[Row], int]:
    """The heads that carry a label, at most a few of each."""
    shown: list[Row] = []
    for label in in_order(row.label for row in rows):
        if label != UNCLASSIFIED:
            most = _FEWER.get(label, PER_LABEL)
            shown += [row for row in rows if row.label == label][:most]
    return shown, len(rows) - len(shown)


def _columns(result: HeadsResult) -> list[Column]:
    if result.n_texts == 1:
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
    over = "battery" if result.random is not None else "texts"
    words = (
        f"score: share of attention on the label's targets, over the {over} (coreference: share of "
        "pronouns whose antecedent gets more than its rival). chance: what a head that looks "
        "everywhere equally would score. rests: share parked on the first and special tokens."
    )
    lines = wrapped(words, width)
    lines += (
        wrapped(_values_at_rest(result), width) if any(r.rests_on for r in _each(result)) else []
    )
    for note in result.notes:
        lines += wrapped(note, width)
    example = next((row.head for row in shown), None)
    if example is not None:
        lines += wrapped(f"Next: attnscope show … --head {example}", width)
    return lines
