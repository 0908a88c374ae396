"""What `coref` returns for a text: every pronoun, and where each head looks from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import attnscope
from attnscope.experiments.capture import Capture
from attnscope.experiments.coref_scores import share_entry
from attnscope.models.text import Tokens
from attnscope.scoring.coreference import Places
from attnscope.scoring.estimate import Scores, finite
from attnscope.scoring.rules import UNCLASSIFIED
from attnscope.scoring.sums import Floats
from attnscope.types import Head

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Mention:
    """A pronoun or candidate: its characters, its text, and its last token."""

    start: int
    end: int
    text: str
    token: int


@dataclass(frozen=True)
class Known:
    """What the battery knows of coreference heads, arrays (L, H); scores None without a battery."""

    scores: Scores | None
    nearest_wrong: Scores | None
    labelled: NDArray[np.bool_]
    view: Places
    notes: tuple[str, ...]

    def ranked(self, live: Floats) -> list[Head]:
        """Every head: those known first, each kind by its score, or by live mass without one."""
        value = live if self.scores is None else np.nan_to_num(self.scores.raw)
        order = np.lexsort((-value.ravel(), ~self.labelled.ravel()))
        return [Head(*(int(n) for n in np.unravel_index(at, value.shape))) for at in order]


@dataclass(frozen=True)
class Vote:
    """How many heads choose each candidate, and each one's share of all that they give."""

    heads: tuple[int, ...]
    weighed: tuple[float, ...] | None  # None where they give nothing


@dataclass(frozen=True)
class Linked:
    """One pronoun and its candidates; weights (candidates, L, H), each head read in its view."""

    pronoun: Mention
    candidates: tuple[Mention, ...]
    weights: Floats

    @property
    def live(self) -> Floats:
        """How much of a head's attention goes to candidates at all, (L, H)."""
        total: Floats = self.weights.sum(0)
        return total

    @property
    def shares(self) -> Floats:
        """Each candidate's share of that, (candidates, L, H); NaN where there is nothing."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.live > 0, self.weights / self.live, np.nan)

    def choice(self, head: Head) -> int | None:
        """The candidate that a head gives most; None where none stands out."""
        given = self.weights[:, head.layer, head.head]
        best = np.flatnonzero(given == given.max())
        return int(best[0]) if len(best) == 1 else None

    def vote(self, heads: Sequence[Head]) -> Vote:
        """What these heads choose together."""
        counts = Counter(self.choice(head) for head in heads)
        weights = np.sum([self.weights[:, head.layer, head.head] for head in heads], axis=0)
        total = float(weights.sum())
        return Vote(
            tuple(counts[n] for n in range(len(self.candidates))),
            tuple((weights / total).tolist()) if total else None,
        )


@dataclass(frozen=True)
class CorefText:
    """Every pronoun of a text, and where each head looks from it."""

    model: dict[str, Any]
    settings: dict[str, Any]
    tokens: Tokens
    linked: tuple[Linked, ...]
    skipped: dict[str, int]
    known: Known
    views: tuple[str, ...]
    pattern: Capture  # of the best head
    notes: tuple[str, ...] = ()

    @property
    def ranked(self) -> list[Head]:
        """Every head, coreference heads first."""
        return self.known.ranked(np.mean([one.live for one in self.linked], axis=0))

    @property
    def voters(self) -> list[Head]:
        """The heads that the battery knows as coreference heads, the best first."""
        return [head for head in self.ranked if self.known.labelled[head.layer, head.head]]

    def to_json(self) -> dict[str, Any]:
        """The `attnscope.coref/1` document."""
        heads = sorted(self.ranked)
        return {
            "schema": "attnscope.coref/1",
            "attnscope": attnscope.__version__,
            "model": self.model,
            "settings": self.settings,
            "items": len(self.linked),
            "skipped": self.skipped,
            "notes": list(self.notes),
            "baselines": {},
            "tokens": self.tokens.to_json(),
            "pronouns": [self._pronoun(linked, heads) for linked in self.linked],
            "heads": [self._head(head) for head in heads],
        }

    def _pronoun(self, linked: Linked, heads: Sequence[Head]) -> dict[str, Any]:
        return {
            **vars(linked.pronoun),
            "candidates": [vars(one) for one in linked.candidates],
            "vote": vars(linked.vote(self.voters)) if self.voters else None,
            "heads": [
                {
                    "layer": head.layer,
                    "head": head.head,
                    "weights": linked.weights[:, head.layer, head.head].tolist(),
                    "live_mass": finite(linked.live[head.layer, head.head]),
                    "choice": linked.choice(head),
                }
                for head in heads
            ],
        }

    def _head(self, head: Head) -> dict[str, Any]:
        at, known = (head.layer, head.head), self.known
        wrong = known.nearest_wrong
        return {
            "layer": head.layer,
            "head": head.head,
            "kv_head": head.head // int(self.model["n_heads"] // self.model["n_kv_heads"]),
            "forced_choice": None if known.scores is None else share_entry(known.scores, head),
            "strict": None,
            "nearest_wrong": None if wrong is None else share_entry(wrong, head),
            "live_mass": finite(np.mean([one.live[at] for one in self.linked])),
            "label": "coreference" if known.labelled[at] else UNCLASSIFIED,
            "query": self.views[int(known.view[at])],
        }

    def to_frame(self) -> DataFrame:
        """One row per pronoun, head and candidate."""
        from pandas import DataFrame

        scores = self.known.scores
        return DataFrame(
            {
                "pronoun": linked.pronoun.text,
                "pronoun_token": linked.pronoun.token,
                "layer": head.layer,
                "head": head.head,
                "label": "coreference" if self.known.labelled[at] else UNCLASSIFIED,
                "battery": None if scores is None else finite(scores.raw[at]),
                "query": self.views[int(self.known.view[at])],
                "candidate": candidate.text,
                "candidate_token": candidate.token,
                "weight": float(linked.weights[(n, *at)]),
                "share": finite(linked.shares[(n, *at)]),
                "live_mass": finite(linked.live[at]),
            }
            for linked in self.linked
            for head in self.ranked
            for at in [(head.layer, head.head)]
            for n, candidate in enumerate(linked.candidates)
        )
