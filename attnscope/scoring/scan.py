"""The loop: batches of texts through the model, the questions asked, the sums kept."""

from __future__ import annotations

from collections.abc import Sequence

from attnscope.attention.lens import Lens, Observer
from attnscope.attention.probes import Columns, Distance, Entropy, Probe
from attnscope.models.load import Model
from attnscope.models.text import Tokens, batch_of
from attnscope.scoring.roles import ROLES, resting_places
from attnscope.scoring.sums import HeadSums, concatenate, from_lens
from attnscope.types import Progress, TokenBatch, no_progress

BATCH_TOKENS = 2048  # padding included; more texts at once gain no speed and cost memory


def questions(batch: TokenBatch, causal: bool) -> dict[str, Probe]:
    """Every role that applies, and the measures that stand beside the roles."""
    asked = {name: role.ask(batch, causal) for name, role in ROLES.items()}
    probes = {name: probe for name, probe in asked.items() if probe is not None}
    rows = batch.valid & ~batch.special
    later = rows.clone()
    later[:, 0] = False  # the first token can rest on nothing but itself
    probes["resting"] = Columns(later, resting_places(batch), with_sink=True)
    probes["entropy"] = Entropy(rows)
    probes["distance"] = Distance(rows)
    return probes


def scan(
    model: Model,
    texts: Sequence[Tokens],
    *,
    observers: tuple[Observer, ...] = (),
    progress: Progress = no_progress,
) -> HeadSums:
    """Ask every question of every text; observers see the blocks of every batch.

    Texts of like length share a batch; results come in the order given.
    """
    order = sorted(range(len(texts)), key=lambda n: len(texts[n]))
    parts: dict[int, HeadSums] = {}
    for chosen in _batches(texts, order, mixed=model.mixes_lengths):
        progress("reading", len(parts), len(texts))
        batch = batch_of([texts[n] for n in chosen], pad_id=model.pad_id).to(model.device)
        lens = Lens(questions(batch, model.shape.causal), observers=observers)
        model.run(batch, lens)
        sums = from_lens(lens, model.shape.n_layers)
        for row, n in enumerate(chosen):
            parts[n] = sums.take([row])
    return concatenate([parts[n] for n in range(len(texts))])


def _batches(texts: Sequence[Tokens], order: list[int], *, mixed: bool) -> list[list[int]]:
    """Texts that share a forward pass: of any length, or (not `mixed`) of equal length only."""
    batches: list[list[int]] = []
    for n in order:
        open_ = batches[-1] if batches else []
        fits = len(texts[n]) * (len(open_) + 1) <= BATCH_TOKENS
        alike = mixed or (bool(open_) and len(texts[n]) == len(texts[open_[0]]))
        if open_ and fits and alike:
            open_.append(n)
        else:
            batches.append([n])
    return batches
