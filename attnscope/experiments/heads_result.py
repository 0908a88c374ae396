"""What `heads` returns: every head's labels and scores, as a document and as rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import attnscope
from attnscope.experiments.explain import explain
from attnscope.models.text import Tokens
from attnscope.scoring.battery import Reading
from attnscope.scoring.estimate import NUMBERS, Scores, finite, mean
from attnscope.scoring.labels import Evidence, HeadLabels, Verdict
from attnscope.scoring.roles import ROLES, Role
from attnscope.scoring.rules import UNCLASSIFIED
from attnscope.scoring.sums import Floats
from attnscope.types import Head

if TYPE_CHECKING:
    from pandas import DataFrame

TOP_KEYS = 3


@dataclass(frozen=True)
class TopKey:
    """A token that a head looks at, and its share of the head's attention over the text."""

    index: int
    text: str
    weight: float


@dataclass(frozen=True)
class HeadsResult:
    """Every head's labels and scores. Arrays are (L, H).

    `scores` are on the texts given, `battery` is what labels rest on where there is one, and
    `general` the reading of natural text that shows what heads do at large.
    """

    model: dict[str, Any]
    settings: dict[str, Any]
    text: Tokens | None  # the only text given; None where there are several
    n_texts: int
    n_tokens: int
    roles: tuple[Role, ...]  # the user's own
    verdicts: tuple[Verdict, ...]
    labels: list[list[HeadLabels]]
    scores: dict[str, Scores]
    general: Reading
    random: Reading | None
    live_mass: Floats
    entropy: Floats
    distance: Floats
    received: Floats | None  # (L, H, T): share of attention each token gets, for one text
    explained: tuple[Head, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def heads(self) -> list[Head]:
        """Every head, in order."""
        n_layers, n_heads = self.live_mass.shape
        return [Head(layer, head) for layer in range(n_layers) for head in range(n_heads)]

    @property
    def all_roles(self) -> dict[str, Role]:
        """Our roles and the user's, by name."""
        return {**ROLES, **{role.name: role for role in self.roles}}

    @property
    def evidence(self) -> dict[str, Evidence]:
        """What the labels rest on, by kind of text."""
        found = {"text": self.general.evidence}
        return found if self.random is None else {**found, "random": self.random.evidence}

    @property
    def battery(self) -> dict[str, Scores] | None:
        """Each role's scores on the kind of text that decides it; None without a battery."""
        if self.random is None:
            return None
        scored = self.general.evidence.scores
        return {role: self.decisive(role) for role in self.all_roles if role in scored}

    def decisive(self, role: str) -> Scores:
        """The scores that a label of this role rests on."""
        if self.random is not None and self.all_roles[role].home == "random":
            return self.random.evidence.scores[role]
        return self.general.evidence.scores.get(role) or self.scores[role]

    def name_of(self, kind: str) -> str:
        """What a kind of text is called in a sentence."""
        if kind == "random":
            return "repeated random tokens"
        about = self.general.about
        return str(about.get("what") or f"{about['texts']} text{'s' * (about['texts'] != 1)}")

    @property
    def basis(self) -> str:
        """What the labels rest on, in words."""
        return " and ".join(self.name_of(kind) for kind in self.evidence)

    def kv_head(self, head: Head) -> int:
        """The key/value head that a head reads."""
        return head.head // int(self.model["n_heads"] // self.model["n_kv_heads"])

    def labels_of(self, head: Head) -> HeadLabels:
        """What a head is for."""
        return self.labels[head.layer][head.head]

    @property
    def general_live_mass(self) -> Floats:
        """What heads leave for tokens that are no resting place, where labels come from."""
        return 1 - mean(self.general.sums, "resting")

    def resting(self, head: Head) -> list[dict[str, Any]]:
        """On what a head rests, how much, and how large its values are there against elsewhere.

        `is` says what the first token is: the special token that begins a text, or a word.
        """
        at = head.layer, head.head
        found = []
        for place in self.labels_of(head).rests_on:
            scores = self.general.evidence.scores[place.replace("-", "_")]
            norms = self.general.value_norms.get(place)
            first = self.settings["bos"]["token"] or "a word"
            found.append(
                {
                    "on": place,
                    "is": first if place == "first-token" else None,
                    "raw": finite(scores.raw[at]),
                    "lift": finite(scores.lift[at]),
                    "value_norm_ratio": None if norms is None else finite(norms[at]),
                }
            )
        return found

    def top_keys(self, head: Head) -> list[TopKey]:
        """The tokens a head looks at most, for one text; empty for several."""
        if self.received is None or self.text is None:
            return []
        weights = self.received[head.layer, head.head]
        best = np.argsort(-weights, kind="stable")[:TOP_KEYS]
        tokens = self.text.tokens
        return [TopKey(int(i), tokens[i].text, float(weights[i])) for i in best]

    def to_json(self) -> dict[str, Any]:
        """The `attnscope.heads/1` document."""
        document = {
            "schema": "attnscope.heads/1",
            "attnscope": attnscope.__version__,
            "model": self.model,
            "settings": self.settings,
            "texts": self.n_texts,
            **({"tokens": self.text.to_json()} if self.text is not None else {}),
            "labels_from": "texts" if self.random is None else "battery",
            "notes": list(self.notes),
            "heads": [self._entry(head) for head in self.heads],
        }
        if self.explained:
            document["explanations"] = {
                str(head): list(explain(self, head)) for head in self.explained
            }
        return document

    def _entry(self, head: Head) -> dict[str, Any]:
        found = self.labels_of(head)
        at = head.layer, head.head
        random = None if self.random is None else self.random.evidence.scores
        return {
            "layer": head.layer,
            "head": head.head,
            "kv_head": self.kv_head(head),
            "labels": list(found.labels),
            "rests_on": list(found.rests_on),
            "scores": self._entries(self.scores, head),
            "battery": None if self.battery is None else self._entries(self.battery, head),
            "random_tokens": None if random is None else self._entries(random, head),
            "resting": self.resting(head),
            "reach": finite(self.general.reach[at]),
            "live_mass": finite(self.live_mass[at]),
            "entropy": finite(self.entropy[at]),
            "distance": finite(self.distance[at]),
            "top_keys": [vars(key) for key in self.top_keys(head)],
        }

    def _entries(self, scores: Mapping[str, Scores], head: Head) -> dict[str, Any]:
        return {
            role: scores[role].entry(head.layer, head.head) if role in scores else None
            for role in self.all_roles
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
            row["rests"] = finite(1 - self.general_live_mass[head.layer, head.head])
            row |= {name: entry[name] for name in ("reach", "live_mass", "entropy", "distance")}
            for source in ("scores", "battery"):
                for role, numbers in (entry[source] or {}).items():
                    prefix = role if source == "scores" else f"battery_{role}"
                    for name in (*NUMBERS, "n"):
                        row[f"{prefix}_{name}"] = None if numbers is None else numbers[name]
            rows.append(row)
        return DataFrame(rows)

    def to_summary(self) -> DataFrame:
        """One row per head with what a person reads: the numbers of its first label."""
        from pandas import DataFrame

        rows = []
        for head in self.heads:
            found, at = self.labels_of(head), (head.layer, head.head)
            scores = self.decisive(found.roles[0]) if found.roles else None
            numbers = {
                name: None if scores is None else finite(getattr(scores, name)[at])
                for name in ("raw", "chance", "lift", "low", "high", "bound")
            }
            row = {"head": str(head), "labels": ", ".join(found.labels) or UNCLASSIFIED}
            row |= {"rests_on": ", ".join(found.rests_on)}
            rows.append({**row, **numbers, "rests": finite(1 - self.general_live_mass[at])})
        return DataFrame(rows)
