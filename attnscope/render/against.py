"""Two checkpoints compared: the labels that came and went, then the heads one by one."""

from __future__ import annotations

import math

from rich.text import Text

from attnscope.experiments.against import Change, Comparison
from attnscope.plain import number, visible
from attnscope.render.model import model_lines
from attnscope.render.palette import LABELS, color
from attnscope.render.table import Column, joined, lay_out, wrapped
from attnscope.scoring.rules import UNCLASSIFIED
from attnscope.types import Head

COLUMNS = (
    Column("head"),
    Column("before"),
    Column("after"),
    Column("role", keep=4),
    Column("lift", right=True, keep=3),
    Column("then", right=True, keep=3),
    Column("change", right=True),
    Column("interval", keep=5),
)


def changes_table(found: Comparison, width: int) -> Text:
    """The whole answer, each line within `width`."""
    lines = model_lines(found.before.model, "before", width)
    lines += model_lines(found.after.model, "after", width)
    total = len(found.before.heads)
    title = f"{len(found.changed)} of {total} heads have other labels"
    lines += [Text(), Text(title, style="bold"), *_summary(found)]
    rows = [cells for head in found.changed for cells in _rows(found, head)]
    if rows:
        lines += [Text(), *lay_out(list(COLUMNS), rows, width)]
    legend = (
        "lift: 0 for an even head, 1 for a perfect one; the interval is that of the change, over "
        "the same texts resampled (95 %). A label may come or go with a small change at its "
        "threshold: where the interval holds 0, nothing is shown to have changed."
    )
    lines += [Text(line, style="dim") for line in ["", *wrapped(legend, width)]]
    return joined(lines)


def _summary(found: Comparison) -> list[Text]:
    lines = []
    for label in LABELS:
        if label == UNCLASSIFIED:
            continue
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
    names = [one.labels_of(head).labels or (UNCLASSIFIED,) for one in (found.before, found.after)]
    labels = [
        Text(", ").join(Text(visible(name), style=color(name)) for name in each) for each in names
    ]
    changes = found.telling(head)
    rows = [[Text(str(head)), *labels, *_numbers(changes[0] if changes else None)]]
    rows += [[Text(), Text(), Text(), *_numbers(change)] for change in changes[1:]]
    return rows


def _numbers(change: Change | None) -> list[Text]:
    if change is None:
        return [Text() for _ in COLUMNS[3:]]
    interval = "–"
    if math.isfinite(change.low):
        interval = f"{number(change.low)} to {number(change.high)}"
    numbers = [number(change.before), number(change.after), number(change.difference), interval]
    return [Text(change.role), *(Text(text) for text in numbers)]
