"""ablate: switch heads off, and measure what the model loses that random heads would not cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attnscope.attention.ablation import METHODS, MODES, Ablation
from attnscope.attention.lens import Lens
from attnscope.errors import UsageError, did_you_mean
from attnscope.experiments.ablation_result import AblationResult, Control, Effect
from attnscope.experiments.cloze import CHOSEN, ITEMS, LESS, RIGHT, WRONG, cloze_samples
from attnscope.experiments.head_sets import by_layer, control_sets, siblings
from attnscope.experiments.samples import Sample, Samples, repeated_samples, text_samples
from attnscope.models.load import Model
from attnscope.models.text import Tokens
from attnscope.models.widen import run_widened
from attnscope.plain import visible
from attnscope.scoring.labelled import LabelledSet
from attnscope.scoring.losses import predictions
from attnscope.scoring.reference import mean_outputs, reference_name, reference_texts
from attnscope.scoring.resampling import mean_over_texts
from attnscope.scoring.scan import BATCH_TOKENS
from attnscope.scoring.stimuli import RepeatedTokens, check_seed, check_stimulus, repeated_tokens
from attnscope.scoring.sums import Floats
from attnscope.types import Head, Progress, TokenBatch, no_progress

CONTROLS = 20
SEQUENCES = 8  # of repeated random tokens
_REFERENCES, _REFERENCE_LENGTH = 8, 128

Sets = Sequence[Mapping[int, tuple[int, ...]]]  # which heads each run goes without, by layer


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
    asked: LabelledSet | None = None,
    items: int = ITEMS,
    seed: int = 0,
    progress: Progress = no_progress,
) -> AblationResult:
    """What the model loses without these heads: on texts, a cloze or repeated random tokens.

    `asked` are labelled pronouns: so many `items` of them make the cloze.
    Loss in nats per token, and the KL divergence of the model without them from the whole one.
    `controls` random sets of as many other heads of the same layers are switched off beside.
    Raises UsageError for a method, a mode or a head that is not there.
    """
    check_ways(method, mode, controls)
    check_seed(seed)
    if not heads:
        raise UsageError("There is no head to switch off: name some with --head, as in 5.5,6.1.")
    for head in heads:
        model.shape.check_head(head, visible(model.id))
    model.predictor()
    if asked is not None:
        samples = cloze_samples(model, asked, items, seed)
    elif texts is not None:
        samples = text_samples(model, texts, seed)
    else:
        check_stimulus([length], repeats, sequences)
        samples = repeated_samples(
            repeated_tokens(model, length, sequences, max(8, sequences), seed, repeats)
        )
    return ablate_samples(
        model, heads, samples, method=method, mode=mode, controls=controls, seed=seed,
        progress=progress,
    )  # fmt: skip


def ablate_samples(
    model: Model,
    heads: Sequence[Head],
    samples: Samples,
    *,
    method: str,
    mode: str,
    controls: int,
    seed: int,
    progress: Progress,
) -> AblationResult:
    """The same on samples that are there already."""
    draws, overlap = control_sets(model, heads, controls, seed)
    sets = [by_layer(heads), *map(by_layer, draws)]
    stimulus = samples.stimulus
    means = _means(model, stimulus, seed) if method == "mean" else None
    found: dict[str, list[_Sums]] = {}
    units: dict[str, int] = {}
    unit, tokens = [], 0
    for number, sample in enumerate(samples.each):
        progress("switching heads off in text", number, samples.total)
        tokens += int(sample.batch.valid.sum())
        unit.append(units.setdefault(sample.unit or f"text {number}", len(units)))
        for name, sums in _one_text(model, sample, sets, method, means, mode == "frozen").items():
            found.setdefault(name, []).append(sums)
    if not any(sums.rows for each in found.values() for sums in each):
        raise UsageError("There is no next token to predict: give a text of at least two tokens.")
    member = np.zeros((len(units), len(unit)))  # what is resampled together
    member[unit, np.arange(len(unit))] = 1
    effects = [_effect(name, each, member, seed) for name, each in found.items()]
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
        n_texts=len(unit),
        n_tokens=tokens,
        stimulus=None if stimulus is None else stimulus.describe(seed),
        cloze=samples.cloze,
        reference=_reference(model, stimulus, method),
    )


@dataclass(frozen=True)
class _Sums:
    """Sums over so many rows, of the clean run and of each set, (1 + sets,); kl NaN: not asked."""

    loss: Floats
    kl: Floats
    rows: int


def _one_text(
    model: Model, sample: Sample, sets: Sets, method: str, means: Tensor | None, frozen: bool
) -> dict[str, _Sums]:
    """Loss and KL of the clean run and of each set, summed over each span."""
    length = sample.batch.ids.shape[1]
    texts = [sample.batch, *([sample.other()] if method == "resample" else [])]
    batch = _side_by_side(texts)
    room = max(1, BATCH_TOKENS // length - len(texts))
    asked = torch.stack(list(sample.spans.values())).any(0)
    parts: list[tuple[Tensor, ...]] = []
    for part in _evenly(sets, room):
        ablation = Ablation(method, tuple(part), means, frozen)
        runs = 1 + len(part)
        rows = [0] * runs + [1] * (len(texts) - 1)
        hidden = run_widened(model, batch, rows, ablation.first, Lens(ablation=ablation))[:runs]
        found = predictions(model.predictor(), hidden, sample.batch.ids, runs, asked)
        rival = _rival_loss(model, sample, hidden, runs)
        first = 1 if parts else 0  # the clean run is the same in each part
        parts.append((found.loss[first:, 0], found.kl[first:, 0], rival[first:]))
    loss, kl, wrong = (torch.cat(each).numpy() for each in zip(*parts, strict=True))
    spans = {name: rows[0].numpy() for name, rows in sample.spans.items()}  # (T - 1,)
    sums = {
        name: _Sums(loss[:, at].sum(1), kl[:, at].sum(1), int(at.sum()))
        for name, at in spans.items()
    }
    return sums if sample.rival is None else sums | _choice(sums[RIGHT].loss, wrong)


def _rival_loss(model: Model, sample: Sample, hidden: Tensor, runs: int) -> Tensor:
    """What the wrong answer costs in each run (runs,); 0 where there is none."""
    if sample.rival is None:
        return torch.zeros(runs, dtype=torch.float64)
    ids = sample.batch.ids.clone()
    ids[:, -1] = sample.rival
    return predictions(model.predictor(), hidden, ids, runs, sample.spans[RIGHT]).loss[:, 0, -1]


def _choice(right: Floats, wrong: Floats) -> dict[str, _Sums]:
    """What two answers cost beside each other, (1 + sets,) each."""
    measured = {
        WRONG: wrong,
        CHOSEN: (right < wrong) + (right == wrong) / 2,
        LESS: right - wrong,
    }
    nothing = np.full_like(right, np.nan)
    return {name: _Sums(value, nothing, 1) for name, value in measured.items()}


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


def _reference(model: Model, stimulus: RepeatedTokens | None, method: str) -> str | None:
    """The other texts of `mean` and `resample`, in words."""
    if method not in ("mean", "resample"):
        return None
    if stimulus is not None:
        return f"{len(stimulus.control())} of random tokens that do not repeat"
    stretches = f"{_REFERENCES} stretches" if method == "mean" else "stretches"
    return f"{stretches} of {reference_name(model)}"


def _effect(name: str, each: Sequence[_Sums], member: Floats, seed: int) -> Effect:
    """The effect on one span, from its sums by sample; member (units, samples)."""
    losses, kls = (member @ np.stack([getattr(sums, of) for sums in each]) for of in ("loss", "kl"))
    counts = member @ np.array([sums.rows for sums in each], dtype=float)
    moved = mean_over_texts(losses[:, 1:] - losses[:, :1], counts, seed)
    plain = mean_over_texts(losses[:, :2], counts, seed)
    kl = mean_over_texts(kls[:, 1], counts, seed)
    return Effect(
        on=name,
        clean=float(plain.value[0]),
        ablated=float(plain.value[1]),
        delta=float(moved.value[0]),
        low=float(moved.low[0]),
        high=float(moved.high[0]),
        kl=float(kl.value),
        kl_low=float(kl.low),
        kl_high=float(kl.high),
        control=Control.of(moved.value[1:]),
        control_kl=Control.of(kls[:, 2:].sum(0) / counts.sum()),
        clean_low=float(plain.low[0]),
        clean_high=float(plain.high[0]),
        unit="share" if name == CHOSEN else "nats",
    )


def check_ways(method: str, mode: str, controls: int) -> None:
    """Raise UsageError for a method or a mode that is not there, or fewer than no control sets."""
    for what, given, known in (("method", method, METHODS), ("mode", mode, MODES)):
        if given not in known:
            raise UsageError(
                f"Unknown {what} {visible(given)!r}: choose from {', '.join(known)}."
                + did_you_mean(given, known)
            )
    if controls < 0:
        raise UsageError(f"--controls is how many random sets to compare with, not {controls}.")
