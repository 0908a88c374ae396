"""similarity: which heads of a layer are alike, and how key/value heads could be shared cheaply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
import torch

from attnscope.attention.alignment import Moments
from attnscope.attention.cores import Block
from attnscope.experiments.compare_result import Settings
from attnscope.experiments.conversion import build, check_convertible
from attnscope.experiments.damage import Outcome, Variant, measure
from attnscope.experiments.grouping import Loss, pair_losses
from attnscope.experiments.held_out import TEXTS, pick_texts, read_moments
from attnscope.experiments.memory import token_bytes
from attnscope.experiments.similarity_result import (
    QueryPair,
    SharedPair,
    SimilarityResult,
    Suggestion,
)
from attnscope.models.load import Model
from attnscope.models.shapes import AttentionShape
from attnscope.scoring.roles import resting_places
from attnscope.scoring.scan import Watcher
from attnscope.types import Progress, TokenBatch, no_progress


class Overlaps(Watcher):
    """How much attention every two heads of a layer put on the same keys."""

    def __init__(self, model: Model) -> None:
        size = (model.shape.n_layers, model.shape.n_heads, model.shape.n_heads)
        self.shared, self.awake, self.mass = (
            torch.zeros(size, dtype=torch.float64, device=model.device) for _ in range(3)
        )
        self.rows = 0

    def begin(self, batch: TokenBatch, texts: Sequence[int]) -> None:
        """Rows that see more than one key, and keys that are no resting place."""
        self.valid = batch.valid.clone()
        self.valid[:, 0] = False
        self.live = (batch.valid & ~resting_places(batch)).float()  # (B, S)
        self.rows += int(self.valid.sum())

    def see(self, block: Block) -> None:
        """Add up what heads have in common in these rows."""
        rows = self.valid[:, block.start : block.stop].float()  # (B, t)
        live = self.live[:, block.low : block.high]  # (B, S)
        mass = torch.einsum("bhts,bt,bs->h", block.weights, rows, live)
        self.mass[block.layer] += mass[:, None] + mass[None, :]
        for head in range(block.weights.shape[1]):
            both = torch.minimum(block.weights[:, head : head + 1], block.weights)
            self.shared[block.layer, head] += torch.einsum("bhts,bt->h", both, rows)
            self.awake[block.layer, head] += torch.einsum("bhts,bt,bs->h", both, rows, live)

    def pairs(self, model: Model, labels: Outcome) -> Iterator[QueryPair]:
        """Every two heads of each layer."""
        shared = (self.shared / self.rows).cpu().tolist()
        awake, mass = (2 * self.awake).cpu().tolist(), self.mass.cpu().tolist()
        for layer, spec in enumerate(model.specs):
            for one, other in combinations(range(spec.n_heads), 2):
                there = mass[layer][one][other]
                yield QueryPair(
                    layer=layer,
                    heads=(one, other),
                    shares=spec.kv_head(one) == spec.kv_head(other),
                    overlap=min(shared[layer][one][other], 1.0),
                    awake=min(awake[layer][one][other] / there, 1.0) if there else None,
                    same_labels=set(labels.labels[layer][one].labels)
                    == set(labels.labels[layer][other].labels),
                )


def similarity(
    model: Model,
    shape: AttentionShape,
    settings: Settings,
    *,
    texts: int = TEXTS,
    seed: int = 0,
    progress: Progress = no_progress,
) -> SimilarityResult:
    """Compare heads over passages, and try the groupings that this suggests, untrained.

    Raises UsageError for an encoder, and for a model loaded without its logits.
    """
    check_convertible(model)
    read = pick_texts(model, texts, seed)
    moments = read_moments(model, read.aligned, progress)
    tables = []
    for layer, (spec, seen) in enumerate(zip(model.specs, moments, strict=True)):
        progress("comparing key/value heads", layer, model.shape.n_layers)
        tables.append(pair_losses(spec, seen))
    tried = list(_groupings(model, moments))
    overlaps = Overlaps(model)
    clean, *outcomes = measure(
        model,
        [variant for both in tried for variant in both],
        read.measured,
        read.stimulus,
        watchers=(overlaps,),
        seed=seed,
        progress=progress,
    )
    pairs = zip(outcomes[::2], outcomes[1::2], strict=True)
    suggestions = [
        _suggest(
            model, shape, settings, both, tables, (one.loss - clean.loss, other.loss - clean.loss)
        )
        for both, (one, other) in zip(tried, pairs, strict=True)
    ]
    return SimilarityResult(
        n_layers=model.shape.n_layers,
        n_heads=model.shape.n_heads,
        n_kv_heads=model.shape.n_kv_heads,
        queries=tuple(overlaps.pairs(model, clean)),
        shared=tuple(_shared(tables)),
        suggestions=tuple(suggestions),
        labels=tuple(tuple(head.labels for head in layer) for layer in clean.labels),
        settings={**read.to_json(), "seed": seed, "method": "best-aligned"},
        notes=read.notes,
    )


def _shared(tables: Sequence[list[list[Loss]]]) -> Iterator[SharedPair]:
    for layer, table in enumerate(tables):
        for one, other in combinations(range(len(table)), 2):
            yield SharedPair(layer, (one, other), table[one][other].key, table[one][other].value)


def _groupings(model: Model, moments: Sequence[Moments]) -> Iterator[tuple[Variant, Variant]]:
    """For each smaller number of key/value heads that divides theirs: neighbours, and alike."""
    n_kv_heads = model.shape.n_kv_heads
    for size in range(n_kv_heads - 1, 1, -1):
        if n_kv_heads % size == 0:
            neighbours, alike = (
                build(model, size, "best-aligned", grouping, moments)
                for grouping in ("neighbours", "alike")
            )
            yield neighbours, alike


def _suggest(
    model: Model,
    shape: AttentionShape,
    settings: Settings,
    both: tuple[Variant, Variant],
    tables: Sequence[list[list[Loss]]],
    deltas: tuple[float, float],
) -> Suggestion:
    size = both[0].layers[0].spec.kv_heads
    groups = [_kv_groups(model, variant, size) for variant in both]
    lost = tuple(_mean_loss(tables, one) for one in groups)
    twin = shape.twin(size)
    each, full = (token_bytes(one, settings.kept) for one in (twin, shape.twin(shape.n_heads)))
    return Suggestion(
        n_kv_heads=size,
        kv_bytes_per_token=each,
        ratio_to_mha=each / full if full else None,
        lost=(lost[0], lost[1]),
        deltas=deltas,
        groups=groups[1],
    )


def _kv_groups(
    model: Model, variant: Variant, size: int
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The key/value heads that each new one stands for, by layer."""
    found = []
    for spec, order in zip(model.specs, variant.orders, strict=True):
        read = [spec.kv_head(head) for head in order]
        span = len(read) // size
        cuts = [read[n : n + span] for n in range(0, len(read), span)]
        found.append(tuple(tuple(dict.fromkeys(cut)) for cut in cuts))
    return tuple(found)


def _mean_loss(
    tables: Sequence[list[list[Loss]]], groups: tuple[tuple[tuple[int, ...], ...], ...]
) -> float:
    losses = [
        table[one][other].mean
        for table, layer in zip(tables, groups, strict=True)
        for group in layer
        for one, other in combinations(group, 2)
    ]
    return float(np.mean(losses)) if losses else 0.0
