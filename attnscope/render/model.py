"""The lines that open every table: which model this is, and how well it is proven."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from attnscope.plain import visible
from attnscope.render.table import wrapped

_DISPLAY = {"bert": "BERT", "gpt2": "GPT-2", "llama": "Llama"}


def model_lines(model: dict[str, Any], about: str, width: int) -> list[Text]:
    """Name and sizes, then the proof's figure and what was read."""
    name = visible(model["id"])
    family = _DISPLAY.get(model["family"], visible(model["family"]))
    heads = " × ".join(
        f"{model[key]} {name}{'s' * (model[key] != 1)}"
        for key, name in (("n_layers", "layer"), ("n_heads", "head"))
    )
    if model["n_kv_heads"] != model["n_heads"]:
        heads += f" ({model['n_kv_heads']} key/value)"
    reads = "causal" if model["causal"] else "bidirectional"
    sizes = f"{family} type, {heads}, {reads}, {model['dtype']}"
    apart = model["parity"]["max_abs_attention"]
    proof = f"proof {f'{apart:.0e}' if apart else '0'} against transformers eager"
    first = wrapped(f"{name}  {sizes}", width)
    lines = [Text(line) for line in first]
    lines[0].stylize("bold", 0, len(name))
    return lines + [Text(line, style="dim") for line in wrapped(f"{proof} · {about}", width)]
