"""What `ablate` measures on: texts and repeated random tokens, and which rows of them count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnscope.models.load import Model
from attnscope.models.text import Tokens, batch_of
from attnscope.scoring.reference import reference_texts
from attnscope.scoring.stimuli import RepeatedTokens
from attnscope.types import TokenBatch


@dataclass(frozen=True)
class Sample:
    """One text (1, T), the spans to measure it on (each (1, T - 1) bool), and one to compare with.

    `other` makes another text as long. Where the last token is an answer, `rival` is the id of the
    wrong one. Samples of one `unit` are resampled together; without it each is its own.
    """

    batch: TokenBatch
    spans: Mapping[str, Tensor]
    other: Callable[[], TokenBatch]
    rival: int | None = None
    unit: str | None = None


@dataclass(frozen=True)
class Samples:
    """What to measure on: `total` samples, 0 where that is not known; `cloze` tells of labelled
    pronouns what the stimulus tells of random tokens."""

    each: Iterable[Sample]
    total: int = 0
    stimulus: RepeatedTokens | None = None
    cloze: Mapping[str, Any] | None = None


def repeated_samples(stimulus: RepeatedTokens, most: int | None = None) -> Samples:
    """The sequences that repeat, as texts with a first and a second half.

    A half is asked at its own tokens: the last of the first half is followed by what nobody can
    know. What a sequence is compared with are the controls, which do not repeat.
    """
    repeated, control = stimulus.repeated(), stimulus.control()
    total = min(len(repeated), most or len(repeated))
    halves = {name: rows[:1] for name, rows in half_rows(stimulus, repeated).items()}
    each = (
        Sample(repeated.rows(n, n + 1), halves, partial(control.rows, at, at + 1))
        for n in range(total)
        for at in [n % len(control)]
    )
    return Samples(each, total, stimulus)


def half_rows(stimulus: RepeatedTokens, batch: TokenBatch) -> dict[str, Tensor]:
    """The rows of the first copy, and of the later ones, whose next token is random: (B, T - 1)."""
    place = torch.arange(batch.ids.shape[1] - 1)
    middle = stimulus.start + stimulus.length
    first = (place >= stimulus.start) & (place < middle - 1)
    second = (place >= middle) & (place < stimulus.stop - 1)
    return {
        "first half": first.expand(len(batch), -1),
        "second half": second.expand(len(batch), -1),
    }


def text_samples(model: Model, texts: Iterable[Tokens], seed: int) -> Samples:
    """Texts of at least two tokens, measured wherever a token follows that is no special one."""
    return Samples(_text_samples(model, texts, seed))


def _text_samples(model: Model, texts: Iterable[Tokens], seed: int) -> Iterator[Sample]:
    for number, text in enumerate(texts):
        batch = batch_of([text], model.pad_id).to(model.device)
        if len(text) < 2:
            continue
        special = torch.tensor([token.special for token in text.tokens])
        yield Sample(
            batch,
            {"text": ~special[None, 1:]},
            partial(reference_texts, model, 1, len(text), seed + number),
        )
