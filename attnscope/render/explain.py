"""Why heads have their labels, as paragraphs in a terminal."""

from __future__ import annotations

from rich.text import Text

from attnscope.experiments.explain import explain
from attnscope.experiments.heads_result import HeadsResult
from attnscope.plain import visible
from attnscope.render.model import model_lines
from attnscope.render.palette import color
from attnscope.render.table import joined, wrapped
from attnscope.scoring.rules import UNCLASSIFIED


def explanation(result: HeadsResult, width: int) -> Text:
    """Each head that was asked for, sentence by sentence, within `width`."""
    lines = model_lines(result.model, "why the heads have their labels", width)
    for head in result.explained:
        title = Text(f"{head}  ", style="bold")
        names = result.labels_of(head).labels or (UNCLASSIFIED,)
        title.append_text(Text(", ").join(Text(name, style=color(name)) for name in names))
        lines += [Text(), title]
        for sentence in explain(result, head):
            lines += [Text(line) for line in wrapped(visible(sentence), width - 2, 2, 4)]
    return joined(lines)
