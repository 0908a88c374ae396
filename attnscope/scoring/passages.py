"""Passages with marked pronouns: read from their files, and found again among the tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from attnscope.models.load import Model
from attnscope.models.text import Tokens

Span = tuple[int, int]  # characters [start, end)
_ARTICLES = ("the", "a", "an")


@dataclass(frozen=True)
class Link:
    """A pronoun and what it could stand for; candidates[gold] is what it does stand for."""

    pronoun: Span
    candidates: tuple[Span, ...]
    gold: int

    @property
    def nearest(self) -> int:
        """The candidate that ends last before the pronoun."""
        return max(range(len(self.candidates)), key=lambda n: self.candidates[n][1])


@dataclass(frozen=True)
class Passage:
    """A text, its kind, and every pronoun in it that refers back."""

    name: str
    register: str
    text: str
    links: tuple[Link, ...]


@dataclass(frozen=True)
class Item:
    """A link in tokens of its text: last sub-tokens of the pronoun and of each candidate."""

    text: int
    pronoun: int
    candidates: tuple[int, ...]
    gold: int
    nearest: int
    named: tuple[int, ...]  # how often the text has a word of each candidate, its most frequent


@dataclass(frozen=True)
class Battery:
    """The texts a model is tested on, and the links that they hold; `skipped` were cut off."""

    texts: tuple[Tokens, ...]
    items: tuple[Item, ...]
    skipped: int
    what: str


@cache
def bundled_passages() -> tuple[Passage, ...]:
    """The English passages of the battery, in the order of their files."""
    folder = files("attnscope.models").joinpath("bundled", "passages")
    found = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".json")), key=_name)
    return tuple(passage for entry in found for passage in read_passages(entry))


def passages_for(model: Model) -> tuple[tuple[Passage, ...], str]:
    """The passages that suit a model: the bundled ones know a made-up language, told in stories."""
    if model.source.kind == "bundled":
        return _stories(), "stories of its own language"
    return bundled_passages(), "English passages"


@cache
def _stories() -> tuple[Passage, ...]:
    return tuple(read_passages(files("attnscope.models").joinpath("bundled", "stories.json")))


def read_passages(path: Traversable | Path) -> list[Passage]:
    """The passages of one file."""
    return [_passage(entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


def _passage(entry: dict[str, Any]) -> Passage:
    links = tuple(
        Link(
            (link["pronoun"][0], link["pronoun"][1]),
            tuple((start, end) for start, end in link["candidates"]),
            link["gold"],
        )
        for link in entry["links"]
    )
    return Passage(entry["name"], entry["register"], entry["text"], links)


def _name(entry: Traversable) -> str:
    return entry.name


def read_battery(model: Model) -> Battery:
    """Tokenise the passages that suit a model; those too long for it are cut."""
    passages, what = passages_for(model)
    texts = tuple(model.reader.read(passage.text, truncate=True) for passage in passages)
    items, wanted = [], 0
    for number, (passage, tokens) in enumerate(zip(passages, texts, strict=True)):
        choices = [link for link in passage.links if len(link.candidates) > 1]
        wanted += len(choices)
        items += [i for link in choices if (i := locate(number, passage.text, link, tokens))]
    return Battery(texts, tuple(items), wanted - len(items), what)


def locate(number: int, text: str, link: Link, tokens: Tokens) -> Item | None:
    """A link among the tokens of text `number`; None where a part of it is not there."""
    at = [last_token(tokens, span) for span in (link.pronoun, *link.candidates)]
    if any(place is None for place in at):
        return None
    pronoun, *candidates = (place for place in at if place is not None)
    named = tuple(times_named(text, text[slice(*span)]) for span in link.candidates)
    return Item(number, pronoun, tuple(candidates), link.gold, link.nearest, named)


def last_token(tokens: Tokens, span: Span) -> int | None:
    """The last token that covers some of the characters; None if they are not all covered."""
    if tokens.offsets is None:
        return None
    start, end = span
    covering = [
        n for n, (s, e) in enumerate(tokens.offsets) if s < end and e > start and (s, e) != (0, 0)
    ]
    if not covering or tokens.offsets[covering[-1]][1] < end:
        return None
    return covering[-1]


def times_named(text: str, name: str) -> int:
    """How often the text has the most frequent word of a name; articles do not count."""
    return max(
        (text.count(word) for word in name.split() if word.lower() not in _ARTICLES), default=0
    )


def unknown_share(model: Model, texts: tuple[Tokens, ...]) -> float:
    """The share of the texts' tokens that the tokenizer does not know."""
    unknown = model.tokenizer.unk_token_id
    plain = [token.id for text in texts for token in text.tokens if not token.special]
    return plain.count(unknown) / max(len(plain), 1)
