"""Texts made to test heads: repeated random tokens, and the same length without the repeat."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnscope.attention.probes import Pairs, Probe
from attnscope.errors import CheckpointError, UsageError
from attnscope.models.load import Model
from attnscope.plain import visible
from attnscope.types import TokenBatch

LENGTH, SEQUENCES, CONTROLS = 50, 32, 8
_BYTE_FALLBACK = re.compile(r"^<0x[0-9A-F]{2}>$")


@dataclass(frozen=True)
class RepeatedTokens:
    """`sequences` texts of `length` distinct random ids, said `repeats` times; then controls.

    The controls are as long, of distinct ids throughout, and follow in the same batch.
    """

    batch: TokenBatch
    length: int
    sequences: int
    bos: str | None
    shortened_from: int | None
    start: int  # index of the first random token
    repeats: int = 2
    limited_by: str = ""  # why it was shortened, in words

    @property
    def stop(self) -> int:
        """One past the last random token."""
        return self.start + self.repeats * self.length

    def repeated(self) -> TokenBatch:
        """The texts that repeat."""
        return self.batch.rows(0, self.sequences)

    def control(self) -> TokenBatch:
        """The texts without repeat."""
        return self.batch.rows(self.sequences, len(self.batch))

    def describe(self, seed: int) -> dict[str, Any]:
        """The stimulus as the settings of a document record it."""
        return {
            "stimulus": "repeated random tokens",
            "length": self.length,
            "repeats": self.repeats,
            "sequences": self.sequences,
            "control_sequences": len(self.batch) - self.sequences,
            "seed": seed,
            "bos": self.bos,
        }

    def probes(self, batch: TokenBatch) -> dict[str, Probe]:
        """Where heads would look if every text of a part of the batch repeated: also the control.

        The token after each earlier copy, and the copies themselves.
        """
        return {"induction": self.ahead(batch, 1), "duplicate_token": self.ahead(batch, 0)}

    def ahead(self, batch: TokenBatch, steps: int, first: int = 0) -> Probe:
        """The keys so many steps after each earlier copy, from key `first` on, as one question.

        Asked of every row that has an earlier copy.
        """
        device = batch.ids.device
        place = torch.arange(self.start + self.length, self.stop, device=device)
        pairs = []
        for back in range(1, self.repeats):
            query = place[(back - 1) * self.length :]  # rows with a copy so many repeats before
            query = query[query - back * self.length + steps >= first]
            pairs.append(torch.stack([query, query - back * self.length + steps]))
        query, key = torch.cat(pairs, dim=1)  # (N,) each
        text = torch.arange(len(batch), device=device).repeat_interleave(len(query))
        return Pairs(batch.valid, text, query.repeat(len(batch)), key.repeat(len(batch)))


def check_stimulus(lengths: Sequence[int], repeats: int, sequences: int) -> None:
    """Raise UsageError for random tokens that could not be repeated."""
    if not lengths or min(lengths) < 2:
        raise UsageError("--length is how many random tokens are repeated: 2 at least.")
    if repeats < 2:
        raise UsageError("--repeats is how often they are said: 2 at least.")
    if sequences < 1:
        raise UsageError("--sequences is how many random texts there are: 1 at least.")


def check_seed(seed: int) -> None:
    """Raise UsageError for a number that no generator takes."""
    if not 0 <= seed < 2**32:
        raise UsageError(f"--seed is a whole number from 0 to {2**32 - 1}, not {seed}.")


def repeated_tokens(
    model: Model,
    length: int = LENGTH,
    sequences: int = SEQUENCES,
    controls: int = CONTROLS,
    seed: int = 0,
    repeats: int = 2,
) -> RepeatedTokens:
    """Random ids from the middle of the vocabulary, wrapped in the tokenizer's special tokens.

    BOS comes first if the tokenizer defines one (unless the reader was told not to). `length` is
    shortened to what positions, windows and vocabulary allow.
    Raises CheckpointError when not even two distinct tokens fit.
    """
    before, after = wrapping(model)
    pool = middle_ids(model)
    wrapped = len(before) + len(after)
    limits = {f"the model has {model.shape.max_positions} positions": model.shape.max_positions}
    limits |= {f"a layer sees {s.window} tokens back": s.window for s in model.specs}
    room = {why: limit - wrapped for why, limit in limits.items() if limit}
    few = f"{len(pool)} tokens may be drawn, ordinary ones of the vocabulary's middle half, and "
    room[f"{few}controls never repeat one"] = len(pool)
    limited_by = min(room, key=lambda why: room[why])
    fits = min(length, room[limited_by] // repeats)
    if fits < 2:
        if room[limited_by] >= 4:
            raise UsageError(
                f"--repeats {repeats} leaves no room for two random tokens: {limited_by}. Lower it."
            )
        raise CheckpointError(
            f"{visible(model.id)} is too small to repeat random tokens: {limited_by}."
        )
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for text in range(sequences + controls):
        drawn = pool[torch.randperm(len(pool), generator=generator)[: repeats * fits]]
        rows.append(drawn[:fits].repeat(repeats) if text < sequences else drawn)
    ids = torch.stack(
        [torch.cat([torch.tensor(before), row, torch.tensor(after)]) for row in rows]
    ).long()
    special = torch.zeros_like(ids, dtype=torch.bool)
    special[:, : len(before)] = True
    special[:, ids.shape[1] - len(after) :] = True
    nothing = torch.zeros_like(special)
    bos = model.reader.from_ids(before).tokens[0].text if before else None
    return RepeatedTokens(
        batch=TokenBatch(ids, torch.ones_like(special), special, nothing).to(model.device),
        length=fits,
        sequences=sequences,
        bos=bos,
        shortened_from=length if fits < length else None,
        start=len(before),
        repeats=repeats,
        limited_by=limited_by if fits < length else "",
    )


def wrapping(model: Model) -> tuple[list[int], list[int]]:
    """The special tokens that stand before and after a text."""
    tokens = model.reader.read("a").tokens
    plain = [token.index for token in tokens if not token.special]
    first, last = (plain[0], plain[-1]) if plain else (0, len(tokens) - 1)
    before = [token.id for token in tokens[:first]]
    after = [token.id for token in tokens[last + 1 :]]
    if not before and model.reader.add_bos is not False and model.reader.bos_id is not None:
        before = [model.reader.bos_id]
    return before, after


def middle_ids(model: Model) -> Tensor:
    """Ids of the middle half of the vocabulary that stand for ordinary pieces of text."""
    tokenizer = model.tokenizer
    size = min(len(tokenizer), model.shape.vocab_size)
    added = set(tokenizer.added_tokens_decoder) | set(tokenizer.all_special_ids)
    middle = range(size // 4, size - size // 4)
    tokens = tokenizer.convert_ids_to_tokens(list(middle))
    return torch.tensor(
        [
            id_
            for id_, token in zip(middle, tokens, strict=True)
            if token is not None and id_ not in added and not _BYTE_FALLBACK.match(token)
        ],
        dtype=torch.int64,
    )
