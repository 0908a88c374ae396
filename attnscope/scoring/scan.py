"""The loop: batches of texts through the model, the questions asked, the sums kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from torch import Tensor

from attnscope.attention.cores import Block
from attnscope.attention.lens import Lens
from attnscope.attention.probes import Columns, Distance, Entropy, Probe
from attnscope.errors import UsageError
from attnscope.models.load import Model
from attnscope.models.text import Tokens, batch_of
from attnscope.scoring.roles import ROLES, Role, resting_places
from attnscope.scoring.sums import HeadSums, concatenate, from_lens
from attnscope.types import ModelShape, Progress, TokenBatch, no_progress

BATCH_TOKENS = 2048  # padding included; more texts at once gain no speed and cost memory
CHUNK = 256  # texts that are tokenised and sorted by length together
MAX_UNITS, SUMS_BYTES = 200, 2**28  # so many texts are always kept apart, more while they are small
MEASURES = ("resting", "entropy", "distance")  # questions that stand beside the roles


class Watcher:
    """Sees every batch of a scan beside the questions, and keeps what it was made for."""

    def begin(self, batch: TokenBatch, texts: Sequence[int]) -> None:
        """A batch starts; its rows are the texts of these numbers."""

    def see(self, block: Block) -> None:
        """Rows of a layer's attention."""

    def record(self, layer: int, around: Mapping[str, Tensor]) -> None:
        """What stands around a layer's weights, as a lens tells it."""


def questions(batch: TokenBatch, shape: ModelShape, roles: Sequence[Role] = ()) -> dict[str, Probe]:
    """Every role that applies, also those of the user, and the measures beside them."""
    asked = {role.name: role.ask(batch, shape) for role in (*ROLES.values(), *roles)}
    probes = {name: probe for name, probe in asked.items() if probe is not None}
    rows = batch.valid & ~batch.special
    later = rows.clone()
    later[:, 0] = False  # the first token can rest on nothing but itself
    probes["resting"] = Columns(later, resting_places(batch), with_sink=True)
    probes["entropy"] = Entropy(rows)
    probes["distance"] = Distance(rows)
    return probes


def ask(
    model: Model,
    batch: TokenBatch,
    probes: Mapping[str, Probe],
    watchers: Sequence[Watcher] = (),
) -> HeadSums:
    """One forward pass over a batch, and what the probes sum to."""
    lens = Lens(
        probes,
        resting_places(batch),
        observers=tuple(watcher.see for watcher in watchers),
        recorders=tuple(watcher.record for watcher in watchers),
    )
    model.run(batch, lens)
    return from_lens(lens, model.shape.n_layers)


def scan(
    model: Model,
    texts: Sequence[Tokens],
    *,
    roles: Sequence[Role] = (),
    watchers: Sequence[Watcher] = (),
    progress: Progress = no_progress,
    what: str = "reading",
    first: int = 0,
) -> HeadSums:
    """Ask every question of every text; watchers see every batch.

    Texts of like length share a batch; results come in the order given. Watchers are told numbers
    from `first` on.
    """
    parts: dict[int, HeadSums] = {}
    for chosen, batch in _batched(model, texts):
        progress(what, first + len(parts), 0 if first else len(texts))
        for watcher in watchers:
            watcher.begin(batch, [first + n for n in chosen])
        sums = ask(model, batch, questions(batch, model.shape, roles), watchers)
        for row, n in enumerate(chosen):
            parts[n] = sums.take([row])
    return concatenate([parts[n] for n in range(len(texts))])


def watch(
    model: Model,
    texts: Sequence[Tokens],
    watchers: Sequence[Watcher],
    *,
    progress: Progress = no_progress,
    what: str = "reading",
) -> None:
    """Run every text past the watchers, and ask nothing else: little more than the forward."""
    done = 0
    for chosen, batch in _batched(model, texts):
        progress(what, done, len(texts))
        for watcher in watchers:
            watcher.begin(batch, chosen)
        observers = tuple(watcher.see for watcher in watchers)
        model.run(batch, Lens(observers=observers))
        done += len(chosen)


def scan_many(
    model: Model,
    texts: Iterable[Tokens],
    *,
    roles: Sequence[Role] = (),
    watchers: Sequence[Watcher] = (),
    progress: Progress = no_progress,
    what: str = "reading",
) -> HeadSums:
    """The same for any number of texts, a few hundred at a time, in bounded memory.

    From a few thousand texts on neighbours are taken together, so that what is resampled for an
    interval is a group of texts.
    """
    found: HeadSums | None = None
    first = 0
    for part in _chunks(iter(texts)):
        sums = scan(
            model, part, roles=roles, watchers=watchers, progress=progress, what=what, first=first
        )
        first += len(part)
        found = sums if found is None else found + sums
        while len(found) > MAX_UNITS and sums_bytes(found) > SUMS_BYTES:
            found = found.folded()
    if found is None:
        raise UsageError("There is no text to read: give at least one.")
    return found


def _chunks(texts: Iterator[Tokens]) -> Iterator[list[Tokens]]:
    while part := list(islice(texts, CHUNK)):
        yield part


def sums_bytes(sums: HeadSums) -> int:
    """Memory that sums take."""
    return sum(array.nbytes for array in sums.arrays().values())


def _batched(model: Model, texts: Sequence[Tokens]) -> Iterator[tuple[list[int], TokenBatch]]:
    """Texts of like length together: their numbers, and the batch that they make."""
    for chosen in _batches(texts, mixed=model.mixes_lengths):
        batch = batch_of([texts[n] for n in chosen], pad_id=model.pad_id)
        yield chosen, batch.to(model.device)


def _batches(texts: Sequence[Tokens], *, mixed: bool) -> list[list[int]]:
    """Texts that share a forward pass: of any length, or (not `mixed`) of equal length only."""
    order = sorted(range(len(texts)), key=lambda n: len(texts[n]))
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
