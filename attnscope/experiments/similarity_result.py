"""How alike heads are: query heads that share or could, and key/value heads that could be one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class QueryPair:
    """Two query heads of a layer.

    `overlap` is the share of attention that both put on the same keys, 1 less the total variation
    distance; `awake` the same among keys that are no resting place. None where nothing lies there.
    """

    layer: int
    heads: tuple[int, int]
    shares: bool  # do they read the same key/value head?
    overlap: float
    awake: float | None
    same_labels: bool


@dataclass(frozen=True)
class SharedPair:
    """Two key/value heads of a layer, and the shares of their size that one head in their place
    would lose, 0 to 1, each of the two turned as suits it."""

    layer: int
    heads: tuple[int, int]
    key: float
    value: float

    @property
    def mean(self) -> float:
        """Of both."""
        return (self.key + self.value) / 2


@dataclass(frozen=True)
class Suggestion:
    """A grouping into so many key/value heads, against that of neighbours.

    `lost` are mean shares of keys and values lost in a pair, `deltas` what each adds to the loss
    (nats a token, best-aligned, untrained): neighbours first. `groups` by layer.
    """

    n_kv_heads: int
    kv_bytes_per_token: int
    ratio_to_mha: float | None
    lost: tuple[float, float]
    deltas: tuple[float, float]
    groups: tuple[tuple[tuple[int, ...], ...], ...]


@dataclass(frozen=True)
class SimilarityResult:
    """All of it, for one model. `labels[layer][head]`."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    queries: tuple[QueryPair, ...]
    shared: tuple[SharedPair, ...]
    suggestions: tuple[Suggestion, ...]
    labels: tuple[tuple[tuple[str, ...], ...], ...]
    settings: dict[str, Any]
    notes: tuple[str, ...] = ()

    def queries_of(self, layer: int, *, shares: bool) -> list[QueryPair]:
        """The pairs of a layer that share, or those that do not."""
        return [pair for pair in self.queries if pair.layer == layer and pair.shares == shares]

    def cheapest(self, layer: int) -> SharedPair | None:
        """The two key/value heads of a layer that lose least as one."""
        found = [pair for pair in self.shared if pair.layer == layer]
        return min(found, key=lambda pair: pair.mean) if found else None

    def to_json(self) -> dict[str, Any]:
        """The `similarity` entry of a document."""
        return {
            "settings": self.settings,
            "query_heads": [_plain(pair) for pair in self.queries],
            "kv_heads": [{**_plain(pair), "mean": pair.mean} for pair in self.shared],
            "suggestions": [_suggested(one) for one in self.suggestions],
            "labels": [[list(labels) for labels in layer] for layer in self.labels],
        }

    def to_frame(self) -> DataFrame:
        """One row for each two heads of a layer: query heads, then key/value heads."""
        from pandas import DataFrame

        return DataFrame(self._rows())

    def _rows(self) -> Iterator[dict[str, Any]]:
        for pair in self.queries:
            first, second = pair.heads
            yield {"kind": "query", **_plain(pair), "heads": f"{first} {second}"}
        for shared in self.shared:
            first, second = shared.heads
            yield {"kind": "key/value", **_plain(shared), "heads": f"{first} {second}"}


def _plain(pair: QueryPair | SharedPair) -> dict[str, Any]:
    return {**asdict(pair), "heads": list(pair.heads)}


def _suggested(one: Suggestion) -> dict[str, Any]:
    (lost, lost_alike), (delta, delta_alike) = one.lost, one.deltas
    return {
        "n_kv_heads": one.n_kv_heads,
        "kv_bytes_per_token": one.kv_bytes_per_token,
        "ratio_to_mha": one.ratio_to_mha,
        "neighbours": {"lost": lost, "loss_delta": delta},
        "alike": {"lost": lost_alike, "loss_delta": delta_alike},
        "groups": [[list(group) for group in layer] for layer in one.groups],
    }
