"""Labelled coreference: GAP, WinoBias, Winogender or plain JSONL, each item with its answer.

The format is found by looking at the first line. Every reader gives questions, and says of each
line that it does not use why. A damaged file is an error, which names the line.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnscope.errors import UsageError, did_you_mean
from attnscope.plain import visible
from attnscope.scoring.corpus import file_lines
from attnscope.scoring.passages import Link, Span
from attnscope.scoring.questions import (
    NOT_ONE_RIGHT,
    WRONG_OFFSETS,
    File,
    Lines,
    Question,
    Read,
    unusable,
)
from attnscope.scoring.schemas import BRACKETS, read_winobias, read_winogender


@dataclass(frozen=True)
class LabelledSet:
    """The questions of a file (or several), and how many lines gave none, by reason."""

    format: str
    questions: tuple[Question, ...]
    skipped: dict[str, int]


def read_labelled(paths: Sequence[Path], form: str | None = None) -> LabelledSet:
    """Read labelled files of one format, which is looked for where it is not told.

    Raises UsageError when it is none of FORMATS, or a line is damaged.
    """
    if form is not None and form not in FORMATS:
        raise UsageError(
            f"Unknown data format {visible(form)!r}: choose from {', '.join(FORMATS)}."
            + did_you_mean(form, FORMATS)
        )
    files = [(path, *file_lines(path)) for path in paths]
    kinds = {name: form or _format_of(name, lines) for _, name, lines in files}
    if len(set(kinds.values())) > 1:
        raise UsageError(
            "The files are of different formats: "
            + ", ".join(f"{name} is {kind}" for name, kind in kinds.items())
            + ". Give them one by one."
        )
    kind = next(iter(kinds.values()))
    questions, skipped = FORMATS[kind]([(path.name, name, lines) for path, name, lines in files])
    kept = []
    for question in questions:
        reason = unusable(question.link)
        if reason is None:
            kept.append(question)
        else:
            skipped[reason] += 1
    return LabelledSet(kind, tuple(kept), dict(skipped))


def _format_of(name: str, lines: Lines) -> str:
    if not lines:
        raise UsageError(f"{name} is empty: a labelled set has an item a line.")
    first = lines[0][1]
    if first.lstrip().startswith("{"):
        return "jsonl"
    fields = first.split("\t")
    if _GAP_MARK in fields:
        return "gap"
    if fields[0].strip() == "sentid" or "$OCCUPATION" in first or fields[0] == "occupation(0)":
        return "winogender"
    if len(BRACKETS.findall(first)) > 1:
        return "winobias"
    raise UsageError(
        f"{name} is no labelled set: it looks like none of {', '.join(FORMATS)}. "
        "If it is one, say which with --data-format."
    )


_GAP_FIELDS = ["ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref"]
_GAP_FIELDS += ["B", "B-offset", "B-coref"]
_GAP_MARK = "Pronoun-offset"  # in a header, and no cell of a row


def _read_gap(files: Sequence[File]) -> Read:
    """GAP (Webster et al. 2018): tab-separated, and quotes are characters like others."""
    found, skipped = [], Counter[str]()
    for _, name, lines in files:
        fields = _GAP_FIELDS
        for number, line in lines:
            cells = line.split("\t")
            if _GAP_MARK in cells:
                fields = cells
                missing = [field for field in _GAP_FIELDS if field not in fields]
                if missing:
                    raise UsageError(f"{name}, line {number}: GAP also has {', '.join(missing)}.")
                continue
            if len(cells) < len(_GAP_FIELDS):
                raise UsageError(
                    f"{name}, line {number}: {len(cells)} fields, and GAP has "
                    f"{', '.join(_GAP_FIELDS)}, URL with tabs between."
                )
            row = dict(zip(fields, cells, strict=False))
            text = row["Text"]
            spans = [_at(row, what, f"{name}, line {number}") for what in ("Pronoun", "A", "B")]
            right = [row[f"{what}-coref"].strip().upper() == "TRUE" for what in ("A", "B")]
            if any(text[slice(*spans[n])] != row[w] for n, w in enumerate(("Pronoun", "A", "B"))):
                skipped[WRONG_OFFSETS] += 1
            elif sum(right) != 1:
                skipped[NOT_ONE_RIGHT] += 1
            else:
                link = Link(spans[0], (spans[1], spans[2]), right.index(True))
                found.append(Question(row["ID"], text, link, row["ID"]))
    return found, skipped


def _at(row: dict[str, str], what: str, where: str) -> Span:
    offset = row[f"{what}-offset"].strip()
    if not (offset.isascii() and offset.isdecimal()):
        raise UsageError(f"{where}: {what}-offset is {visible(offset)!r}, and no number.")
    return int(offset), int(offset) + len(row[what])


def _read_jsonl(files: Sequence[File]) -> Read:
    """One object a line: text, pronoun [start, end], candidates [[start, end], ...], gold.

    Characters are counted from 0. `id`, `pair` (what twins share) and `variant` may be told.
    """
    found, skipped = [], Counter[str]()
    for _, name, lines in files:
        for number, line in lines:
            where = f"{name}, line {number}"
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UsageError(f"{where}: not JSON.") from error
            text, link = _link(entry, where)
            spans = (link.pronoun, *link.candidates)
            if any(not 0 <= start < end <= len(text) for start, end in spans):
                skipped[WRONG_OFFSETS] += 1
                continue
            id_ = str(entry.get("id", number))
            unit = str(entry.get("pair", text))
            found.append(Question(id_, text, link, unit, str(entry.get("variant", ""))))
    return found, skipped


def _link(entry: Any, where: str) -> tuple[str, Link]:
    asked = '{"text", "pronoun": [start, end], "candidates": [[start, end], ...], "gold": index}'
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: not an object with {asked}.")
    text, candidates, gold = (entry.get(name) for name in ("text", "candidates", "gold"))
    spans = [entry.get("pronoun"), *(candidates if isinstance(candidates, list) else [None])]
    whole = all(
        isinstance(span, list) and len(span) == 2 and all(type(at) is int for at in span)
        for span in spans
    )
    if not isinstance(text, str) or not whole or type(gold) is not int:
        raise UsageError(f"{where}: it takes {asked}.")
    if not 0 <= gold < len(spans) - 1:
        raise UsageError(f"{where}: gold is {gold}, and there are {len(spans) - 1} candidates.")
    pronoun, *others = ((span[0], span[1]) for span in spans if span is not None)
    return text, Link(pronoun, tuple(others), gold)


FORMATS: dict[str, Callable[[Sequence[File]], Read]] = {
    "gap": _read_gap,
    "winobias": read_winobias,
    "winogender": read_winogender,
    "jsonl": _read_jsonl,
}
