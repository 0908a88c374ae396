"""The table of `attnscope ablate`: what some heads are worth, beside what random sets are."""

from __future__ import annotations

import math

from rich.text import Text

from attnscope.attention.ablation import METHODS, MODES
from attnscope.experiments.ablation_result import AblationResult, Control, Effect
from attnscope.plain import number, signed
from attnscope.render.model import model_lines
from attnscope.render.table import Column, joined, lay_out, wrapped

_NAMED = 12  # heads that are named; the rest are counted

_CLOZE = (
    "names: in brackets behind the pronoun, as in “she (”, at the first token in which they "
    "differ. right - wrong: the loss on one less that on the other; below 0 the right name is "
    "likelier."
)

COLUMNS = (
    Column("on"),
    Column("loss", right=True),
    Column("without", right=True),
    Column("change", right=True),
    Column("interval", keep=3),
    Column("KL", right=True, keep=4),
    Column("random", right=True, keep=1),
    Column("their range", keep=2),
)


def ablation_table(result: AblationResult, width: int) -> Text:
    """The whole answer, each line within `width`."""
    lines = model_lines(result.model, _about(result), width)
    lines += [Text(), *effect_lines(result, width)]
    control = result.main.control
    words = (
        "loss: nats per token of what follows. KL: from the whole model's prediction to that "
        "without the heads, in nats."
    )
    if result.cloze is not None:
        words += f" {_CLOZE}"
    if math.isfinite(result.main.low):
        words += " interval: 95 %, over texts."
    if control is not None:
        words += f" {control_words(control)}"
    for line in (words, *result.notes):
        lines += [Text(part, style="dim") for part in wrapped(line, width)]
    return joined(lines)


def control_words(control: Control) -> str:
    """What the columns about random sets say."""
    sets = f"{control.draws} random sets" if control.draws > 1 else "one random set"
    return (
        f"random: the change without {sets} of as many heads of the same layers, on average; "
        f"their range: where the middle 95 % of them lie{', interpolated' * (control.draws < 20)}."
    )


def effect_lines(result: AblationResult, width: int) -> list[Text]:
    """Which heads were switched off and how, and a row for each effect."""
    named = [str(head) for head in result.heads[:_NAMED]]
    more = len(result.heads) - len(named)
    count = f"{len(result.heads)} head{'s' * (len(result.heads) != 1)}"
    words = f"Without {count}: {' '.join(named)}" + (f" … {more} more" if more else "")
    if result.stimulus is not None and result.n_texts < result.stimulus["sequences"]:
        words += f" (on {result.n_texts} of the {result.stimulus['sequences']} texts)"
    lines = [Text(line, style="bold") for line in wrapped(words, width)]
    how = f"{result.method}: each {METHODS[result.method]}. {result.mode}: {MODES[result.mode]}."
    if result.reference is not None:
        how += f" Other texts: {result.reference}."
    lines += [Text(line, style="dim") for line in wrapped(how, width)]
    shares = [effect for effect in result.effects if effect.unit == "share"]
    for effect in shares:
        lines += [Text(), *(Text(line) for line in wrapped(_share_words(effect), width))]
    rows = [_cells(effect) for effect in result.effects if effect not in shares]
    columns = [column for n, column in enumerate(COLUMNS) if any(row[n].plain for row in rows)]
    kept = [n for n, _ in enumerate(COLUMNS) if any(row[n].plain for row in rows)]
    table = lay_out(columns, [[row[n] for n in kept] for row in rows], width)
    return [*lines, Text(), *table, Text()]


def _share_words(effect: Effect) -> str:
    """How often the right answer is the likelier one, in a sentence."""
    words = f"{effect.on}: {number(effect.clean)} of the pronouns; without {number(effect.ablated)}"
    if effect.control is not None:
        low, high = (effect.clean + end for end in (effect.control.low, effect.control.high))
        average = effect.clean + effect.control.mean
        words += f"; without random heads {number(average)} ({number(low)}–{number(high)})"
    return f"{words[0].upper()}{words[1:]}."


def _about(result: AblationResult) -> str:
    bos = result.settings["bos"]["token"]
    if result.cloze is not None:
        items = f"{result.cloze['items']} of {result.cloze['of']} pronouns"
        return f"{items} ({result.cloze['source']}) · {f'{bos} first' if bos else 'no BOS'}"
    if result.stimulus is None:
        texts = "1 text" if result.n_texts == 1 else f"{result.n_texts} texts"
        return f"{texts}, {result.n_tokens} tokens · {f'{bos} first' if bos else 'no BOS'}"
    return stimulus_words({**result.stimulus, "sequences": result.n_texts})


def stimulus_words(stimulus: dict[str, object]) -> str:
    """What was read, as in `32 × 2 × 50 random tokens · <s> first`."""
    size = f"{stimulus['sequences']} × {stimulus['repeats']} × {stimulus['length']} random tokens"
    return f"{size} · {stimulus['bos']} first" if stimulus["bos"] else f"{size} · no BOS"


def _cells(effect: Effect) -> list[Text]:
    control = effect.control
    return [
        Text(effect.on),
        Text(plain(effect.clean)),
        Text(plain(effect.ablated)),
        Text(signed(effect.delta), style="bold"),
        Text(between(effect.low, effect.high)),
        Text(plain(effect.kl), style="dim"),
        Text("" if control is None else signed(control.mean)),
        Text("" if control is None else between(control.low, control.high), style="dim"),
    ]


def between(low: float, high: float) -> str:
    """`+0.16…+1.28`; empty where there are no bounds."""
    return f"{signed(low)}…{signed(high)}" if math.isfinite(low) else ""


def plain(value: float) -> str:
    """A number of nats, as in `4.22`."""
    return f"{value:.2f}" if math.isfinite(value) else "–"
