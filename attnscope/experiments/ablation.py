"""ablate: switch heads off, and measure what the model loses that random heads would not cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from attnscope.attention.ablation import METHODS, MODES, Ablation
from attnscope.attention.lens import Lens
from attnscope.errors import UsageError, did_you_mean
from attnscope.experiments.ablation_result import AblationResult, Control, Effect
from attnscope.experiments.head_sets import by_layer, control_sets, siblings
from attnscope.models.load import Model
from attnscope.models.text import Tokens, batch_of
from attnscope.models.widen import run_widened
from attnscope.plain import visible
from attnscope.scoring.losses import predictions
from attnscope.scoring.reference import mean_outputs, reference_texts
from attnscope.scoring.resampling import mean_over_texts
from attnscope.scoring.scan import BATCH_TOKENS
from attnscope.scoring.stimuli import RepeatedTokens, repeated_tokens
from attnscope.scoring.sums import Floats
from attnscope.types import Head, Progress, TokenBatch, no_progress

CONTROLS = 20
SEQUENCES = 8  # of repeated random tokens
_REFERENCES, _REFERENCE_LENGTH = 8, 128

Sets = Sequence[Mapping[int, tuple[int, ...]]]  # which heads each run goes without, by layer


@dataclass(frozen=True)
class Sample:
    """One text (1, T), the spans to measure it on (each (1, T - 1) bool), and one to compare with.

    `other` makes another text as long.
    """

    batch: TokenBatch
    spans: Mapping[str, Tensor]
    other: Callable[[], TokenBatch]


def ablate(
    model: Model,
    heads: Sequence[Head],
    texts: Iterable[Tokens] | None = None,
    *,
    method: str = "mean",
    mode: str = "full",
    controls: int = CONTROLS,
    length: int = 50,
    repeats: int = 2,
    sequences: int = SEQUENCES,
    seed: int = 0,
    progress: Progress = no_progress,
) -> AblationResult:
    """What the model loses without these heads: on texts, or on repeated random tokens.

    Loss in nats per token, and the KL divergence of the model without them from the whole one.
    `controls` random sets of as many other heads of the same layers are switched off beside.
    Raises UsageError for a method, a mode or a head that is not there.
    """
    _check(model, heads, method, mode)
    stimulus = None
    if texts is None:
        stimulus = repeated_tokens(model, length, sequences, max(8, sequences), seed, repeats)
        samples: Iterable[Sample] = repeated_samples(stimulus)
        total = sequences
    else:
        samples, total = _text_samples(model, texts, seed), 0
    return ablate_samples(
        model, heads, samples, total, stimulus, method=method, mode=mode, controls=controls,
        seed=seed, progress=progress,
    )  # fmt: skip


def ablate_samples(
    model: Model,
    heads: Sequence[Head],
    samples: Iterable[Sample],
    total: int,
    stimulus: RepeatedTokens | None,
    *,
    method: str,
    mode: str,
    controls: int,
    seed: int,
    progress: Progress,
) -> AblationResult:
    """The same on samples that are there already; `total` of them, 0 where that is not known."""
    draws, overlap = control_sets(model, heads, controls, seed)
    sets = [by_layer(heads), *map(by_layer, draws)]
    means = _means(model, stimulus, seed) if method == "mean" else None
    losses: dict[str, list[Floats]] = {}
    divergences: dict[str, list[Floats]] = {}
    rows: dict[str, list[int]] = {}
    tokens = 0
    for number, sample in enumerate(samples):
        progress("switching heads off in text", number, total)
        tokens += int(sample.batch.valid.sum())
        for name, found in _one_text(model, sample, sets, method, means, mode == "frozen").items():
            losses.setdefault(name, []).append(found[0])
            divergences.setdefault(name, []).append(found[1])
            rows.setdefault(name, []).append(int(sample.spans[name].sum()))
    if not any(sum(counts) for counts in rows.values()):
        raise UsageError("There is no next token to predict: give a text of at least two tokens.")
    effects = [
        _effect(name, np.stack(losses[name]), np.stack(divergences[name]), rows[name], seed)
        for name in losses
    ]
    return AblationResult(
        model=model.describe(),
        settings=model.settings(seed),
        heads=tuple(heads),
        siblings=siblings(model, heads),
        method=method,
        mode=mode,
        effects=tuple(effects),
        overlap=overlap,
        controls=controls,
        n_texts=len(rows[effects[0].on]),
        n_tokens=tokens,
        stimulus=None if stimulus is None else stimulus.describe(seed),
    )


def repeated_samples(stimulus: RepeatedTokens, most: int | None = None) -> Iterator[Sample]:
    """The sequences that repeat, as texts with a first and a second half.

    A half is asked at its own tokens: the last of the first half is followed by what nobody can
    know. What a sequence is compared with are the controls, which do not repeat.
    """
    repeated, control = stimulus.repeated(), stimulus.control()
    for n in range(min(len(repeated), most or len(repeated))):
        at = n % len(control)
        yield Sample(
            repeated.rows(n, n + 1),
            {name: rows[:1] for name, rows in half_rows(stimulus, repeated).items()},
            partial(control.rows, at, at + 1),
        )


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


def _one_text(
    model: Model, sample: Sample, sets: Sets, method: str, means: Tensor | None, frozen: bool
) -> dict[str, tuple[Floats, Floats]]:
    """Loss and KL of the clean run and of each set, summed over each span: (1 + sets,) each."""
    length = sample.batch.ids.shape[1]
    texts = [sample.batch, *([sample.other()] if method == "resample" else [])]
    batch = _side_by_side(texts)
    room = max(1, BATCH_TOKENS // length - len(texts))
    asked = torch.stack(list(sample.spans.values())).any(0)
    losses: list[Tensor] = []
    divergences: list[Tensor] = []
    for part in _evenly(sets, room):
        ablation = Ablation(method, tuple(part), means, frozen)
        runs = 1 + len(part)
        rows = [0] * runs + [1] * (len(texts) - 1)
        hidden = run_widened(model, batch, rows, ablation.first, Lens(ablation=ablation))
        found = predictions(model.predictor(), hidden[:runs], sample.batch.ids, runs, asked)
        first = 0 if not losses else 1  # the clean run is the same in each part
        losses.append(found.loss[first:, 0])
        divergences.append(found.kl[first:, 0])
    loss, kl = torch.cat(losses).numpy(), torch.cat(divergences).numpy()  # (1 + sets, T - 1)
    return {
        name: (loss[:, rows[0].numpy()].sum(1), kl[:, rows[0].numpy()].sum(1))
        for name, rows in sample.spans.items()
    }


def _evenly(sets: Sets, most: int) -> Iterator[Sets]:
    """The sets in parts of like size, none above `most`."""
    parts = math.ceil(len(sets) / most)
    for part in range(parts):
        yield sets[part * len(sets) // parts : (part + 1) * len(sets) // parts]


def _side_by_side(batches: Sequence[TokenBatch]) -> TokenBatch:
    return TokenBatch(
        *(
            torch.cat([getattr(batch, name) for batch in batches])
            for name in ("ids", "valid", "special", "punctuation")
        )
    )


def _means(model: Model, stimulus: RepeatedTokens | None, seed: int) -> Tensor:
    if stimulus is not None:
        other = stimulus.control()
    else:
        length = min(_REFERENCE_LENGTH, model.shape.max_positions or _REFERENCE_LENGTH)
        other = reference_texts(model, _REFERENCES, length, seed)
    return mean_outputs(model, other, max(1, BATCH_TOKENS // other.ids.shape[1]))


def _effect(name: str, losses: Floats, divergences: Floats, rows: list[int], seed: int) -> Effect:
    """losses and divergences (N, 1 + sets): sums over this many rows of each text."""
    counts = np.array(rows, dtype=float)
    moved = mean_over_texts(losses[:, 1:] - losses[:, :1], counts, seed)
    plain = losses.sum(0) / counts.sum()
    kl = mean_over_texts(divergences[:, 1], counts, seed)
    return Effect(
        on=name,
        clean=float(plain[0]),
        ablated=float(plain[1]),
        delta=float(moved.value[0]),
        low=float(moved.low[0]),
        high=float(moved.high[0]),
        kl=float(kl.value),
        kl_low=float(kl.low),
        kl_high=float(kl.high),
        control=Control.of(moved.value[1:]),
        control_kl=Control.of(divergences[:, 2:].sum(0) / counts.sum()),
    )


def _check(model: Model, heads: Sequence[Head], method: str, mode: str) -> None:
    for what, given, known in (("method", method, METHODS), ("mode", mode, MODES)):
        if given not in known:
            raise UsageError(
                f"Unknown {what} {visible(given)!r}: choose from {', '.join(known)}."
                + did_you_mean(given, known)
            )
    if not heads:
        raise UsageError("There is no head to switch off: name some with --head, as in 5.5,6.1.")
    for head in heads:
        model.shape.check_head(head, visible(model.id))
    model.predictor()
