"""induction: which heads look from a repeated token to what followed it, copy it, and matter."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import torch

from attnscope.attention.lens import Lens
from attnscope.attention.probes import Columns, Offset, Probe
from attnscope.errors import UsageError
from attnscope.experiments.ablation import CONTROLS, ablate_samples, check_ways
from attnscope.experiments.ablation_result import AblationResult
from attnscope.experiments.feeding import feeding
from attnscope.experiments.induction_result import InductionResult, Loss, Run
from attnscope.experiments.room import check_room
from attnscope.experiments.samples import half_rows, repeated_samples
from attnscope.models.direct import DirectPath, find_direct_path
from attnscope.models.load import Model
from attnscope.plain import visible
from attnscope.scoring.battery import ERROR, roles_tested
from attnscope.scoring.copying import Copying
from attnscope.scoring.estimate import Scores, estimate
from attnscope.scoring.labels import Evidence, judge
from attnscope.scoring.losses import predictions
from attnscope.scoring.profile import (
    SHIFTS,
    STEPS_BACK,
    back_name,
    find_copiers,
    profile_probes,
    shift_name,
)
from attnscope.scoring.resampling import Mean, mean_over_texts
from attnscope.scoring.roles import resting_places
from attnscope.scoring.rules import Rule, read_rules
from attnscope.scoring.scan import BATCH_TOKENS, MEASURES, questions
from attnscope.scoring.stimuli import CONTROLS as UNREPEATED
from attnscope.scoring.stimuli import (
    LENGTH,
    SEQUENCES,
    RepeatedTokens,
    check_seed,
    check_stimulus,
    repeated_tokens,
)
from attnscope.scoring.sums import Floats, HeadSums, concatenate, from_lens
from attnscope.types import Progress, TokenBatch, no_progress

_DIAGONAL, _MASS = "diagonal", "mass"
_JUDGED = ("previous-token", "duplicate-token", "induction")
_QUESTIONS = 45  # about so many are asked of every head
ABLATED = 8  # sequences that heads are switched off on


def induction(
    model: Model,
    *,
    lengths: Sequence[int] = (LENGTH,),
    repeats: int = 2,
    sequences: int = SEQUENCES,
    ablate: bool = False,
    method: str = "mean",
    mode: str = "full",
    controls: int = CONTROLS,
    seed: int = 0,
    progress: Progress = no_progress,
) -> InductionResult:
    """Score every head on repeated random tokens, at each length; labels are those at the first.

    `ablate` switches the heads that are found off, and as many random others (see `ablation`).
    Raises UsageError for a length under 2, fewer than 2 repeats or no sequence, and for a model
    without its language-model head; CheckpointError where random tokens do not fit.
    """
    check_stimulus(lengths, repeats, sequences)
    check_ways(method, mode, controls)
    check_seed(seed)
    model.predictor()
    rules = read_rules()
    stimuli = [
        repeated_tokens(model, length, sequences, UNREPEATED, seed, repeats)
        for length in dict.fromkeys(lengths)
    ]
    for stimulus in stimuli:
        _check_room(model, stimulus)
    path = find_direct_path(model, stimuli[0].batch)
    runs = [_run(model, stimulus, rules, path, seed, progress) for stimulus in stimuli]
    first = runs[0]
    return InductionResult(
        model=model.describe(),
        settings={
            **model.settings(seed),
            "bos": {"token": stimuli[0].bos, "by": "stimulus"},
            "thresholds": [rule.to_json() for rule in rules if rule.label in _JUDGED],
        },
        runs=tuple(runs),
        feeding=feeding(model, stimuli[0], first.copiers, first.found, seed, progress),
        ablation=_ablation(model, stimuli[0], first, method, mode, controls, seed, progress)
        if ablate
        else None,
        asked_to_ablate=ablate,
    )


def parse_lengths(given: str | int | Sequence[int]) -> list[int]:
    """`50`, or `16,50,128`, as numbers. Raises UsageError for anything else."""
    if isinstance(given, int):
        return [given]
    if not isinstance(given, str):
        return list(given)
    parts = given.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise UsageError(f"Cannot read {visible(given)!r} as lengths: write 50, or 16,50,128.")
    return [int(part) for part in parts]


def _check_room(model: Model, stimulus: RepeatedTokens) -> None:
    """What is kept of every sequence, and of the heads of one batch."""
    shape, n_tokens = model.shape, stimulus.batch.ids.shape[1]
    heads = shape.n_layers * shape.n_heads
    kept = len(stimulus.batch) * heads * _QUESTIONS * 4 * 8
    batch = max(BATCH_TOKENS, n_tokens) * heads * shape.d_head * 4
    check_room(
        kept + batch,
        f"Scoring {heads} heads on {len(stimulus.batch)} sequences of {n_tokens} tokens",
        "Lower --sequences or --length.",
    )


def _run(
    model: Model,
    stimulus: RepeatedTokens,
    rules: Sequence[Rule],
    path: DirectPath | None,
    seed: int,
    progress: Progress,
) -> Run:
    parts, losses, copied = [], [], []
    size = max(1, BATCH_TOKENS // stimulus.batch.ids.shape[1])
    for start in range(0, len(stimulus.batch), size):
        progress("reading repeated random tokens", start, len(stimulus.batch))
        batch = stimulus.batch.rows(start, start + size)
        sums, loss, direct = _read(model, stimulus, batch, path)
        parts.append(sums)
        losses.append(loss)
        copied.append(direct)
    sums, n = concatenate(parts), stimulus.sequences
    repeated, unrepeated = sums.take(range(n)), sums.take(range(n, len(sums)))
    scores, control = (_estimate(one, seed) for one in (repeated, unrepeated))
    evidence = Evidence(scores, control)
    both = {"random": evidence, "text": evidence}
    alone = [replace(r, evidence=("random",)) for r in rules if r.label in _JUDGED]
    holds = {verdict.rule.label: verdict.holds for verdict in judge(alone, both, causal=True)}
    counted = half_rows(stimulus, stimulus.batch)["second half"].sum(1).numpy().astype(float)
    copying: Mean | None = None
    if path is not None:
        copying = mean_over_texts(np.concatenate(copied)[:n], counted[:n], seed)
    return Run(
        stimulus=stimulus,
        about=stimulus.describe(seed),
        scores=scores,
        control=control,
        copiers=find_copiers(rules, scores, control, holds["induction"]),
        holds=holds,
        copying=copying,
        loss=_losses(stimulus, np.concatenate(losses), seed),
        conventions=_conventions(repeated),
    )


def _read(
    model: Model, stimulus: RepeatedTokens, batch: TokenBatch, path: DirectPath | None
) -> tuple[HeadSums, Floats, Floats]:
    """Sums, loss of every position (B, T - 1), and direct logits (B, L, H) of part of the texts."""
    rows = half_rows(stimulus, batch)["second half"][0].nonzero()[:, 0]
    copying = None if path is None else Copying(model, path, batch, rows)
    probes = {
        **questions(batch, model.shape),
        **stimulus.probes(batch),
        **profile_probes(stimulus, batch),
        **_convention_probes(stimulus, batch),
    }
    recorders = () if copying is None else (copying.record,)
    lens = Lens(probes, resting_places(batch), recorders=recorders)
    with nullcontext() if copying is None else copying.listening():
        hidden = model.run(batch, lens)
    direct = np.zeros(0) if copying is None else copying.totals().numpy()
    random = torch.arange(batch.ids.shape[1] - 1) < stimulus.stop - 1
    asked = random.expand(len(batch), -1)
    found = predictions(model.predictor(), hidden, batch.ids, asked=asked)
    return from_lens(lens, model.shape.n_layers), found.loss[0].numpy(), direct


def _estimate(sums: HeadSums, seed: int) -> dict[str, Scores]:
    """Roles as one family, as `heads` has them; the profile as another."""
    profile = [shift_name(k) for k in SHIFTS] + [back_name(n) for n in STEPS_BACK]
    beside = (*MEASURES, _DIAGONAL, _MASS, *profile)
    roles = [name for name in sums.names if name not in beside]
    found = estimate(sums, roles, seed=seed, error=ERROR, tested=roles_tested("random"))
    return found | estimate(sums, profile, seed=seed, error=ERROR)


def _losses(stimulus: RepeatedTokens, losses: Floats, seed: int) -> Loss:
    """losses (N, T - 1) of every text, repeated ones first."""
    n = stimulus.sequences
    rows = {name: r.numpy() for name, r in half_rows(stimulus, stimulus.batch).items()}

    def half(name: str, part: slice) -> Mean:
        kept = np.where(rows[name][part], losses[part], 0.0)
        return mean_over_texts(kept.sum(1), rows[name][part].sum(1).astype(float), seed)

    first, second = rows["first half"][0], rows["second half"][0]
    fall = losses[:n][:, first].mean(1) - losses[:n][:, second].mean(1)
    known = slice(stimulus.start, stimulus.stop - 1)
    return Loss(
        first=half("first half", slice(0, n)),
        second=half("second half", slice(0, n)),
        unrepeated=half("second half", slice(n, len(losses))),
        fall=mean_over_texts(fall, np.ones(n), seed),
        by_position=losses[:n, known].mean(0),
        by_position_unrepeated=losses[n:, known].mean(0),
    )


def _convention_probes(stimulus: RepeatedTokens, batch: TokenBatch) -> dict[str, Probe]:
    """What two other conventions measure: the whole diagonal, and the mass of all rows."""
    return {
        _DIAGONAL: Offset(batch.valid, (1 - stimulus.length,)),
        _MASS: Columns(batch.valid, batch.valid),
    }


def _conventions(sums: HeadSums) -> dict[str, Floats]:
    diagonal, mass, pattern = (sums.of(name) for name in (_DIAGONAL, _MASS, "induction"))
    return {
        "diagonal": diagonal.raw[..., 0].sum(0) / diagonal.rows[..., 0].sum(0)[:, None],
        "ratio": pattern.raw[..., 0].sum(0) / mass.raw[..., 0].sum(0),
    }


def _ablation(
    model: Model,
    stimulus: RepeatedTokens,
    run: Run,
    method: str,
    mode: str,
    controls: int,
    seed: int,
    progress: Progress,
) -> AblationResult | None:
    if not run.found:
        return None
    return ablate_samples(
        model, run.found, repeated_samples(stimulus, ABLATED), method=method, mode=mode,
        controls=controls, seed=seed, progress=progress,
    )  # fmt: skip
