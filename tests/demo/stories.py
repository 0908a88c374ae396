"""The demonstration models' battery: passages in the language they were trained on.

`python -m tests.demo.stories` writes them again; they are the same every time.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import attnscope
from tests.demo.language import CorefItem, coref_items, join, passage

PATH = Path(attnscope.__file__).parent / "models" / "bundled" / "stories.json"
PASSAGES, SEED = 60, 20_251  # no seed that a model was trained or measured with
KINDS = ("gender", "animacy", "cause")


def stories() -> list[dict[str, Any]]:
    """Each holds one item of every kind, in turning order, with sentences without one between."""
    rng = random.Random(f"stories-{SEED}")
    items = {kind: coref_items(kind, PASSAGES, SEED) for kind in KINDS}
    made = []
    for number in range(PASSAGES):
        kinds = KINDS[number % 3 :] + KINDS[: number % 3]
        text, links = "", []
        for kind in kinds:
            text, link = _said(text, items[kind][number])
            links.append(link)
            text += " " + _without_pronoun(rng)
        made.append({"name": f"story-{number}", "register": "story", "text": text, "links": links})
    return made


def _said(text: str, item: CorefItem) -> tuple[str, dict[str, Any]]:
    start = len(text) + 1 if text else 0
    whole = f"{text} {item.text}" if text else item.text
    spans = sorted((start + s, start + e) for s, e in item.candidates)
    gold = spans.index(tuple(start + at for at in item.candidates[item.gold]))
    link = {
        "pronoun": [start + at for at in item.pronoun],
        "candidates": [list(span) for span in spans],
        "gold": gold,
    }
    words = [whole[s:e] for s, e in (link["pronoun"], *spans)]
    link["says"] = f"{words[0]}: {words[1 + gold]}, not {words[2 - gold]}"
    return whole, link


def _without_pronoun(rng: random.Random) -> str:
    while True:
        pieces = passage(rng)
        if not any(piece.antecedent for piece in pieces) and len(pieces) <= 16:
            return join(pieces)


def as_text(passages: list[dict[str, Any]]) -> str:
    """The file: a link a line."""
    lines = []
    for one in passages:
        links = ",\n".join(f"   {json.dumps(link)}" for link in one["links"])
        head = ",\n".join(f"  {json.dumps(k)}: {json.dumps(one[k])}" for k in list(one)[:3])
        lines.append(f' {{\n{head},\n  "links": [\n{links}\n  ]\n }}')
    return "[\n" + ",\n".join(lines) + "\n]\n"


if __name__ == "__main__":
    PATH.write_text(as_text(stories()), encoding="utf-8")
