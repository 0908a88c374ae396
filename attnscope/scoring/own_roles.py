"""Roles of the user's own: `name=offset:-3`, `name=tokens:and,or`, `name=pairs:FILE.csv`.

In Python a role is a function of a block of weights as well: see `function_role`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from attnscope.attention.cores import Block
from attnscope.attention.probes import Columns, Pairs, Probe
from attnscope.attention.visibility import Visibility
from attnscope.errors import RunError, UsageError, did_you_mean
from attnscope.models.text import Reader
from attnscope.plain import visible
from attnscope.scoring.roles import ROLES, Role, offset
from attnscope.types import ModelShape, TokenBatch

_NAME = re.compile(r"^[A-Za-z][\w-]{0,39}$")
_FORMS = "offset:-3, tokens:and,or or pairs:FILE.csv"


def parse_role(text: str, reader: Reader | None) -> Role:
    """One `--role`, for texts of this reader (None: only to see that it can be read).

    Raises UsageError when it is none, or its name is one of ours.
    """
    name, equals, what = text.partition("=")
    kind, colon, value = what.partition(":")
    shown = visible(text)
    if not equals or not colon or kind not in _KINDS:
        raise UsageError(
            f"Cannot read the role {shown!r}: write NAME={_FORMS}." + did_you_mean(kind, _KINDS)
        )
    if not _NAME.match(name):
        raise UsageError(
            f"Cannot call a role {visible(name)!r}: begin with a letter, then letters, digits, "
            "- and _."
        )
    if name in _TAKEN:
        raise UsageError(f"{name} is a role already: give yours another name.")
    return _KINDS[kind](name, value, reader)


def _offset_role(name: str, value: str, reader: Reader | None) -> Role:
    try:
        steps = int(value)
    except ValueError as error:
        raise UsageError(
            f"Cannot read {visible(value)!r} as an offset: write a whole number, as in -3."
        ) from error
    where = f"{abs(steps)} {'back' if steps < 0 else 'ahead'}" if steps else "itself"

    def ask(batch: TokenBatch, shape: ModelShape) -> Probe | None:
        return None if steps > 0 and shape.causal else offset(batch, steps)

    return Role(name, where, ask, "nothing to look at", definition=f"offset:{steps}")


def _tokens_role(name: str, value: str, reader: Reader | None) -> Role:
    words = [word.strip() for word in value.split(",") if word.strip()]
    if not words:
        raise UsageError("`tokens:` takes the tokens to look at, as in tokens:and,or.")

    def ask(batch: TokenBatch, shape: ModelShape) -> Probe:
        assert reader is not None
        ids = torch.unique(batch.ids[batch.valid]).tolist()
        wanted = [id_ for id_ in ids if reader.piece(id_).strip() in words]
        chosen = torch.tensor(wanted, dtype=batch.ids.dtype, device=batch.ids.device)
        keys = torch.isin(batch.ids, chosen) & batch.valid
        return Columns(batch.valid & ~batch.special & ~keys, keys)

    listed = ",".join(words)
    return Role(name, visible(listed), ask, "no such token here", definition=f"tokens:{listed}")


def _pairs_role(name: str, value: str, reader: Reader | None) -> Role:
    pairs = _read_pairs(Path(value))

    def ask(batch: TokenBatch, shape: ModelShape) -> Probe:
        if len(batch) > 1:
            raise UsageError(f"The pairs of {name} are tokens of one text, and several were given.")
        n = int(batch.valid.sum())
        worst = max(max(pair) for pair in pairs)
        if worst >= n:
            raise UsageError(
                f"{visible(value)} names token {worst}, and the text has tokens 0-{n - 1}."
            )
        query, key = torch.tensor(pairs, device=batch.ids.device).T
        return Pairs(batch.valid, torch.zeros_like(query), query, key)

    meaning = f"pairs:{visible(value)}"
    return Role(name, "pairs", ask, "no pair is visible", definition=meaning, general=False)


def _read_pairs(path: Path) -> list[tuple[int, int]]:
    """Rows `query,key` of token indices; a first line of words is a heading."""
    shown = visible(str(path))
    try:
        lines = list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines()))
    except FileNotFoundError as error:
        raise UsageError(f"There is no file {shown}.") from error
    except IsADirectoryError as error:
        raise UsageError(f"{shown} is a directory: write pairs:FILE.csv.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{shown} is not UTF-8 text.") from error
    except (OSError, csv.Error) as error:
        raise RunError(f"Cannot read {shown}: {visible(str(error))}.") from error
    pairs = []
    for number, line in enumerate(lines, 1):
        cells = [cell.strip() for cell in line]
        if not any(cells):
            continue
        if number == 1 and not any(cell.isdigit() for cell in cells):
            if [cell.lower() for cell in cells] != ["query", "key"]:
                raise UsageError(f"{shown}: its columns must be query,key in this order.")
            continue
        if len(cells) != 2 or not all(cell.isdecimal() and cell.isascii() for cell in cells):
            raise UsageError(
                f"{shown}, line {number}: write two token indices, query,key, as in 12,4."
            )
        pairs.append((int(cells[0]), int(cells[1])))
    if not pairs:
        raise UsageError(f"{shown} holds no pairs: write query,key, one pair per line.")
    return sorted(set(pairs))


_KINDS: dict[str, Callable[[str, str, Reader | None], Role]] = {
    "offset": _offset_role,
    "tokens": _tokens_role,
    "pairs": _pairs_role,
}
_TAKEN = (*ROLES, "resting", "entropy", "distance", "coreference_nearest_wrong")

# weights of a block, its first query and first key, to the share found, (B, H, t)
BlockFunction = Callable[[Block, Visibility], Tensor]


@dataclass(frozen=True)
class _Function(Probe):
    """A question that code answers."""

    function: BlockFunction
    even: Tensor

    def read(self, block: Block, visibility: Visibility) -> Tensor:
        return self.function(block, visibility)

    def uniform(self, visibility: Visibility) -> Tensor:
        return self.even


def function_role(
    name: str,
    function: BlockFunction,
    *,
    chance: Callable[[TokenBatch], Tensor] | None = None,
    rows: Callable[[TokenBatch], Tensor] | None = None,
) -> Role:
    """A role whose score of each row is `function(block, visibility)`, (B, H, t).

    `chance` gives what an even head would score and `rows` which queries count, both (B, T); by
    default 0, and every token that is not special.
    """

    def ask(batch: TokenBatch, shape: ModelShape) -> Probe:
        asked = batch.valid & ~batch.special if rows is None else rows(batch)
        even = torch.zeros(asked.shape) if chance is None else chance(batch)
        return _Function(asked, function, even.to(asked.device))

    return Role(name, name, ask, definition=None)
