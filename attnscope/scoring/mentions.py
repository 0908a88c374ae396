"""Pronouns and what they could stand for, found in English text by a few explained patterns.

A candidate is a run of capitalised words ("De la Sota" keeps its particles, "Dr. Smith" the title;
a function word that only begins a sentence is none, nor is a verb there, as in "Put the"), or a
determiner with such a name or with up to three lower-case words up to the noun. Of "Anna's sister"
both words are candidates.
The noun is the last before a function word, a sign, or a verb: a word in -ed (after the first
word), an irregular past form, or the word before an object ("the cat likes the ..."). So it needs
no part-of-speech tagger, and errs where the text is not plain; marks decide instead.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from attnscope.config_files import config_path
from attnscope.errors import UsageError
from attnscope.plain import visible
from attnscope.scoring.passages import Span

LONGEST = 3  # lower-case words after a determiner
_WORD = re.compile(r"\w+(?:[-'’.]\w+)*|[^\w\s]")
_MARK = re.compile(r"\[([^\[\]{}\n]+)\]|\{([^\[\]{}\n]+)\}")
_STRAY = re.compile(r"[{}]|\[\s*(\w+)|(\w+)\s*\]")
_PARTICLES = frozenset(("de", "la", "le", "van", "von", "der", "den", "di", "da", "du", "al", "of"))
_BEFORE_A_SENTENCE = frozenset(".!?:;“\"(—-–'‘")


@dataclass(frozen=True)
class Mentions:
    """A text without its marks, its pronouns, and the candidates; `how` says who found them."""

    text: str
    pronouns: tuple[Span, ...]
    candidates: tuple[Span, ...]
    how: str


@dataclass(frozen=True)
class Words:
    """The word lists of configs/mentions.yaml."""

    pronouns: frozenset[str]
    determiners: frozenset[str]
    objects: frozenset[str]
    function_words: frozenset[str]
    titles: frozenset[str]
    irregular_verbs: frozenset[str]


@cache
def words() -> Words:
    """The word lists, read once."""
    lists: dict[str, str] = yaml.safe_load(config_path("mentions.yaml").read_text("utf-8"))
    return Words(**{name: frozenset(text.split()) for name, text in lists.items()})


def find_mentions(text: str, how: str = "patterns", special: Collection[str] = ()) -> Mentions:
    """The pronouns and candidates of a text: those marked `[it]` and `{the bowl}`, or else found.

    Marks are taken out of the text; `special` are bracketed tokens of the model's own, [MASK],
    which are no marks. Where one kind is not marked it is found: by "patterns", or by "spacy".
    Raises UsageError for another way, or where spaCy or its English model is not installed.
    """
    if how not in FINDERS:
        raise UsageError(f"Unknown way to find mentions {how!r}: choose from {', '.join(FINDERS)}.")
    plain, pronouns, candidates = _marked(text, special)
    if pronouns and candidates:
        return Mentions(plain, tuple(pronouns), tuple(candidates), "marks")
    found = FINDERS[how](plain)
    named = candidates or [span for span in found if not _overlaps(span, pronouns)]
    by = how if not (pronouns or candidates) else f"marks and {how}"
    return Mentions(plain, tuple(pronouns or find_pronouns(plain)), tuple(named), by)


def is_pronoun(word: str) -> bool:
    """Is this a pronoun of the third person?"""
    return word.lower() in words().pronouns


def find_pronouns(text: str) -> list[Span]:
    """Every pronoun of the third person."""
    pieces = ((m.start(), re.split("['’]", m[0])[0]) for m in _WORD.finditer(text))
    return [(start, start + len(word)) for start, word in pieces if is_pronoun(word)]


def find_candidates(text: str) -> list[Span]:
    """Names, and determiners with their nouns, in the order of the text."""
    pieces = [piece for piece in _WORD.finditer(text) if not _pictured(piece[0])]
    found, at = [], 0
    while at < len(pieces):
        end = _name(pieces, at) or _phrase(pieces, at)
        if end > at:
            found.append(_span(pieces, at, end))
            last = pieces[end - 1][0]
            owned = _nouns(pieces, end - 1) if _bare(last) != last else 0
            if owned:
                found.append(_span(pieces, end, owned))
                end = owned
        at = max(end, at + 1)
    return found


def _span(pieces: list[re.Match[str]], at: int, end: int) -> Span:
    """The characters of these pieces, without a possessive ending."""
    last = pieces[end - 1]
    return pieces[at].start(), last.start() + len(_bare(last[0]))


def _name(pieces: list[re.Match[str]], at: int) -> int:
    """One past a name that begins here, or 0."""
    if not _capitalised(pieces, at):
        return 0
    end = at + 1
    while end < len(pieces) and _bare(pieces[end - 1][0]) == pieces[end - 1][0]:
        if _capitalised(pieces, end):
            end += 1
            continue
        ahead = end
        if pieces[end][0] == "." and pieces[end - 1][0] in words().titles:
            ahead = end + 1
        while ahead < len(pieces) and pieces[ahead][0] in _PARTICLES:
            ahead += 1
        if ahead == end or ahead == len(pieces) or not _capitalised(pieces, ahead):
            break
        end = ahead + 1
    return end


def _capitalised(pieces: list[re.Match[str]], at: int) -> bool:
    """Is this a word of a name? Where a sentence begins a function word is none."""
    known, word = words(), _bare(pieces[at][0])
    if not word[0].isupper() or word.lower() in known.determiners | known.pronouns | {"i", "i'm"}:
        return False
    if at and pieces[at - 1][0] not in _BEFORE_A_SENTENCE:
        return True
    follows = pieces[at + 1][0] if at + 1 < len(pieces) else ""
    return word.lower() not in known.function_words and follows not in known.objects


def _phrase(pieces: list[re.Match[str]], at: int) -> int:
    """One past the noun of a determiner that stands here, or 0."""
    if pieces[at][0].lower() not in words().determiners:
        return 0
    name = _name(pieces, at + 1) if at + 1 < len(pieces) else 0
    return name or _nouns(pieces, at)


def _nouns(pieces: list[re.Match[str]], at: int) -> int:
    """One past the noun that belongs to a determiner or an owner here, or 0."""
    known, end = words(), at + 1
    while end < len(pieces) and end - at <= LONGEST and not _stops(pieces[end][0], end - at > 1):
        end += 1
        if _bare(pieces[end - 1][0]) != pieces[end - 1][0]:
            break  # a possessive: what it has is another phrase
    follows = pieces[end][0].lower() if end < len(pieces) else ""
    if end - at > 2 and follows in known.objects:
        end -= 1
    return end if end > at + 1 else 0


def _stops(word: str, after_first: bool) -> bool:
    known = words()
    if not word.islower() or word in known.function_words or word in known.determiners:
        return True
    if word.endswith(("n't", "n’t")):
        return True
    return after_first and (word in known.irregular_verbs or word.endswith(("ed", "ly")))


def _pictured(piece: str) -> bool:
    """Is it an emoji, or what joins several? A noun phrase goes on across it."""
    return len(piece) == 1 and unicodedata.category(piece) in ("So", "Sk", "Cf", "Mn", "Me")


def _bare(word: str) -> str:
    """Without a possessive ending."""
    return word[:-2] if word[-2:] in ("'s", "’s") else word


def _marked(text: str, special: Collection[str]) -> tuple[str, list[Span], list[Span]]:
    """The text without marks, the spans marked with brackets, and those marked with braces.

    Without any brace, brackets mark pronouns only: "[1]" is none, and stays.
    """
    plain, done = "", 0
    spans: tuple[list[Span], list[Span]] = ([], [])
    marks = [m for m in _MARK.finditer(text) if m[0] not in special and (m[1] or m[2]).strip()]
    braced = any(mark[2] for mark in marks)
    for mark in marks:
        inside = mark[1] or mark[2]
        if mark[1] and not (
            is_pronoun(inside.strip()) or (braced and any(map(str.isalpha, inside)))
        ):
            continue
        plain += text[done : mark.start()]
        start = len(plain) + len(inside) - len(inside.lstrip())
        spans[mark[1] is None].append((start, start + len(inside.strip())))
        plain += inside
        done = mark.end()
    if spans[0] or spans[1]:
        _check_strays(text)
    return plain + text[done:], *spans


def _check_strays(text: str) -> None:
    """Raise UsageError for half a mark: a brace, or a bracket beside a pronoun."""
    for stray in _STRAY.finditer(_MARK.sub(lambda mark: "_" * len(mark[0]), text)):
        word = stray[1] or stray[2]
        if word is None or is_pronoun(word):
            around = text[max(stray.start() - 10, 0) : stray.end() + 10]
            raise UsageError(
                f"A mark is not closed, or lies in another, near {visible(around)!r}: write [it] "
                "for a pronoun, {the bowl} for what it could stand for."
            )


def _overlaps(span: Span, others: Collection[Span]) -> bool:
    return any(span[0] < end and start < span[1] for start, end in others)


def _spacy_candidates(text: str) -> list[Span]:
    """spaCy's noun chunks, pronouns left out."""
    try:
        import spacy
    except ImportError as error:
        raise UsageError(
            "--mentions spacy needs spaCy: type `pip install spacy`, then `python -m spacy "
            "download en_core_web_sm`. Or mark the mentions: [it], {the bowl}."
        ) from error
    installed = [name for name in spacy.util.get_installed_models() if name.startswith("en_")]
    if not installed:
        raise UsageError(
            "--mentions spacy needs an English model: type `python -m spacy download "
            "en_core_web_sm`. Or mark the mentions: [it], {the bowl}."
        )
    document: Any = spacy.load(sorted(installed)[0])(text)
    chunks = [(c.start_char, c.end_char) for c in document.noun_chunks if c.root.pos_ != "PRON"]
    return sorted(chunks)


FINDERS: dict[str, Callable[[str], list[Span]]] = {
    "patterns": find_candidates,
    "spacy": _spacy_candidates,
}
