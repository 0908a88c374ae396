"""The table of `attnscope verify`: the differences layer by layer, and the verdict."""

from __future__ import annotations

from rich.text import Text

from attnscope.experiments.verify import VerifyResult
from attnscope.render.model import model_lines
from attnscope.render.table import Column, joined, lay_out, wrapped


def verify_table(result: VerifyResult, width: int) -> Text:
    """Largest absolute difference of attention and of output in every layer."""
    parity = result.parity
    columns = [Column("layer", right=True), Column("attention", right=True)]
    columns.append(Column("output", right=True, keep=1))
    rows = [
        [
            Text(str(layer.layer)),
            _figure(layer.max_abs_attention, layer.tolerance),
            Text(f"{layer.max_abs_output:.1e}"),
        ]
        for layer in parity.layers
    ]
    lines = model_lines(result.model, f"{parity.n_tokens} tokens compared", width)
    lines += [Text(), *lay_out(columns, rows, width), Text()]
    ends = (
        f"final hidden state {parity.max_abs_hidden:.1e} (largest value {parity.hidden_scale:.3g})"
    )
    if parity.max_abs_logits is not None:
        ends += f", logits {parity.max_abs_logits:.1e}"
    lines += [Text(line) for line in wrapped(ends, width)]
    verdict = "within" if result.ok else "BEYOND"
    words = f"{verdict} the tolerance of {parity.tolerance:.0e}"
    if parity.eps > 1e-4:  # half precision
        words += " and what rounding explains"
    lines.append(Text(words, style="bold" if result.ok else "bold red"))
    legend = "Largest absolute differences from transformers' own eager attention, same weights."
    return joined([*lines, *(Text(line, style="dim") for line in wrapped(legend, width))])


def _figure(value: float, tolerance: float) -> Text:
    return Text(f"{value:.1e}", style="" if value <= tolerance else "bold red")
