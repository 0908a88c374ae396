"""A labelled question of coreference, and what its readers share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from attnscope.scoring.passages import Link

NOT_ONE_RIGHT = "not exactly one candidate is right"
LATER = "a candidate comes after the pronoun"
OVERLAP = "the candidates or the pronoun overlap"
WRONG_OFFSETS = "the offsets do not fit the text"
NO_RIVAL = "no second candidate was found"
NOT_FOUND = "a candidate or the pronoun was not found"

Lines = Sequence[tuple[int, str]]  # numbers and lines of a file
File = tuple[str, str, Lines]  # its name, what to call it in a message, its lines


@dataclass(frozen=True)
class Question:
    """A pronoun of a text, its candidates, and which of them is right.

    Twins have the same `unit` and differ by `variant`, as "pro" and "anti"; what has the same unit
    is never split and is resampled together.
    """

    id: str
    text: str
    link: Link
    unit: str
    variant: str = ""

    @property
    def pronoun(self) -> str:
        """The pronoun as the text has it."""
        return self.text[slice(*self.link.pronoun)]

    @property
    def distance(self) -> int:
        """Words from the right candidate to the pronoun."""
        return len(
            self.text[self.link.candidates[self.link.gold][1] : self.link.pronoun[0]].split()
        )


Read = tuple[list[Question], Counter[str]]  # and the lines that give none, by reason


def unusable(link: Link) -> str | None:
    """Why a question cannot be asked; the same items then serve models of every kind."""
    spans = sorted((*link.candidates, link.pronoun))
    if any(one[1] > other[0] for one, other in pairwise(spans)):
        return OVERLAP
    if any(start >= link.pronoun[0] for start, _ in link.candidates):
        return LATER
    return NO_RIVAL if len(link.candidates) < 2 else None
