"""What `attnscope show` prints: the pattern of a head, or the small maps of a layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from attnscope.experiments.capture import Capture
from attnscope.plain import visible
from attnscope.render.model import model_lines
from attnscope.render.table import joined
from attnscope.render.terminal import head_heatmap, layer_grid


def pattern(
    captured: Capture, width: int, *, console: Console | None, whole_layer: bool = False
) -> Text:
    """The selected heads, in the signs that the console can draw (a file gets characters)."""
    tokens, causal = captured.tokens.tokens, bool(captured.model["causal"])
    bos = captured.settings["bos"]["token"]
    about = f"{len(tokens)} tokens · {f'{bos} first' if bos else 'no BOS'}"
    lines = model_lines(captured.model, about, width)
    signs = signs_of(console)
    if whole_layer:
        for layer, weights in captured.attention.items():
            lines += [Text(), Text(f"layer {layer}", style="bold")]
            lines.append(layer_grid(weights.numpy(), tokens, width, causal=causal, **signs))
        return joined(lines)
    for head, weights in captured.heads():
        lines.append(Text())
        lines.append(
            head_heatmap(
                np.asarray(weights), tokens, width, title=f"head {head}", causal=causal, **signs
            )
        )
    return joined(lines)


def draw(path: Path, captured: Capture) -> None:
    """The same as a figure: the pattern of one head, or the selected heads in small."""
    from attnscope.render.figures import draw_head, draw_layer  # matplotlib takes its time

    tokens, heads = captured.tokens.tokens, list(captured.heads())
    if len(heads) == 1:
        title = f"{visible(captured.model['id'])}  head {heads[0][0]}"
        draw_head(path, heads[0][1].numpy(), tokens, title=title)
        return
    weights = np.stack([weights.numpy() for _, weights in heads])
    draw_layer(path, weights, tokens, names=[str(head) for head, _ in heads])


def signs_of(console: Console | None) -> dict[str, Any]:
    """Which signs a pattern may be drawn in, for the functions of terminal.py."""
    return {
        "colour": console is not None and console.color_system in ("256", "truecolor"),
        "true_colour": console is not None and console.color_system == "truecolor",
        "ascii_only": console is not None and not _draws_blocks(console),
    }


def _draws_blocks(console: Console) -> bool:
    """Can the stream behind the console write block characters?"""
    try:
        "█░·".encode(getattr(console.file, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True
