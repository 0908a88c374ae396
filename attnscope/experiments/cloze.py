"""The cloze of `ablate`: behind a pronoun, is the right name likelier than the wrong one?

The text ends with the pronoun and an opening bracket, as in "…, because she (", where writers put
whom they mean. What is compared is the first token in which the two names differ, as for indirect
objects in Wang et al. 2022 (Interpretability in the Wild, section 2.1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import takewhile

import numpy as np
import torch

from attnscope.errors import UsageError
from attnscope.experiments.samples import Sample, Samples
from attnscope.models.load import Model
from attnscope.models.text import batch_of
from attnscope.plain import visible
from attnscope.scoring.labelled import LabelledSet
from attnscope.scoring.mentions import words
from attnscope.scoring.passages import Span, passages_for
from attnscope.scoring.questions import Question
from attnscope.scoring.reference import reference_texts
from attnscope.types import Token

ITEMS = 100  # so many questions are asked, unless told otherwise
BEFORE, RIGHT, WRONG = "text before", "right name", "wrong name"
CHOSEN, LESS = "right name likelier", "right - wrong"
_OPEN = " ("
_ROWS = 16  # of the text before, evenly spread: a vocabulary of logits costs as much as a layer

_CUT = "longer than the model"
_ALIKE = "one name begins as the other does"
_ARTICLE = "one name has an article, the other none"
_UNKNOWN = "the tokenizer does not know a name or the bracket"


def bundled_cloze(model: Model) -> LabelledSet:
    """The marked pronouns of the passages that suit a model, which have a rival."""
    passages, what = passages_for(model)
    questions = [
        Question(f"{passage.name} {n}", passage.text, link, passage.name)
        for passage in passages
        for n, link in enumerate(passage.links)
        if len(link.candidates) > 1
    ]
    return LabelledSet(what, tuple(questions), {})


def cloze_samples(model: Model, asked: LabelledSet, items: int = ITEMS, seed: int = 0) -> Samples:
    """So many of the questions, drawn by the seed.

    Raises UsageError when none can be asked.
    """
    samples: list[Sample] = []
    skipped = Counter(asked.skipped)
    for n in np.random.default_rng(seed).permutation(len(asked.questions)):
        if len(samples) >= items:
            break
        made = _sample(model, asked.questions[n], seed + len(samples))
        if isinstance(made, Sample):
            samples.append(made)
        else:
            skipped[made] += 1
    if not samples:
        told = "; ".join(f"{n} times {reason}" for reason, n in skipped.items())
        raise UsageError(f"No pronoun can be asked for: {told or 'there is none'}.")
    about = {
        "source": asked.format,
        "items": len(samples),
        "of": len(asked.questions) + sum(asked.skipped.values()),
        "skipped": dict(skipped),
    }
    return Samples(samples, len(samples), cloze=about)


def _sample(model: Model, question: Question, seed: int) -> Sample | str:
    """The text up to the pronoun, the bracket and the right name; or why there is none."""
    link = question.link
    wrong = [span for n, span in enumerate(link.candidates) if n != link.gold]
    names = [_name(question.text, span) for span in (link.candidates[link.gold], max(wrong))]
    if len({name.startswith("the ") for name in names}) > 1:
        return _ARTICLE
    before = question.text[: link.pronoun[1]]
    read = [
        model.reader.read(
            f"{before}{_OPEN}{name}", truncate=True, what=f"text of {visible(question.id)}"
        )
        for name in names
    ]
    if any(text.cut for text in read):
        return _CUT
    right, rival = (text.tokens for text in read)
    bracket = _shared(right, model.reader.read(before).tokens)
    if model.tokenizer.unk_token_id in {token.id for token in (*right[bracket:], *rival[bracket:])}:
        return _UNKNOWN
    alike = _shared(right, rival)
    if alike == min(len(right), len(rival)) or right[alike].special or rival[alike].special:
        return _ALIKE
    ids = [token.id for token in right[: alike + 1]]
    batch = batch_of([model.reader.from_ids(ids)], model.pad_id).to(model.device)
    place = torch.arange(len(ids) - 1)
    some = place % -(-bracket // _ROWS) == 0
    special = batch.special[:, 1:].cpu()
    return Sample(
        batch,
        {
            BEFORE: (place < bracket - 1) & some & ~special,
            RIGHT: (place == alike - 1)[None],
        },
        partial(reference_texts, model, 1, len(ids), seed),
        rival[alike].id,
        question.unit,
    )


def _shared(one: Sequence[Token], other: Sequence[Token]) -> int:
    """How many tokens two texts begin with alike."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0].id == pair[1].id, pairs))


def _name(text: str, span: Span) -> str:
    """A candidate as it stands in a bracket: whatever article it had, it is a known one now."""
    first, *rest = text[slice(*span)].split()
    if first.lower() not in words().determiners or not rest:
        return " ".join((first, *rest))
    return " ".join(("the", *rest))
