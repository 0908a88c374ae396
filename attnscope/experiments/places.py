"""places: where a text says [A][B] … [A], which heads point to B, and what is predicted there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import attnscope
from attnscope.attention.cores import Block
from attnscope.attention.lens import Lens
from attnscope.attention.probes import Pairs
from attnscope.attention.visibility import Visibility
from attnscope.experiments.room import check_room
from attnscope.models.load import Model
from attnscope.models.text import Tokens, batch_of
from attnscope.scoring.estimate import Scores, finite, score
from attnscope.scoring.roles import ROLES, resting_places
from attnscope.scoring.sums import Floats, from_lens
from attnscope.types import Head

if TYPE_CHECKING:
    from pandas import DataFrame

TOP_HEADS, TOP_TOKENS = 5, 3
_MORE = 1.01  # times chance: less is rounding


@dataclass(frozen=True)
class Guess:
    """A token that may come next, its probability, and how many tokens are likelier."""

    id: int
    text: str
    probability: float
    rank: int


@dataclass(frozen=True)
class Place:
    """One repeat: the query, the keys that follow its earlier copies, and what happens there.

    weights (L, H) is each head's attention on those keys together, `chance` that of a head that
    looks at all it may see alike; `expected` is the token after the latest copy, and follows the
    index of the text's own next token, None at its end.
    """

    query: int
    targets: tuple[int, ...]
    weights: Floats
    chance: float
    expected: Guess
    guesses: tuple[Guess, ...]
    follows: int | None

    def top(self, most: int = TOP_HEADS) -> list[tuple[Head, float]]:
        """The heads that point there most, of those that do so more than by chance."""
        order = np.argsort(-self.weights, axis=None, kind="stable")[:most]
        pairs = (np.unravel_index(flat, self.weights.shape) for flat in order)
        found = [(Head(int(i), int(j)), float(self.weights[i, j])) for i, j in pairs]
        return [(head, weight) for head, weight in found if weight > _MORE * self.chance]


@dataclass(frozen=True)
class PlacesResult:
    """Every place of a text where a token comes again."""

    model: dict[str, Any]
    settings: dict[str, Any]
    tokens: Tokens
    places: tuple[Place, ...]
    scores: Scores | None  # of the whole text; None without a place

    def to_json(self) -> dict[str, Any]:
        """The `attnscope.induction/1` document of a text: no stimulus, no loss, no labels."""
        return {
            "schema": "attnscope.induction/1",
            "attnscope": attnscope.__version__,
            "model": self.model,
            "settings": self.settings,
            "stimulus": None,
            "loss": None,
            "tokens": self.tokens.to_json(),
            "places": [self._place(place) for place in self.places],
            "heads": self._heads(),
            "ablation": None,
        }

    def _place(self, place: Place) -> dict[str, Any]:
        return {
            "index": place.query,
            "targets": list(place.targets),
            "chance": place.chance,
            "next": place.follows,
            "heads": [
                {"layer": head.layer, "head": head.head, "weight": finite(weight)}
                for head, weight in place.top()
            ],
            "expected": vars(place.expected),
            "predicted": [vars(guess) for guess in place.guesses],
        }

    def _heads(self) -> list[dict[str, Any]]:
        if self.scores is None:
            return []
        size = int(self.model["n_heads"] // self.model["n_kv_heads"])
        return [
            {
                "layer": layer,
                "head": head,
                "kv_head": head // size,
                "prefix_matching": self.scores.entry(layer, head),
            }
            for layer, head in np.ndindex(self.scores.raw.shape)
        ]

    def to_frame(self) -> DataFrame:
        """One row per place and head that points there most."""
        from pandas import DataFrame

        texts = [token.text for token in self.tokens.tokens]
        rows = [
            {
                "index": place.query,
                "token": texts[place.query],
                "targets": " ".join(map(str, place.targets)),
                "target_text": texts[place.targets[-1]],
                "layer": head.layer,
                "head": head.head,
                "weight": weight,
                "chance": place.chance,
                "probability": place.expected.probability,
                "rank": place.expected.rank,
                "predicted": place.guesses[0].text,
                "next": None if place.follows is None else texts[place.follows],
            }
            for place in self.places
            for head, weight in place.top()
        ]
        return DataFrame(rows)


def places(model: Model, text: Tokens, *, seed: int = 0) -> PlacesResult:
    """Every token of the text that came before, and what attention and prediction make of it.

    A token's targets are the tokens after its earlier copies, special tokens apart. Raises RunError
    when memory would not be enough.
    """
    batch = batch_of([text], model.pad_id).to(model.device)
    probe = ROLES["induction"].ask(batch, model.shape)
    assert isinstance(probe, Pairs)
    queries = sorted(set(probe.query.tolist()))
    settings = model.settings(seed)
    if not queries:
        return PlacesResult(model.describe(), settings, text, (), None)
    shape = model.shape
    check_room(
        shape.n_layers * shape.n_heads * len(queries) * 8,
        f"What every head does at {len(queries)} places",
        "Give a shorter text.",
    )
    weights = torch.zeros(shape.n_layers, shape.n_heads, len(queries))
    at, visibility = torch.tensor(queries), Visibility(batch.valid, shape.causal)

    def see(block: Block) -> None:
        inside = (at >= block.start) & (at < block.stop)
        found = probe.read(block, visibility)  # (1, H, t)
        rows = (at[inside] - block.start).to(found.device)
        weights[block.layer][:, inside] = found[0][:, rows].cpu()

    lens = Lens({"induction": probe}, resting_places(batch), observers=(see,))
    hidden = model.run(batch, lens)
    sums = from_lens(lens, shape.n_layers)
    return PlacesResult(
        model.describe(),
        settings,
        text,
        tuple(_places(model, text, probe, queries, weights, hidden[0])),
        score(sums, "induction", seed),
    )


def _places(
    model: Model, text: Tokens, probe: Pairs, queries: list[int], weights: Tensor, hidden: Tensor
) -> list[Place]:
    targets: dict[int, list[int]] = {query: [] for query in queries}
    for query, key in zip(probe.query.tolist(), probe.key.tolist(), strict=True):
        targets[query].append(key)
    unembed = model.predictor()
    found = []
    for start in range(0, len(queries), unembed.rows):
        part = queries[start : start + unembed.rows]
        chances = unembed(hidden[part]).log_softmax(-1)  # (n, V)
        best = chances.topk(min(TOP_TOKENS, chances.shape[-1]), dim=-1).indices.tolist()
        for row, query in enumerate(part):
            keys = tuple(sorted(targets[query]))
            expected = text.tokens[keys[-1]].id
            guesses = tuple(_guess(model, chances[row], id_) for id_ in best[row])
            found.append(
                Place(
                    query,
                    keys,
                    weights[..., start + row].double().numpy(),
                    len(keys) / (query + 1),
                    _guess(model, chances[row], expected),
                    guesses,
                    query + 1 if query + 1 < len(text) else None,
                )
            )
    return found


def _guess(model: Model, chances: Tensor, id_: int) -> Guess:
    if id_ < len(model.tokenizer):
        text = model.reader.from_ids([id_]).tokens[0].text
    else:
        text = f"<id {id_}>"  # rows of the embedding that no token has
    rank = int((chances > chances[id_]).sum())
    return Guess(id_, text, float(chances[id_].exp()), rank)
