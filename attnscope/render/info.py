"""What `attnscope models info` prints: the layers in groups of equals, and who shares what."""

from __future__ import annotations

from itertools import groupby

from rich.text import Text

from attnscope.attention.spec import AttentionSpec
from attnscope.experiments.info import InfoResult
from attnscope.experiments.room import size
from attnscope.plain import visible
from attnscope.render.model import model_lines
from attnscope.render.table import Column, joined, lay_out, wrapped

_COLUMNS = (
    Column("layers"),
    Column("kind"),
    Column("heads", right=True),
    Column("kv", right=True),
    Column("width", right=True),
    Column("sees"),
    Column("window", right=True),
    Column("rotary"),
    Column("norm"),
    Column("sink"),
    Column("softcap", right=True, keep=1),
    Column("scale", right=True, keep=2),
)


def info_table(result: InfoResult, width: int) -> Text:
    """One row for each run of layers that attend alike."""
    rows = []
    for spec, run in groupby(enumerate(result.specs), key=lambda pair: pair[1]):
        layers = [layer for layer, _ in run]
        span = f"{layers[0]}-{layers[-1]}" if len(layers) > 1 else str(layers[0])
        rows.append([Text(cell) for cell in (span, *_cells(spec))])
    lines = model_lines(result.model, f"stored as {result.layout}", width)
    lines += [Text(), *lay_out(_COLUMNS, rows, width), Text()]
    share = result.attention_parameters / max(result.parameters, 1)
    words = [
        f"who shares: {_sharing(result.sharing)}",
        f"parameters: {result.parameters:,}, {share:.0%} of them in attention",
        f"capture: the weights of every head over {result.length} tokens take "
        f"{size(result.capture_bytes)}",
        f"files: {visible(result.directory)}",
    ]
    lines += [Text(line) for text in words for line in wrapped(text, width, rest=2)]
    return joined(lines)


def _cells(spec: AttentionSpec) -> tuple[str, ...]:
    return (
        spec.kind,
        str(spec.n_heads),
        str(spec.kv_heads),
        str(spec.head_width),
        "left" if spec.causal else "both",
        "all" if spec.window is None else str(spec.window),
        _rotary(spec),
        spec.qk_norm or "no",
        "yes" if spec.sink else "no",
        "no" if spec.softcap is None else f"{spec.softcap:g}",
        f"{spec.scaling:.4g}",
    )


def _rotary(spec: AttentionSpec) -> str:
    """Which features of a head are turned: all, so many, or none."""
    if not spec.rotary:
        return "no"
    return "all" if spec.rotary_width is None else str(spec.rotary_width)


def _sharing(groups: list[list[int]]) -> str:
    if len(groups) == 1:
        return "every query head reads the one key/value head"
    if all(len(group) == 1 for group in groups):
        return "nothing, each query head has a key/value head of its own"
    shown = [f"{g[0]}-{g[-1]} read key/value head {n}" for n, g in enumerate(groups[:8])]
    more = f", … {len(groups) - 8} more" if len(groups) > 8 else ""
    return "query heads " + ", ".join(shown) + more
