"""The tables of `attnscope circuits`: who feeds whom, the strongest pairs, the heads one by one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.text import Text

from attnscope.experiments.amounts import grouped
from attnscope.experiments.circuits_result import FED, FEEDING, ByHead, CircuitsResult, Composition
from attnscope.plain import number
from attnscope.render.model import model_lines
from attnscope.render.palette import UNCLASSIFIED, color
from attnscope.render.table import Column, joined, lay_out, wrapped
from attnscope.types import Head

_SIDE_HEADS = 8  # induction or previous-token heads before the rest is left to JSON
_SIDE_PAIRS = 3
_MINUS = "−"


def circuits_table(result: CircuitsResult, width: int) -> Text:
    """Who feeds the induction heads, who reads the previous-token heads, the strongest pairs."""
    lines = model_lines(result.model, _about(result), width)
    lines += _sides("What the induction heads read", result.sources, True, result, width)
    lines += _sides("What reads the previous-token heads", result.targets, False, result, width)
    lines += [Text(), Text(_heading(result), style="bold")]
    if result.top:
        lines += lay_out(_columns(result), [_cells(result, pair) for pair in result.top], width)
    else:
        lines.append(Text("  none"))
    return joined([*lines, *_dim(["", *_legend(result, width)])])


def by_head_table(view: ByHead, width: int) -> Text:
    """Every head's own weights."""
    result = view.result
    columns = [
        Column("head"),
        *([Column("label", keep=4)] if result.labels is not None else []),
        Column("QK norm", right=True),
        Column("OV norm", right=True),
        Column("copies", right=True, keep=2),
        Column("place", right=True, keep=3),
        Column("share", right=True, keep=3),
    ]
    rows = [_head_cells(result, head) for head in result.heads]
    empty = [all(not row[at].plain.strip("–") for row in rows) for at in range(len(columns))]
    kept = [at for at in range(len(columns)) if not empty[at]]
    shown = [[row[at] for at in kept] for row in rows]
    lines = model_lines(result.model, _about(result), width)
    lines += [Text(), *lay_out([columns[at] for at in kept], shown, width)]
    words = {
        "QK norm": "QK norm, OV norm: Frobenius norms of W_QK and W_OV, norms folded in.",
        "copies": "copies: the OV eigenvalues through embedding and unembedding, their sum over "
        "their sizes; near 1 raises the tokens it attends to, near -1 lowers them. It decides "
        "nothing: heads that copy and heads that suppress may both have 1.",
        "place": "place: where positions alone would look, from the query; share: how much of what "
        "positions add depends on that distance alone.",
    }
    titles = [columns[at].title for at in kept]
    legend = [line for title in titles for line in wrapped(words.get(title, ""), width) if line]
    notes = [line for note in result.notes for line in wrapped(note, width)]
    return joined([*lines, *_dim(["", *legend, *notes])])


def _about(result: CircuitsResult) -> str:
    named = "labels from the battery" if result.labels is not None else "no labels"
    return f"weights alone · {grouped(len(result.kinds) * result.n_pairs)} compositions · {named}"


def _heading(result: CircuitsResult) -> str:
    words = "Strongest compositions"
    if len(result.kinds) < 3:
        words = f"Strongest {', '.join(result.kinds)}-compositions"
    for name, heads in (("from", result.source), ("to", result.target)):
        if heads:
            words += f" {name} {', '.join(map(str, heads))}"
    return words


def _sides(
    title: str,
    sides: Mapping[Head, Sequence[Composition]],
    reads: bool,
    result: CircuitsResult,
    width: int,
) -> list[Text]:
    """A line for each head with the strongest pairs it is an end of."""
    if not sides or result.source or result.target:
        return []
    lines = [Text(), Text(title, style="bold")]
    for head in list(sides)[:_SIDE_HEADS]:
        start = f"  {head!s:<6}"
        words = []
        for pair in sides[head][:_SIDE_PAIRS]:
            if pair.z < result.family_z:
                continue
            other = pair.source if reads else pair.target
            known = set(FEEDING if reads else FED) & set(result.labels_of(other))
            label = f"\u00a0{min(known)}" if known else ""
            words.append(f"{pair.kind}\u00a0{other}{label}\u00a0z\u00a0{pair.z:.0f}")
        said = "   ".join(words) or "nothing beyond chance"
        for n, line in enumerate(wrapped(said, width - len(start))):
            lines.append(
                Text((start if n == 0 else " " * len(start)) + line.replace("\u00a0", " "))
            )
    if len(sides) > _SIDE_HEADS:
        lines.append(Text(f"  and {len(sides) - _SIDE_HEADS} more heads in --format json", "dim"))
    return lines


def _columns(result: CircuitsResult) -> list[Column]:
    labels = [Column("label", keep=keep) for keep in (4, 5) if result.labels is not None]
    return [
        Column("kind"),
        Column("from"),
        *labels[:1],
        Column("to"),
        *labels[1:],
        Column("score", right=True),
        Column("z", right=True),
        Column("others", right=True, keep=3),
    ]


def _cells(result: CircuitsResult, pair: Composition) -> list[Text]:
    faint = "dim" if pair.z < result.family_z else ""
    cells = [Text(pair.kind)]
    for head in (pair.source, pair.target):
        cells.append(Text(str(head)))
        if result.labels is not None:
            cells.append(_label(result, head))
    cells += [Text(number(pair.score), faint), Text(f"{pair.z:.1f}", faint)]
    among = f"{pair.z_among:.1f}" if math.isfinite(pair.z_among) else "–"
    return [*cells, Text(among, faint)]


def _label(result: CircuitsResult, head: Head) -> Text:
    labels = result.labels_of(head)
    return Text(labels[0], color(labels[0])) if labels else Text("–", color(UNCLASSIFIED))


def _head_cells(result: CircuitsResult, head: Head) -> list[Text]:
    entry = result.head_entry(head)

    def shown(name: str, form: str) -> Text:
        return Text("–" if entry[name] is None else format(entry[name], form))

    copying, share = entry["copying_eigenvalues"], entry["position_share"]
    place = entry["position_offset"]
    return [
        Text(str(head)),
        *([_label(result, head)] if result.labels is not None else []),
        shown("qk_norm", ".3g"),
        shown("ov_norm", ".3g"),
        Text(number(math.nan if copying is None else copying)),
        Text("–" if place is None else f"{place:+d}".replace("-", _MINUS) if place else "0"),
        Text(number(math.nan if share is None else share)),
    ]


def _legend(result: CircuitsResult, width: int) -> list[str]:
    chance = number(result.baseline)
    z = result.compositions.z
    finite = z[z.isfinite()]
    words = [
        "kind: what the source writes is read into the target's queries (Q), keys (K) or values "
        f"(V). score: the share of it, {chance} by chance. z: against a source turned at random."
    ]
    if len(finite):
        beyond = 100 * float((finite > result.family_z).double().mean())
        words.append(
            f"By chance the strongest pair of all stays below {result.family_z:.1f} in 95 % of "
            f"models; here {beyond:.0f} % of pairs lie above. others: z against all pairs of its "
            "kind, in robust standard deviations from their median."
        )
    words.append(
        "Weights say what can happen, not what does: biases and the division in each norm are "
        "left out."
    )
    lines = [line for sentence in (*words, *result.notes) for line in wrapped(sentence, width)]
    if result.top and not result.target:
        reader = next(iter(result.sources), result.top[0].target)
        lines += wrapped(f"Next: attnscope circuits … --to {reader}", width)
    return lines


def _dim(lines: Sequence[str]) -> list[Text]:
    return [Text(line, style="dim") for line in lines]
