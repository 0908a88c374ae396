"""heads: what every head does, in general and in the texts given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import attnscope
from attnscope.attention.cores import Block
from attnscope.attention.lens import Lens
from attnscope.errors import CheckpointError
from attnscope.models.load import Model
from attnscope.models.text import Tokens
from attnscope.scoring.estimate import Scores, finite, mean, score
from attnscope.scoring.labels import Evidence, HeadLabels, Rule, label_heads, read_rules
from attnscope.scoring.roles import ROLES
from attnscope.scoring.scan import questions, scan
from attnscope.scoring.stimuli import RepeatedTokens, repeated_tokens
from attnscope.scoring.sums import HeadSums, from_lens
from attnscope.types import Head, Progress, no_progress

if TYPE_CHECKING:
    from pandas import DataFrame

TOP_KEYS = 3
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TopKey:
    """A token that a head looks at, and its share of the head's attention over the text."""

    index: int
    text: str
    weight: float


@dataclass(frozen=True)
class HeadsResult:
    """Every head's labels and scores. Arrays are (L, H)."""

    model: dict[str, Any]
    settings: dict[str, Any]
    texts: tuple[Tokens, ...]
    rules: tuple[Rule, ...]
    labels: list[list[HeadLabels]]
    scores: dict[str, Scores]
    battery: dict[str, Scores] | None
    live_mass: Floats
    entropy: Floats
    distance: Floats
    received: Floats | None  # (L, H, T): share of attention each token gets, for one text
    notes: tuple[str, ...] = field(default=())

    @property
    def heads(self) -> list[Head]:
        """Every head, in order."""
        n_layers, n_heads = self.live_mass.shape
        return [Head(layer, head) for layer in range(n_layers) for head in range(n_heads)]

    def kv_head(self, head: Head) -> int:
        """The key/value head that a head reads."""
        return head.head // int(self.model["n_heads"] // self.model["n_kv_heads"])

    def labels_of(self, head: Head) -> HeadLabels:
        """What a head is for."""
        return self.labels[head.layer][head.head]

    def decisive(self, role: str) -> Scores:
        """The scores that a label of this role rests on: the battery's where that decides."""
        by_battery = any(r.role == role and "battery" in r.evidence for r in self.rules)
        return self.battery[role] if by_battery and self.battery else self.scores[role]

    def top_keys(self, head: Head) -> list[TopKey]:
        """The tokens a head looks at most, for one text; empty for several."""
        if self.received is None:
            return []
        weights = self.received[head.layer, head.head]
        best = np.argsort(-weights, kind="stable")[:TOP_KEYS]
        tokens = self.texts[0].tokens
        return [TopKey(int(i), tokens[i].text, float(weights[i])) for i in best]

    def to_json(self) -> dict[str, Any]:
        """The `attnscope.heads/1` document."""
        return {
            "schema": "attnscope.heads/1",
            "attnscope": attnscope.__version__,
            "model": self.model,
            "settings": self.settings,
            "texts": len(self.texts),
            **({"tokens": self.texts[0].to_json()} if len(self.texts) == 1 else {}),
            "labels_from": "texts" if self.battery is None else "battery",
            "notes": list(self.notes),
            "heads": [self._entry(head) for head in self.heads],
        }

    def _entry(self, head: Head) -> dict[str, Any]:
        found = self.labels_of(head)
        at = head.layer, head.head
        return {
            "layer": head.layer,
            "head": head.head,
            "kv_head": self.kv_head(head),
            "labels": list(found.labels),
            "rests_on": list(found.rests_on),
            "scores": _entries(self.scores, head),
            "battery": None if self.battery is None else _entries(self.battery, head),
            "live_mass": finite(self.live_mass[at]),
            "entropy": finite(self.entropy[at]),
            "distance": finite(self.distance[at]),
            "top_keys": [vars(key) for key in self.top_keys(head)],
        }

    def to_frame(self) -> DataFrame:
        """One row per head; each role's numbers on the texts and on the battery."""
        from pandas import DataFrame

        rows = []
        for head in self.heads:
            entry = self._entry(head)
            row = {name: entry[name] for name in ("layer", "head", "kv_head")}
            row["labels"] = " ".join(entry["labels"])
            row["rests_on"] = " ".join(entry["rests_on"])
            row |= {name: entry[name] for name in ("live_mass", "entropy", "distance")}
            for source in ("scores", "battery"):
                for role, numbers in (entry[source] or {}).items():
                    prefix = role if source == "scores" else f"battery_{role}"
                    for name in ("raw", "chance", "lift", "low", "high", "n"):
                        row[f"{prefix}_{name}"] = None if numbers is None else numbers[name]
            rows.append(row)
        return DataFrame(rows)


def heads(
    model: Model,
    texts: Sequence[Tokens],
    *,
    battery: bool = True,
    rules: Sequence[Rule] | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> HeadsResult:
    """Score and label every head on the texts and, unless told not to, on repeated tokens."""
    rules = read_rules() if rules is None else rules
    one = len(texts) == 1
    received = _Received(model, texts[0]) if one else None
    watching = (received.see,) if received else ()
    sums = scan(model, texts, observers=watching, progress=progress)
    scores = _scores(sums, seed)
    notes: list[str] = []
    if one:
        notes.append("One text is weak evidence: its scores have no interval.")
    stimulus, tested = None, None
    if battery:
        progress("reading repeated random tokens", 0, 0)
        try:
            stimulus = repeated_tokens(model, seed=seed)
        except CheckpointError as error:
            notes.append(f"Labels rest on the given texts alone: {error}")
    else:
        notes.append("Labels rest on the given texts alone.")
    if stimulus is not None:
        tested = _on_stimulus(model, stimulus, seed)
        if stimulus.shortened_from:
            notes.append(
                f"Repeated tokens shortened from {stimulus.shortened_from} to {stimulus.length} "
                "to fit the model."
            )
    causal = model.shape.causal
    return HeadsResult(
        model=model.describe(),
        settings={
            **model.settings(seed),
            "thresholds": [rule.to_json() for rule in rules],
            "battery": None if stimulus is None else stimulus.describe(seed),
        },
        texts=tuple(texts),
        rules=tuple(rules),
        labels=label_heads(rules, Evidence(scores), tested, causal),
        scores=scores,
        battery=None if tested is None else dict(tested.scores),
        live_mass=1 - mean(sums, "resting"),
        entropy=mean(sums, "entropy"),
        distance=mean(sums, "distance"),
        received=None if received is None else received.shares(),
        notes=tuple(notes),
    )


def _on_stimulus(model: Model, stimulus: RepeatedTokens, seed: int) -> Evidence:
    """Scores on repeated random tokens, with those of the unrepeated ones as control."""
    probes = questions(stimulus.batch, model.shape.causal)
    probes["induction"] = stimulus.induction_offset()
    probes["duplicate_token"] = stimulus.duplicate_offset()
    lens = Lens(probes)
    model.run(stimulus.batch, lens)
    sums = from_lens(lens, model.shape.n_layers)
    n = stimulus.sequences
    return Evidence(
        _scores(sums.take(range(n)), seed),
        control=_scores(sums.take(range(n, len(sums))), seed),
    )


def _scores(sums: HeadSums, seed: int) -> dict[str, Scores]:
    return {name: score(sums, name, seed) for name in ROLES if name in sums.names}


class _Received:
    """Adds up what each token of one text gets, over the rows that are no special tokens."""

    def __init__(self, model: Model, text: Tokens) -> None:
        self.total = torch.zeros(
            model.shape.n_layers, model.shape.n_heads, len(text), device=model.device
        )
        special = [token.special for token in text.tokens]
        self.rows = ~torch.tensor(special, device=model.device)
        if not self.rows.any():
            self.rows = ~self.rows

    def see(self, block: Block) -> None:
        rows: Tensor = self.rows[block.start : block.stop].float()  # (t,)
        part = torch.einsum("hts,t->hs", block.weights[0], rows)  # (H, S)
        self.total[block.layer, :, block.low : block.high] += part

    def shares(self) -> Floats:
        shares: Floats = (self.total / self.rows.sum()).double().cpu().numpy()
        return shares


def _entries(scores: dict[str, Scores], head: Head) -> dict[str, Any]:
    return {
        role: scores[role].entry(head.layer, head.head) if role in scores else None
        for role in ROLES
    }
