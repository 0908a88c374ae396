"""Damage: what a model does with other attention layers, beside what it does with its own.

Every text is read by the model first; its attention weights and hidden states are kept until each
variant has read the same text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from attnscope.attention.cores import Block
from attnscope.attention.lens import Lens
from attnscope.attention.multihead import MultiHeadAttention
from attnscope.experiments.room import check_room
from attnscope.models.load import Model
from attnscope.models.states import hidden_states, next_token_losses, seated
from attnscope.models.text import Tokens, batch_of
from attnscope.scoring.battery import ERROR, roles_tested
from attnscope.scoring.estimate import estimate
from attnscope.scoring.labels import Evidence, HeadLabels, by_mean, judge, labels_of
from attnscope.scoring.roles import resting_places
from attnscope.scoring.rules import read_rules
from attnscope.scoring.scan import MEASURES, Watcher, questions
from attnscope.scoring.stimuli import RepeatedTokens
from attnscope.scoring.sums import Floats, HeadSums, concatenate, from_lens
from attnscope.types import Progress, TokenBatch, no_progress

BATCH_TOKENS = 1024  # of repeated random tokens at once
_TINY = float(torch.finfo(torch.float32).tiny)


@dataclass(frozen=True)
class Variant:
    """Attention layers to try in a model; `orders[layer]` says which head stands in each place."""

    name: str
    layers: Sequence[MultiHeadAttention]
    orders: Sequence[Sequence[int]]

    def places(self, layer: int) -> list[int]:
        """Where each head of the model stands in this variant."""
        return list(np.argsort(self.orders[layer]))


@dataclass
class Outcome:
    """What the model, or a variant of it, did. Sums by head are in the model's own order.

    `reached` are the labels that mean scores alone would give, borne out by the texts or not.
    losses (N, 2): their sum over each text and how many; repeated (S, 2): mean loss of each
    sequence of random tokens, said first and said again; divergence (L, H): mean over rows of
    KL(model ‖ variant) in nats; apart (L + 1,): mean over tokens of |h' - h| / |h|.
    """

    losses: Floats
    repeated: Floats
    divergence: Floats
    apart: Floats
    labels: list[list[HeadLabels]]
    reached: list[list[HeadLabels]]

    @property
    def loss(self) -> float:
        """Mean over all tokens of the texts, in nats."""
        return float(self.losses[:, 0].sum() / max(self.losses[:, 1].sum(), 1))


@dataclass
class _Tally:
    """What is being counted for the model or one variant."""

    losses: list[tuple[float, int]] = field(default_factory=list)
    repeated: list[Tensor] = field(default_factory=list)
    text: list[HeadSums] = field(default_factory=list)
    random: list[HeadSums] = field(default_factory=list)
    divergence: Tensor | float = 0.0
    rows: int = 0
    apart: Tensor | float = 0.0
    tokens: int = 0


@dataclass
class _Before:
    """What the model did with one batch: weights by layer and first row, and hidden states."""

    blocks: dict[tuple[int, int], tuple[Tensor, Tensor | None]] = field(default_factory=dict)
    states: list[Tensor] = field(default_factory=list)

    def keep(self, block: Block) -> None:
        """Remember rows of weights (B, H, t, S)."""
        self.blocks[block.layer, block.start] = block.weights, block.sink


def measure(
    model: Model,
    variants: Sequence[Variant],
    texts: Sequence[Tokens],
    stimulus: RepeatedTokens | None,
    *,
    watchers: Sequence[Watcher] = (),
    seed: int = 0,
    progress: Progress = no_progress,
) -> list[Outcome]:
    """The outcome of the model itself, then of each variant. Watchers see the model's own pass.

    Raises RunError when the weights of one text would not fit in memory.
    """
    _check_room(model, texts)
    tallies = [_Tally() for _ in (None, *variants)]
    steps = len(texts) + len(_parts(stimulus))
    for number, text in enumerate(texts):
        batch = batch_of([text], model.pad_id).to(model.device)
        for watcher in watchers:
            watcher.begin(batch, [number])
        before = _Before()
        for turn, (variant, tally) in enumerate(zip((None, *variants), tallies, strict=True)):
            progress(_what(variant, "text"), number * len(tallies) + turn, steps * len(tallies))
            with seated(model, _layers(model, variant)):
                _read_text(model, variant, batch, before, tally, watchers)
    for number, part in enumerate(_parts(stimulus), len(texts)):
        assert stimulus is not None
        for turn, (variant, tally) in enumerate(zip((None, *variants), tallies, strict=True)):
            what = _what(variant, "random tokens")
            progress(what, number * len(tallies) + turn, steps * len(tallies))
            with seated(model, _layers(model, variant)):
                _read_random(model, variant, part, stimulus, tally)
    return [_outcome(model, tally, stimulus, seed) for tally in tallies]


def _check_room(model: Model, texts: Sequence[Tokens]) -> None:
    longest = max(map(len, texts))
    shape = model.shape
    weights = shape.n_layers * shape.n_heads * longest**2 * 4
    states = (shape.n_layers + 1) * longest * shape.d_model * 4
    check_room(
        weights + 2 * states,
        f"The weights of all heads over {longest} tokens",
        "Use a smaller model.",
    )


def _parts(stimulus: RepeatedTokens | None) -> list[TokenBatch]:
    if stimulus is None:
        return []
    size = max(1, BATCH_TOKENS // stimulus.batch.ids.shape[1])
    starts = range(0, len(stimulus.batch), size)
    return [stimulus.batch.rows(start, start + size) for start in starts]


def _what(variant: Variant | None, kind: str) -> str:
    return f"reading {kind}, {'as it is' if variant is None else variant.name}"


def _layers(model: Model, variant: Variant | None) -> Sequence[MultiHeadAttention]:
    return [seat.attention for seat in model.seats] if variant is None else variant.layers


def _read_text(
    model: Model,
    variant: Variant | None,
    batch: TokenBatch,
    before: _Before,
    tally: _Tally,
    watchers: Sequence[Watcher],
) -> None:
    divergence = torch.zeros(
        model.shape.n_layers, model.shape.n_heads, dtype=torch.float64, device=model.device
    )
    rows = int(batch.valid[:, 1:].sum())  # the first row of a causal model sees one key

    def compare(block: Block) -> None:
        assert variant is not None
        theirs, sink = before.blocks[block.layer, block.start]
        found = _divergence(theirs, sink, block, variant.places(block.layer))
        divergence[block.layer] += found.double().sum((0, 2))

    watching = tuple(watchers) if variant is None else ()
    observers = (before.keep if variant is None else compare, *(one.see for one in watching))
    recorders = tuple(one.record for one in watching)
    resting = resting_places(batch)
    lens = Lens(questions(batch, model.shape), resting, observers=observers, recorders=recorders)
    states = hidden_states(model, batch, lens)
    losses = next_token_losses(model, batch, states[-1])
    tally.losses.append((float(losses.double().sum()), losses.numel()))
    tally.text.append(_in_order(from_lens(lens, model.shape.n_layers), variant))
    if variant is None:
        before.states = states
    tally.apart += torch.stack(
        [_apart(ours, theirs) for ours, theirs in zip(states, before.states, strict=True)]
    )
    tally.divergence += divergence.cpu()
    tally.rows += rows
    tally.tokens += int(batch.valid.sum())


def _divergence(before: Tensor, sink: Tensor | None, block: Block, places: list[int]) -> Tensor:
    """KL of each row, (B, H, t), in nats; what a learned sink takes is one more outcome."""
    after = block.weights[:, places].to(before.device)
    found = (before * (_log(before) - _log(after))).sum(-1)
    if sink is not None and block.sink is not None:
        found += sink * (_log(sink) - _log(block.sink[:, places]))
    return found.clamp(min=0)  # rounding


def _log(weights: Tensor) -> Tensor:
    return weights.clamp(min=_TINY).log()


def _apart(ours: Tensor, theirs: Tensor) -> Tensor:
    """|h' - h| / |h| of each token, summed; layers may lie on several devices."""
    size = torch.linalg.vector_norm(theirs.float(), dim=-1).clamp(min=_TINY)
    moved = torch.linalg.vector_norm(ours.float() - theirs.float(), dim=-1)
    summed: Tensor = (moved / size).double().sum().cpu()
    return summed


def _read_random(
    model: Model,
    variant: Variant | None,
    batch: TokenBatch,
    stimulus: RepeatedTokens,
    tally: _Tally,
) -> None:
    probes = {**questions(batch, model.shape), **stimulus.probes(batch)}
    lens = Lens(probes, resting_places(batch))
    hidden = hidden_states(model, batch, lens)[-1]
    losses = next_token_losses(model, batch, hidden).double().cpu()  # (B, T - 1)
    start, middle = stimulus.start, stimulus.start + stimulus.length
    # Column i is the loss of token i + 1. The first token of the second half cannot be known.
    first, again = losses[:, start : middle - 1], losses[:, middle : middle + stimulus.length - 1]
    tally.repeated.append(torch.stack((first.mean(1), again.mean(1)), dim=1))
    tally.random.append(_in_order(from_lens(lens, model.shape.n_layers), variant))


def _in_order(sums: HeadSums, variant: Variant | None) -> HeadSums:
    """Sums by head, each head where the model has it."""
    if variant is None or all(list(o) == sorted(o) for o in variant.orders):
        return sums
    arrays: Mapping[str, Floats] = sums.arrays()
    moved = {
        name: np.stack([array[:, n][:, variant.places(n)] for n in range(array.shape[1])], axis=1)
        if array.ndim == 4
        else array
        for name, array in arrays.items()
    }
    return HeadSums(sums.names, **moved)  # type: ignore[arg-type]


def _outcome(model: Model, tally: _Tally, stimulus: RepeatedTokens | None, seed: int) -> Outcome:
    divergence, apart = torch.as_tensor(tally.divergence), torch.as_tensor(tally.apart)
    repeated = torch.cat(tally.repeated).numpy() if tally.repeated else np.zeros((0, 2))
    n = 0 if stimulus is None else stimulus.sequences
    evidence = dict(_evidence(tally, n, seed))
    labels, reached = (
        labels_of(judge(read_rules(), given, model.shape.causal), model.shape.grid)
        for given in (evidence, {kind: by_mean(one) for kind, one in evidence.items()})
    )
    return Outcome(
        losses=np.array(tally.losses, dtype=float).reshape(-1, 2),
        repeated=repeated[:n],
        divergence=(divergence / max(tally.rows, 1)).numpy(),
        apart=(apart / tally.tokens).numpy(),
        labels=labels,
        reached=reached,
    )


def _evidence(tally: _Tally, n_sequences: int, seed: int) -> Iterator[tuple[str, Evidence]]:
    text = concatenate(tally.text)
    names = [name for name in text.names if name not in MEASURES]
    yield (
        "text",
        Evidence(estimate(text, names, seed=seed, error=ERROR, tested=roles_tested("text"))),
    )
    if n_sequences:
        sums = concatenate(tally.random)
        repeated = sums.take(range(n_sequences))
        control = sums.take(range(n_sequences, len(sums)))
        yield (
            "random",
            Evidence(
                estimate(repeated, names, seed=seed, error=ERROR, tested=roles_tested("random")),
                estimate(control, names, seed=seed, error=ERROR, tested=roles_tested("random")),
            ),
        )
