"""The table of `attnscope bench`: each way against the plain forward of the same length."""

from __future__ import annotations

from rich.text import Text

from attnscope.experiments.bench import BenchResult
from attnscope.experiments.room import size
from attnscope.render.model import model_lines
from attnscope.render.table import Column, joined, lay_out, wrapped

_COLUMNS = (
    Column("tokens", right=True),
    Column("way"),
    Column("time", right=True),
    Column("× plain", right=True),
    Column("peak", right=True, keep=1),
    Column("× plain", right=True),
)


def bench_table(result: BenchResult, width: int) -> Text:
    """Seconds and memory, with their ratios to plain."""
    rows = [
        [
            Text(str(row.length)),
            Text(row.what),
            Text(f"{row.seconds:.3f} s"),
            Text(f"{row.time_ratio:.2f}"),
            Text(size(row.peak_bytes)),
            Text(f"{row.memory_ratio:.2f}"),
        ]
        for row in result.rows
    ]
    about = f"{result.settings['threads']} threads, {result.settings['rounds']} rounds in turn"
    lines = [*model_lines(result.model, about, width), Text(), *lay_out(_COLUMNS, rows, width)]
    legend = (
        "plain: transformers' sdpa. dense, blocked: ours, answering all that `heads` asks. eager: "
        "transformers' eager, weights kept. Medians; × plain is that of each round's own ratio. "
        "Peak is the process's, weights included."
    )
    return joined([*lines, Text(), *(Text(t, style="dim") for t in wrapped(legend, width))])
