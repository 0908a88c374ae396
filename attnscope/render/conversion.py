"""What a conversion costs, as tables: one row a conversion, then the heads that changed most."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from attnscope.experiments.amounts import binary
from attnscope.experiments.conversion_result import Conversion, ConversionResult, ConvertedHead
from attnscope.plain import number, visible
from attnscope.render.palette import color
from attnscope.render.table import Column, lay_out, wrapped

HEADS_SHOWN = 8
_FIRST = ("induction", "previous-token", "duplicate-token")  # shown apart from the others

_COLUMNS = (
    Column("kv heads", right=True),
    Column("method"),
    Column("per token", right=True, keep=7),
    Column("loss", right=True),
    Column("more", right=True, keep=1),
    Column("interval", keep=5),
    Column("repeats", right=True, keep=6),
    Column("KL", right=True, keep=3),
    Column("hidden", right=True, keep=8),
    Column("labels", right=True, keep=2),
)


def texts_read(about: Mapping[str, Any]) -> str:
    """`16 English passages`, `1 story of its own language`."""
    what = str(about["what"])
    if about["texts"] == 1:
        what = what.replace("passages", "passage", 1).replace("stories", "story", 1)
    return f"{about['texts']} {what}"


def conversion_lines(result: ConversionResult, width: int, *, every: bool = False) -> list[Text]:
    """The damage, which labels survive, and the heads; all of those with `every`."""
    about = result.settings
    what = f"{texts_read(about)}, {about['tokens']} tokens; as it is: {result.loss:.2f}"
    title = f"What fewer key/value heads cost, untrained  {what}"
    lines = [Text(line) for line in wrapped(title, width)]
    lines[0].stylize("bold", 0, len("What fewer key/value heads cost, untrained"))
    rows = [_cells(result, one) for one in result.conversions]
    lines += [*lay_out(_COLUMNS, rows, width), Text()]
    lines += _survivors(result, width)
    changed = [one for one in result.conversions if not one.exact]
    for size in dict.fromkeys(one.n_kv_heads for one in changed):
        lines += [*_heads(result.best(size), width, every), Text()]
    notes = _notes(result)
    return lines + [Text(line, style="dim") for note in notes for line in wrapped(note, width)]


def _cells(result: ConversionResult, one: Conversion) -> list[Text]:
    size = f"{one.n_kv_heads} *" if one.n_kv_heads == result.n_kv_heads else str(one.n_kv_heads)
    before = sum(bool(head.labels_before) for head in one.heads)
    kept = sum(head.labels_before == head.labels and bool(head.labels) for head in one.heads)
    interval = "" if one.low is None or one.high is None else f"{one.low:.2f} – {one.high:.2f}"
    cells = [
        size,
        one.method if one.grouping == "neighbours" else f"{one.method}, {one.grouping}",
        binary(one.kv_bytes_per_token),
        f"{one.loss:.2f}",
        _more(one.loss_delta),
        "" if one.exact else interval,
        "–" if one.repeated is None else f"{one.repeated[1]:.2f}",
        number(one.attention_kl),
        number(one.hidden_error[-1]),
        f"{kept}/{before}",
    ]
    style = "dim" if one.exact else ""
    return [Text(cell, style=style) for cell in cells]


def _more(delta: float) -> str:
    return f"{delta:+.2f}" if abs(delta) >= 0.005 else f"{delta:.2f}".lstrip("-")


def _survivors(result: ConversionResult, width: int) -> list[Text]:
    """For each label, how many heads keep it."""
    changed = [one for one in result.conversions if not one.exact]
    if not changed:
        return []
    labels = dict.fromkeys(label for one in changed for label in one.survival)
    order = [*(name for name in _FIRST if name in labels), *(n for n in labels if n not in _FIRST)]
    columns = [Column("labels that survive")]
    worst = sorted(changed, key=lambda one: one.loss)  # the last to be left out is the best
    columns += [
        Column(f"{one.n_kv_heads} {one.method}", right=True, keep=1 + worst.index(one))
        for one in changed
    ]
    rows = []
    for label in order:
        cells = [Text(label, style=color(label))]
        for one in changed:
            found = one.survival.get(label)
            gained = 0 if found is None else found.after - found.kept
            text = "–" if found is None else f"{found.kept} of {found.before}"
            if found is not None and found.reached > found.kept:
                text += f" ({found.reached})"
            cells.append(Text(f"{text} +{gained}" if gained else text))
        rows.append(cells)
    return [*lay_out(columns, rows, width), Text()]


def _heads(one: Conversion, width: int, every: bool) -> list[Text]:
    """The heads whose attention changed most."""
    heads = list(one.heads) if every else sorted(one.heads, key=_rank)[:HEADS_SHOWN]
    columns = [
        Column("head"),
        Column("reads", right=True, keep=2),
        Column("KL", right=True),
        Column("was"),
        Column("is", keep=1),
    ]
    rows = [
        [
            Text(str(head.name)),
            Text(str(head.kv_head)),
            Text(number(head.attention_kl)),
            _labels(head.labels_before),
            _labels(head.labels),
        ]
        for head in heads
    ]
    which = "every head" if every else f"the {len(heads)} heads that lost most (labels, then KL)"
    title = f"{one.n_kv_heads} key/value heads, {one.method}: {which}"
    if one.n_kv_heads == 1:
        title = title.replace("heads,", "head,", 1)
    moved = " ".join(number(error) for error in one.hidden_error[1:])
    words = wrapped(f"hidden states moved, layer by layer: {moved}", width, 2, 4)
    return [
        *(Text(line, style="bold") for line in wrapped(title, width)),
        *(Text(line) for line in words),
        *lay_out(columns, rows, width),
    ]


def _rank(head: ConvertedHead) -> tuple[bool, float]:
    """Heads that lost a label other than resting come first."""
    lost = set(head.labels_before) - set(head.labels) - {"resting", "broad"}
    return not lost, -head.attention_kl


def _labels(labels: tuple[str, ...]) -> Text:
    if not labels:
        return Text("unclassified", style="dim")
    return Text(", ").join(Text(label, style=color(label)) for label in labels)


def _evidence() -> str:
    """Which labels each kind of text decides."""
    from attnscope.scoring.rules import read_rules  # brings torch, which the first table does not

    kinds: dict[str, set[str]] = {}
    for rule in read_rules():
        kinds.setdefault(rule.label, set()).update(rule.evidence)
    kinds.pop("coreference", None)
    texts = [label for label, needed in kinds.items() if needed == {"text"}]
    random = [label for label, needed in kinds.items() if needed == {"random"}]
    return (
        f": {', '.join(texts)} on the texts alone, {', '.join(random)} on the random tokens alone, "
        "the others on both"
    )


def _notes(result: ConversionResult) -> list[str]:
    about = result.settings
    aligned, random = about["aligned_on"], about["random"]
    chance = math.log(result.vocab_size)
    starred = any(one.n_kv_heads == result.n_kv_heads for one in result.conversions)
    notes = [
        f"{'*: the model as it is. ' if starred else ''}loss: nats a token; a model that knows "
        f"nothing would have {chance:.2f}. more: than as it is, with its 95 % interval over texts. "
        "KL: of each head's attention to what it was, nats, mean over heads. hidden: how far the "
        "last hidden state moved, over its size. labels: heads with the same labels as before.",
    ]
    if random is not None and result.repeated is not None:
        first, again = result.repeated
        notes.append(
            "repeats: loss on the second saying of random tokens, which induction makes small "
            f"(as it is: {again:.2f}, after {first:.2f} on the first)."
        )
    if any(one.method == "best-aligned" for one in result.conversions):
        notes.append(
            f"best-aligned: heads turned towards each other on {aligned['texts']} other "
            f"text{'s' * (aligned['texts'] != 1)} ({aligned['tokens']} tokens)."
        )
    every = [s for one in result.conversions if not one.exact for s in one.survival.values()]
    if any(one.reached > one.kept for one in every):
        notes.append(
            "In brackets: heads whose mean score still reaches the label. To keep it, its lower "
            f"bound for all heads at once must, over these {about['texts']} texts: without the "
            "label they may still do the same."
        )
    random_words = (
        f" and {random['sequences']} × 2 × {random['length']} random tokens" if random else ""
    )
    notes.append(
        f"Labels here rest on these texts{random_words}, fewer than `attnscope heads` reads, and "
        f"name no coreference{_evidence() if random else ''}."
    )
    notes.append(
        "What training would bring back is not measured here: converted models are usually "
        "trained further."
    )
    notes += [visible(note) for note in result.notes]
    if result.saved is not None:
        notes.append(f"Saved in {visible(result.saved)}, the weights in {about['saved_dtype']}.")
    return notes
