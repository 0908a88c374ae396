"""The tables of `attnscope coref TEXT`: a pronoun each, then the pattern of the best head."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from attnscope.experiments.coref_text import CorefText, Linked, Mention
from attnscope.plain import number, visible
from attnscope.render.model import model_lines
from attnscope.render.palette import color
from attnscope.render.show import signs_of
from attnscope.render.table import Column, joined, lay_out, wrapped
from attnscope.render.terminal import head_heatmap
from attnscope.types import Head

SHOWN = 10  # heads in a table, of which the coreference heads come first
_LABEL = "coreference"
_LONGEST = 18  # cells of a candidate's name


def coref_table(
    result: CorefText, width: int, *, console: Console | None, every: bool = False
) -> Text:
    """The whole answer, each line within `width`; `every` head instead of the first few."""
    lines = model_lines(result.model, _about(result), width)
    lines += [Text(), *_who(result, width)]
    heads = result.ranked if every else result.ranked[: max(SHOWN, len(result.voters[:20]))]
    for linked in result.linked:
        lines += [Text(), *_pronoun(result, linked, heads, width)]
    left = len(result.ranked) - len(heads)
    lines += [Text(line, style="dim") for line in ["", *_legend(result, left, width)]]
    lines += [Text(), _pattern(result, width, console)]
    return joined(lines)


def _about(result: CorefText) -> str:
    bos = result.settings["bos"]["token"]
    found = result.settings["mentions"]
    by = f"mentions by {found}" if found != "marks" else "mentions as marked"
    return f"{len(result.tokens)} tokens · {f'{bos} first' if bos else 'no BOS'} · {by}"


def _who(result: CorefText, width: int) -> list[Text]:
    """Which heads link pronouns in general, as the battery found."""
    known = result.known
    if known.scores is None:
        words = "Without a battery nothing says which heads link pronouns: all are shown alike."
        return [Text(line) for line in wrapped(words, width)]
    items = int(known.scores.n.max())
    if not result.voters:
        best = result.ranked[0]
        share = number(float(known.scores.raw[best.layer, best.head]))
        words = (
            f"No head passes as a coreference head on the battery's {items} pronouns (best: {best} "
            f"with {share}), so nobody votes. The best ones are shown."
        )
        return [Text(line) for line in wrapped(words, width)]
    named = "  ".join(str(head) for head in result.voters[:SHOWN])
    more = len(result.voters) - SHOWN
    words = f"Coreference heads  {named}" + (f"  … {more} more" if more > 0 else "")
    lines = [Text(line) for line in wrapped(words, width, rest=19)]
    lines[0].stylize(color(_LABEL), 0, len("Coreference heads"))
    return lines


def _pronoun(result: CorefText, linked: Linked, heads: Sequence[Head], width: int) -> list[Text]:
    pronoun = linked.pronoun
    what = f"(token {pronoun.token}): how a head's attention to the candidates is shared out"
    lines = wrapped(f"{visible(pronoun.text)} {what}", width)
    first = Text(lines[0])
    first.stylize("bold", 0, len(visible(pronoun.text)))
    found = [first, *(Text(line) for line in lines[1:])]
    found += lay_out(_columns(result, linked, heads), _rows(result, linked, heads), width)
    return [*found, *_vote(result, linked, width)]


def _columns(result: CorefText, linked: Linked, heads: Sequence[Head]) -> list[Column]:
    liked = [sum(_shares(linked, head)[n] for head in heads) for n in range(len(linked.candidates))]
    order = sorted(range(len(liked)), key=lambda n: -liked[n])
    # The least liked goes first where there is no room; the most liked never goes.
    names = [
        Column(name, right=True, keep=order.index(n))
        for n, name in enumerate(_names(linked.candidates))
    ]
    first = max(column.keep for column in names) + 1  # columns that go before any candidate
    columns = [Column("head"), Column("battery", right=True, keep=first + 1)]
    if _elsewhere(result):
        columns.append(Column("read at", keep=first + 2))
    return [*columns, *names, Column("live", right=True, keep=first)]


def _elsewhere(result: CorefText) -> bool:
    """Is any known head read elsewhere than at the pronoun?"""
    return any(result.known.view[head.layer, head.head] for head in result.voters)


def _names(candidates: Sequence[Mention]) -> list[str]:
    """What to call each candidate: its last words, told apart where two are alike."""
    shorts = [_short(visible(one.text)) for one in candidates]
    return [
        f"{name} ({one.token})" if shorts.count(name) > 1 else name
        for name, one in zip(shorts, candidates, strict=True)
    ]


def _short(name: str) -> str:
    if cell_len(name) <= _LONGEST:
        return name
    while cell_len(name) >= _LONGEST:
        name = name[1:]
    return "…" + name


def _rows(result: CorefText, linked: Linked, heads: Sequence[Head]) -> list[list[Text]]:
    return [_row(result, linked, head) for head in heads]


def _row(result: CorefText, linked: Linked, head: Head) -> list[Text]:
    at = head.layer, head.head
    known = result.known
    voter = bool(known.labelled[at])
    score = math.nan if known.scores is None else float(known.scores.raw[at])
    cells = [
        Text(str(head), style=color(_LABEL) if voter else ""),
        Text(number(score), style="" if voter else "dim"),
    ]
    if _elsewhere(result):
        cells.append(Text(_read_at(result, linked, head), style="dim"))
    choice = linked.choice(head)
    for n, share in enumerate(_shares(linked, head)):
        chosen = "bold" if voter else ""
        cells.append(Text(number(share), style=chosen if n == choice else "dim"))
    return [*cells, Text(number(float(linked.live[at])), style="dim")]


def _shares(linked: Linked, head: Head) -> list[float]:
    return [float(share) for share in linked.shares[:, head.layer, head.head]]


def _read_at(result: CorefText, linked: Linked, head: Head) -> str:
    view = int(result.known.view[head.layer, head.head])
    tokens = result.tokens.tokens
    if not result.model["causal"]:
        return f"→ {tokens[linked.pronoun.token].word}" if view else ""
    row = min(linked.pronoun.token + view, len(tokens) - 1)
    return f"{tokens[row].word} (+{view})" if view else ""


def _vote(result: CorefText, linked: Linked, width: int) -> list[Text]:
    if len(linked.candidates) == 1:
        words = (
            "Nothing else was found that it could stand for, so every share is 1. Mark what is "
            "missing, as in {the bowl}."
        )
        return [Text(line) for line in wrapped(words, width, first=2, rest=2)]
    if not result.voters:
        return []
    vote, heads = linked.vote(result.voters), len(result.voters)
    order = sorted(range(len(vote.heads)), key=lambda n: -vote.heads[n])
    told = ", ".join(f"{_name(linked, n)} {vote.heads[n]}" for n in order if vote.heads[n])
    words = f"Vote of the {heads} coreference heads: {told or 'undecided'}"
    if heads == 1:
        chosen = _name(linked, order[0]) if told else "nothing more than at the rest"
        words = f"The coreference head looks most at {chosen}"
    elif vote.weighed is not None:
        shares = vote.weighed
        order = sorted(order, key=lambda n: -shares[n])
        weighed = ", ".join(f"{_name(linked, n)} {number(shares[n])}" for n in order)
        words += f"; weighed by how much they look: {weighed}"
    return [Text(line, style="bold") for line in wrapped(f"{words}.", width, first=2, rest=2)]


def _name(linked: Linked, n: int) -> str:
    return visible(linked.candidates[n].text)


def _legend(result: CorefText, left: int, width: int) -> list[str]:
    live = (
        "live: how much of the head's whole attention goes to these candidates at all. Each "
        "candidate is looked for at its last token, where its words come together."
    )
    known = result.known.scores
    words = [live]
    if known is not None:
        words.insert(
            0,
            "battery: how often the head gives the right antecedent more than its rival, over "
            f"{int(known.n.max())} pronouns in the battery's texts (chance .50).",
        )
    if _elsewhere(result):
        words.append(
            "read at: a model may settle a pronoun a token or two later; the head is read where it "
            "was best on the battery (elsewhere: at the pronoun)."
            if result.model["causal"]
            else "read at: → means from the candidates to the pronoun, where the head was better."
        )
    if result.model["causal"]:
        words.append("Candidates after the pronoun are invisible to this model.")
    for reason, n in result.skipped.items():
        words.append(f"Left out: {n} mention{'s' * (n != 1)}, {reason}.")
    words += result.notes
    words.append("A head that looks at the right word need not be what makes the model know.")
    words += [f"{left} more heads: --all."] if left else []
    return wrapped(" ".join(words), width)


def _pattern(result: CorefText, width: int, console: Console | None) -> Text:
    [(head, weights)] = result.pattern.heads()
    label = _LABEL if result.known.labelled[head.layer, head.head] else "the best of them"
    causal = bool(result.model["causal"])
    return head_heatmap(
        weights.numpy(), result.tokens.tokens, width, title=f"head {head}, {label}", causal=causal,
        **signs_of(console),
    )  # fmt: skip
