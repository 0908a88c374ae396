"""The figure of `attnscope circuits`: heads as dots, layer by layer, and who feeds whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from attnscope.errors import UsageError
from attnscope.experiments.circuits_result import CircuitsResult, Composition
from attnscope.plain import visible
from attnscope.render.palette import color
from attnscope.render.sheet import LABEL_SIZE, Sheet, style
from attnscope.types import Head

# Colour is not the only sign: each kind has its own dashes.
_LINES: dict[str, tuple[str, Any, str]] = {
    "Q": ("#FC9107", (0, (4, 1.5)), "into queries"),
    "K": ("#1D559F", "solid", "into keys"),
    "V": ("#289149", (0, (1, 1)), "into values"),
}
_PALE = "#C8C8C8"
_NAMED = 7.0  # points
_SHALLOW = 12  # layers: so many are all drawn


def draw_circuits(path: Path, result: CircuitsResult) -> None:
    """The pairs of a result as .png, .svg or .pdf. Raises UsageError where there is none."""
    if not result.top:
        raise UsageError("There is nothing to draw: no pair of heads was found.")
    with style(path):
        layers, n_heads = _layers(result), result.model["n_heads"]
        across, up = max(0.32, 3.2 / n_heads), max(0.26, 2.4 / len(layers))
        left, bottom = 0.6, 0.62
        width, height = n_heads * across, len(layers) * up
        sheet = Sheet(left + width + 1.75, bottom + height + 0.4)
        axes = sheet.axes(left, bottom, width, height)
        strongest = result.top[0].z
        for pair in reversed(result.top):  # the strongest lie on top
            _draw_pair(axes, pair, pair.z / strongest, faint=pair.z < result.family_z)
        _draw_heads(axes, result)
        ends = layers[0] - 0.6, layers[-1] + 0.6
        axes.set(xlim=(-0.6, n_heads - 0.4), ylim=ends, frame_on=False)
        for axis, every, size in ((axes.xaxis, range(n_heads), across), (axes.yaxis, layers, up)):
            step = next(step for step in (1, 2, 4, 8, 16) if step * size >= 0.2)
            shown = every[::step]
            axis.set_ticks(list(shown), [str(at) for at in shown], fontsize=LABEL_SIZE)
        sheet.name_axes(("head", "layer"), left + width / 2, 0.3, bottom + height / 2)
        _draw_legend(sheet, result, left + width + 0.25, bottom + height)
        sheet.write_ends(visible(result.model["id"]), [_note(result)])
        sheet.save(path)


def _layers(result: CircuitsResult) -> range:
    """All layers of a shallow model; of a deep one those of the pairs, and one on each side."""
    n_layers = result.model["n_layers"]
    if n_layers <= _SHALLOW:
        return range(n_layers)
    low = min(pair.source.layer for pair in result.top) - 1
    high = max(pair.target.layer for pair in result.top) + 1
    return range(max(low, 0), min(high + 1, n_layers))


def _draw_pair(axes: Axes, pair: Composition, share: float, faint: bool) -> None:
    hue, dashes, _ = _LINES[pair.kind]
    low, high = pair.source, pair.target
    # Bent, so that lines through the same column can be told apart.
    middle = (low.head + high.head) / 2 + 0.22 * (1 if pair.kind == "K" else -1)
    points = [_bent((low.head, middle, high.head), at / 24) for at in range(25)]
    heights = [low.layer + (high.layer - low.layer) * at / 24 for at in range(25)]
    look: dict[str, Any] = {"color": hue, "linestyle": dashes, "solid_capstyle": "round"}
    width, opacity = 0.5 + 1.7 * min(max(share, 0), 1), 0.3 if faint else 0.8
    axes.plot(points, heights, linewidth=width, alpha=opacity, zorder=2, **look)


def _bent(places: tuple[float, float, float], at: float) -> float:
    start, middle, end = places
    return (1 - at) ** 2 * start + 2 * at * (1 - at) * middle + at**2 * end


def _draw_heads(axes: Axes, result: CircuitsResult) -> None:
    ends = {head for pair in result.top for head in (pair.source, pair.target)}
    for head in (head for head in result.heads if head.layer in _layers(result)):
        labels = result.labels_of(head)
        hue = color(labels[0]) if labels and head in ends else _PALE
        size = 5.0 if head in ends else 2.5
        axes.plot(head.head, head.layer, "o", color=hue, markersize=size, zorder=3, mew=0)
        if head in ends:
            _name(axes, head)


def _name(axes: Axes, head: Head) -> None:
    look: dict[str, Any] = {"fontsize": _NAMED, "va": "center", "zorder": 4}
    clear = [withStroke(linewidth=2, foreground="white")]  # of the lines behind it
    axes.text(head.head + 0.14, head.layer, str(head), path_effects=clear, **look)


def _draw_legend(sheet: Sheet, result: CircuitsResult, left: float, top: float) -> None:
    y = top - 0.12
    for kind in (kind for kind in _LINES if any(pair.kind == kind for pair in result.top)):
        hue, dashes, words = _LINES[kind]
        sheet.page.plot([left, left + 0.32], [y, y], color=hue, linestyle=dashes, linewidth=1.6)
        sheet.write(left + 0.42, y, f"{kind}  {words}", va="center")
        y -= 0.18
    ends = {head for pair in result.top for head in (pair.source, pair.target)}
    found = [
        labels[0] for head in result.heads if head in ends and (labels := result.labels_of(head))
    ]
    for label in dict.fromkeys(found):
        y -= 0.18
        sheet.page.plot([left + 0.16], [y], "o", color=color(label), markersize=5, mew=0)
        sheet.write(left + 0.42, y, label, va="center")


def _note(result: CircuitsResult) -> str:
    weakest, strongest = result.top[-1].z, result.top[0].z
    words = f"the {len(result.top)} strongest; wider: larger z, {weakest:.0f} to {strongest:.0f}"
    layers, n_layers = _layers(result), result.model["n_layers"]
    if len(layers) < n_layers:
        words += f"; layers {layers[0]}–{layers[-1]} of {n_layers}"
    return words + ("; faint: no more than chance" if weakest < result.family_z else "")
