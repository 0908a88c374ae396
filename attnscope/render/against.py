"""Two checkpoints compared: the labels that came and went, then the heads one by one."""

from __future__ import annotations

import math

from rich.text import Text

from attnscope.experiments.against import Change, Comparison
from attnscope.plain import number, visible
from attnscope.render.model import model_lines
from attnscope.render.palette import color, in_order
from attnscope.render.table import Column, joined, lay_out, wrapped
from attnscope.types import Head

COLUMNS = (
    Column("head"),
    Column("label"),
    Column("lift", keep=3),
    Column("change", right=True),
    Column("interval"),
)
OWN_SHOWN = 5  # heads for each role of the user's


def changes_table(found: Comparison, width: int) -> Text:
    """The whole answer, each line within `width`."""
    lines = model_lines(found.before.model, "before", width)
    lines += model_lines(found.after.model, "after", width)
    total = len(found.before.heads)
    title = f"{len(found.changed)} of {total} heads have other labels"
    lines += [Text(), Text(title, style="bold"), *_summary(found)]
    rows = [cells for head in found.changed for cells in _rows(found, head)]
    for title, part in (("", rows), ("Your roles, where they moved most", _own(found))):
        if part:
            lines += [Text(), Text(title, style="bold")] if title else []
            lines += [Text(), *lay_out(list(COLUMNS), part, width)]
    legend = (
        f"Labels rest on {found.before.basis}. lift: 0 for an even head, 1 for a perfect one. The "
        "interval is that of the change, over the same texts resampled (95 %): where it holds 0, "
        "nothing is shown to have changed, and the label stood near its threshold."
    )
    lines += [Text(line, style="dim") for line in ["", *wrapped(legend, width)]]
    return joined(lines)


def _summary(found: Comparison) -> list[Text]:
    lines = []
    both = (found.before, found.after)
    for label in in_order(
        name for one in both for row in one.labels for h in row for name in h.labels
    ):
        before, after = (
            {head for head in one.heads if label in one.labels_of(head).labels}
            for one in (found.before, found.after)
        )
        if before or after:
            line = Text(f"  {label:<18}{len(before):>4} → {len(after):<4}")
            line.stylize(color(label), 2, 2 + len(label))
            lines.append(line.append(f"  +{len(after - before)} −{len(before - after)}"))
    return lines


def _rows(found: Comparison, head: Head) -> list[list[Text]]:
    """A row for each label that came or went, with the role it rests on."""
    rows = []
    for label, came, change in found.telling(head):
        sign = Text(f"{'+' if came else '−'}{visible(label)}", style=color(label))
        rows.append([Text(str(head)), sign, *_numbers(change)])
    return rows


def _numbers(change: Change) -> list[Text]:
    interval = "–"
    if math.isfinite(change.low):
        interval = f"{number(change.low)} to {number(change.high)}"
    lifts = f"{number(change.before)} → {number(change.after)}"
    return [Text(text) for text in (lifts, number(change.difference), interval)]


def _own(found: Comparison) -> list[list[Text]]:
    """The heads in which the user's roles moved most."""
    rows = []
    for role in found.before.roles:
        if role.name in found.moved:
            changes = [(head, found.change(head, role.name)) for head in found.before.heads]
            known = [pair for pair in changes if math.isfinite(pair[1].difference)]
            known.sort(key=lambda pair: -abs(pair[1].difference))
            for head, change in known[:OWN_SHOWN]:
                rows.append([Text(str(head)), Text(visible(role.name)), *_numbers(change)])
    return rows
