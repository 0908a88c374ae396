"""Labelled questions in a model's own tokens, and what its heads answer to them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import xxhash
from numpy.typing import NDArray

from attnscope.errors import CheckpointError
from attnscope.experiments.room import check_room
from attnscope.models.load import Model
from attnscope.models.text import Tokens
from attnscope.plain import visible
from attnscope.scoring.coreference import (
    Answers,
    CoreferenceProbe,
    Places,
    Readings,
    picked,
    query_of,
)
from attnscope.scoring.estimate import RESAMPLES
from attnscope.scoring.passages import Item, last_token, locate
from attnscope.scoring.questions import Question
from attnscope.scoring.rows import Choice, GreatestWeights
from attnscope.scoring.scan import watch
from attnscope.scoring.sums import Floats, HeadSums
from attnscope.types import Progress

Counted = NDArray[np.bool_]

CUT = "cut off: the text is longer than the model"
UNCOVERED = "a mention has no token of its own"


@dataclass(frozen=True)
class Prepared:
    """The questions that can be asked of a model, in its tokens; `skipped` are the others.

    items and questions are in the same order; several may be of one text.
    """

    texts: tuple[Tokens, ...]
    items: tuple[Item, ...]
    questions: tuple[Question, ...]
    skipped: dict[str, int]

    @property
    def cut(self) -> int:
        """How many items lie in a text that was cut, and are whole."""
        return sum(self.texts[item.text].cut > 0 for item in self.items)

    def units(self) -> Places:
        """A number for each item's unit, which is what is resampled."""
        known: dict[str, int] = {}
        numbers = [known.setdefault(question.unit, len(known)) for question in self.questions]
        return np.array(numbers, dtype=np.intp)

    def folds(self) -> Places:
        """Half of the units are 0 and half 1, by a hash of their names."""
        hashes = (xxhash.xxh3_64_intdigest(q.unit.encode()) for q in self.questions)
        return np.array([number % 2 for number in hashes], dtype=np.intp)


def prepare(model: Model, questions: Sequence[Question], progress: Progress) -> Prepared:
    """Tokenise the texts and find the mentions in them.

    Raises CheckpointError where the tokenizer cannot tell which characters a token covers.
    """
    numbers: dict[str, int] = {}
    texts: list[Tokens] = []
    items: list[Item] = []
    kept: list[Question] = []
    skipped: Counter[str] = Counter()
    for n, question in enumerate(questions):
        if n % 100 == 0:
            progress("tokenising", n, len(questions))
        if question.text not in numbers:
            what = f"text of {visible(question.id)}"
            tokens = model.reader.read(question.text, truncate=True, what=what)
            if tokens.offsets is None:
                raise CheckpointError(
                    f"The tokenizer of {visible(model.id)} does not tell which characters a token "
                    "covers, so mentions cannot be found. Name a fast one with --tokenizer."
                )
            numbers[question.text] = len(texts)
            texts.append(tokens)
        number = numbers[question.text]
        item = locate(number, question.text, question.link, texts[number])
        if item is None:
            skipped[CUT if texts[number].cut else UNCOVERED] += 1
        elif len({item.pronoun, *item.candidates}) <= len(item.candidates):
            skipped[UNCOVERED] += 1
        else:
            items.append(item)
            kept.append(question)
    used = sorted({item.text for item in items})
    place = {text: n for n, text in enumerate(used)}
    items = [replace(item, text=place[item.text]) for item in items]
    return Prepared(tuple(texts[n] for n in used), tuple(items), tuple(kept), dict(skipped))


@dataclass(frozen=True)
class Heard:
    """What every head said: the candidates' weights in every view, and the strict choice.

    strict (items, views, L, H) is the share of a right choice among all other words; chance
    (items, L) what a head that looks everywhere alike gets.
    """

    readings: Readings
    strict: Floats
    chance: Floats

    def strict_sums(self, name: str, view: Places, unit: Places) -> HeadSums:
        """The strict choices as sums over units, each head read in its view."""
        last = self.strict.shape[1] - 1  # a bidirectional model's one row serves both views
        right = picked(self.strict, np.minimum(view, last))
        answers = Answers(right, right, right, np.ones(len(unit), dtype=np.int64))
        n_units = int(unit.max()) + 1
        sums = answers.sums(name, unit, n_units)
        chance = np.zeros((n_units, self.chance.shape[1], 1))
        np.add.at(chance[..., 0], unit, self.chance)
        return HeadSums(sums.names, **{**sums.arrays(), "chance": chance})


def hear(model: Model, prepared: Prepared, n_views: int, progress: Progress) -> Heard:
    """One pass over the texts. Raises RunError when memory would not be enough."""
    items, texts = prepared.items, prepared.texts
    size = model.shape.n_layers * model.shape.n_heads
    each = sum(len(item.candidates) + 10 for item in items)  # float32 pairs; five float64
    check_room(
        size * (each * n_views * 4 + 3 * RESAMPLES * 8 + len(items) * 40),
        f"The answers of {size} heads to {len(items)} items",
        "Give fewer items, or --query pronoun.",
    )
    probe = CoreferenceProbe(model, items, [len(text) for text in texts], n_views)
    rows = range(n_views if model.shape.causal else 1)
    strict = GreatestWeights(
        model, [_choice(prepared, n, later) for n in range(len(items)) for later in rows]
    )
    watch(model, texts, [probe.watcher, strict], progress=progress, what="reading the texts")
    shape = (len(items), len(rows), model.shape.n_layers, model.shape.n_heads)
    right = np.moveaxis(strict.right.double().numpy(), -1, 0).reshape(shape)
    chance = strict.chance().T.reshape(*shape[:3])[:, 0]  # (items, L): of the pronoun's own row
    return Heard(probe.readings(), right, chance)


def _choice(prepared: Prepared, n: int, later: int) -> Choice:
    """The strict choice of item n: among all words but the pronoun, and the row's own."""
    item, question = prepared.items[n], prepared.questions[n]
    tokens = prepared.texts[item.text]
    query = query_of(item, later, len(tokens))
    own = {query, *_tokens_in(tokens, question.link.pronoun)}
    right = _right_tokens(tokens, question)  # "Jr." ends in a sign, and is a word all the same
    words = {
        token.index
        for token, sign in zip(tokens.tokens, tokens.punctuation, strict=True)
        if not token.special and not sign
    }
    return Choice(item.text, query, tuple(sorted((words | {*right}) - own)), right)


def _tokens_in(tokens: Tokens, span: tuple[int, int]) -> list[int]:
    offsets = tokens.offsets or ()
    return [n for n, (start, end) in enumerate(offsets) if start < span[1] and end > span[0]]


def _right_tokens(tokens: Tokens, question: Question) -> tuple[int, ...]:
    """The last sub-token of the right candidate, and wherever else the text has it so."""
    start, end = question.link.candidates[question.link.gold]
    name = re.escape(question.text[start:end])
    found = re.finditer(rf"(?<!\w){name}(?!\w)", question.text)
    spans = {(start, end), *(match.span() for match in found)}
    return tuple({at for span in spans if (at := last_token(tokens, span)) is not None})
