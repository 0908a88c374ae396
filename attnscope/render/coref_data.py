"""The table of `attnscope coref --data`: the heads against simple rules, and where they differ."""

from __future__ import annotations

import math
from pathlib import Path

from rich.text import Text

from attnscope.experiments.coref_scores import CorefScores, share_entry
from attnscope.plain import visible
from attnscope.render.model import model_lines
from attnscope.render.palette import color
from attnscope.render.table import Column, joined, lay_out, wrapped
from attnscope.scoring.rules import UNCLASSIFIED
from attnscope.types import Head

SHOWN = 10  # heads in the table
COMPARED = 3  # heads in the tables of groups
_LABEL = "coreference"
_GROUPS = {"nearest": "nearest is", "distance": "distance", "pronoun": "pronoun"}
_PRONOUNS = 8  # kinds of pronoun that are shown, the most common first
_SHORT = {"pronoun": "", "candidates": "reverse"}
_READ_AT = (
    "read at: nothing said is the pronoun; or a token or two later; reverse: from the candidates "
    "to the pronoun (live: what they give it together)."
)


def coref_data_table(result: CorefScores, width: int, *, every: bool = False) -> Text:
    """The whole answer, each line within `width`; `every` head instead of the first few."""
    lines = model_lines(result.model, _about(result), width)
    lines += [Text(), *_rules(result, width)]
    heads = result.ranked if every else result.ranked[:SHOWN]
    lines += [Text(), *lay_out(_columns(result), [_row(result, head) for head in heads], width)]
    if len(heads) < len(result.ranked):
        left = len(result.ranked) - len(heads)
        lines.append(Text(f"  and {left} more heads; --all shows every one", style="dim"))
    for part in (_gap(result, width), _held_out(result, width), _groups(result, width)):
        lines += [Text(), *part] if part else []
    lines += [Text(line, style="dim") for line in ["", *_legend(result, width)]]
    return joined(lines)


def share(value: float | None) -> str:
    """`.710`, `1.000`; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:.3f}"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def draw(path: Path, result: CorefScores) -> None:
    """The heads with their intervals against the rules, as .png, .svg or .pdf."""
    from attnscope.render.accuracy import Mark, draw_accuracies  # matplotlib takes its time

    marks = []
    for head in result.ranked:
        entry = share_entry(result.forced, head)
        assert entry is not None
        label = _LABEL if result.labelled[head.layer, head.head] else UNCLASSIFIED
        marks.append(Mark(str(head), label, entry["raw"], entry["low"], entry["high"]))
    rules = {name: float(one["raw"]) for name, one in result.baselines.items()}
    title = f"{visible(result.model['id'])}  {result.settings['format']}, {_items(result)}"
    draw_accuracies(path, marks, rules, title=title)


def _about(result: CorefScores) -> str:
    skipped = sum(result.skipped.values())
    where = "read at the pronoun"
    if result.settings["query"] == "chosen":
        where = f"read at the place chosen on {result.settings['chosen_on']}"
    parts = [result.settings["format"], _items(result), f"{skipped} skipped"]
    parts += [f"{result.cut} in texts that were cut"] if result.cut else []
    parts.append(where)
    return " · ".join(parts)


def _items(result: CorefScores) -> str:
    return f"{result.n_items} item{'s' * (result.n_items != 1)}"


def _rules(result: CorefScores, width: int) -> list[Text]:
    columns = (Column("simple rule"), Column("right", right=True), Column("interval", keep=1))
    best = sorted(result.baselines.items(), key=lambda pair: -pair[1]["raw"])
    rows = [[Text(name), Text(share(one["raw"])), Text(_interval(one))] for name, one in best]
    return lay_out(columns, rows, width)


def _interval(entry: dict[str, float | None]) -> str:
    return "–" if entry["low"] is None else f"{share(entry['low'])}–{share(entry['high'])}"


def _columns(result: CorefScores) -> list[Column]:
    columns = [Column("head"), Column("label", keep=5), Column("right", right=True)]
    columns += [Column("interval", keep=4), Column("if near", right=True, keep=2)]
    columns += [Column("if far", right=True, keep=1), Column("strict", right=True, keep=3)]
    columns += [Column("live", right=True, keep=6), Column("p", right=True, keep=9)]
    return [*columns, Column("read at", keep=8)] if len(set(result.view.flat)) > 1 else columns


def _row(result: CorefScores, head: Head) -> list[Text]:
    at = head.layer, head.head
    held = bool(result.labelled[at])
    style = "" if held else "dim"
    entry = share_entry(result.forced, head) or {}
    others = (result.nearest_right, result.nearest_wrong, result.strict)
    shares = [(share_entry(scores, head) or {}).get("raw") for scores in others]
    cells = [
        Text(str(head)),
        Text(_LABEL if held else UNCLASSIFIED, style=color(_LABEL if held else UNCLASSIFIED)),
        Text(share(entry.get("raw")), style="bold" if held else ""),
        Text(_interval(entry), style=style),
        *(Text(share(one), style=style) for one in shares),
        Text(share(float(result.forced.live_mass[at])), style="dim"),
        Text(_chance_of(max(float(p[at]) for p in result.against.values())), style="dim"),
    ]
    if len(set(result.view.flat)) > 1:
        view = result.views[int(result.view[at])]
        cells.append(Text(_SHORT.get(view, view), style="dim"))
    return cells


def _chance_of(p: float) -> str:
    return "<.001" if p < 0.001 else share(p)


def _gap(result: CorefScores, width: int) -> list[Text]:
    gap = result.gap
    if gap is None:
        return []
    first, second = visible(gap.first), visible(gap.second)
    others = [name for name in gap.shares if name not in (gap.first, gap.second)]
    columns = [Column("head"), *(Column(visible(name), right=True) for name in gap.shares)]
    columns += [Column(f"{first} − {second}", right=True), Column("interval", keep=1)]
    rows = []
    widest = max(result.ranked, key=lambda head: abs(float(gap.gap[head.layer, head.head])))
    for head in dict.fromkeys((*result.ranked[: COMPARED - 1], widest)):
        at = head.layer, head.head
        bounds = f"{share(float(gap.low[at]))} to {share(float(gap.high[at]))}"
        cells = [share(float(shares[at])) for shares in gap.shares.values()]
        cells += [share(float(gap.gap[at])), bounds if math.isfinite(gap.low[at]) else "–"]
        rows.append([Text(str(head)), *map(Text, cells)])
    words = f"The same {gap.n} sentence{'s' * (gap.n != 1)} as {first} and as {second}"
    words += f" (and {', '.join(map(visible, others))})" if others else ""
    words += ": the best heads, and the one that differs most"
    heading = [Text(line, style="bold") for line in wrapped(words, width)]
    return [*heading, *lay_out(columns, rows, width)]


def _held_out(result: CorefScores, width: int) -> list[Text]:
    told = "; ".join(
        f"{one.head} is best on {one.chosen_on} ({share(one.there)}) and has {share(one.held_out)} "
        f"on the other {one.n}"
        for one in result.held_out
    )
    return [Text(line) for line in wrapped(f"Held out: {told}.", width)] if told else []


def _groups(result: CorefScores, width: int) -> list[Text]:
    """The best heads beside the nearest candidate, by kind of item."""
    heads = result.ranked[:COMPARED]
    columns = [Column("where"), Column("items", right=True, keep=1)]
    columns += [Column("nearest", right=True, keep=2)]
    columns += [Column(str(head), right=True, keep=n and 3 + n) for n, head in enumerate(heads)]
    rows: list[list[Text]] = []
    for kind, title in _GROUPS.items():
        groups = [group for group in result.groups if group.kind == kind]
        for group in groups[:_PRONOUNS]:
            cells = [str(group.n), share(group.nearest)]
            cells += [share(float(group.share[head.layer, head.head])) for head in heads]
            rows.append([Text(f"{title} {visible(group.name)}"), *map(Text, cells)])
    return lay_out(columns, rows, width)


def _legend(result: CorefScores, width: int) -> list[str]:
    words = [
        "right: share of pronouns whose antecedent gets more than its rival (chance .500); if "
        "near, if far: where the nearest candidate is right, or wrong. strict: the greatest of "
        "all other words is the antecedent. live: attention on the candidates. p: exact McNemar, "
        "against the rule that is hardest to tell from the head.",
        *([_READ_AT] if len(set(result.view.flat)) > 1 else []),
        f"A head is called coreference when the lower bound of `right`, held for all heads at "
        f"once, beats every rule (here {share(result.reached)}), and it is right where the nearest "
        "is wrong.",
        *(f"Skipped {n}: {reason}." for reason, n in result.skipped.items()),
        *([f"Cut to fit, and still used: {result.cut}."] if result.cut else []),
        *result.notes,
    ]
    return [line for one in words for line in wrapped(one, width)]
