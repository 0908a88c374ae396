"""What converting to fewer key/value heads costs: one entry for each number of heads and method."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from attnscope.types import Head

if TYPE_CHECKING:
    from pandas import DataFrame

AS_IS, REPEATED = "as it is", "repeated"  # methods that change nothing


@dataclass(frozen=True)
class ConvertedHead:
    """One query head: KL of its attention to what it was, in nats, and its labels.

    `reached` are the labels that its mean scores reach, borne out by the texts or not.
    """

    layer: int
    head: int
    kv_head: int  # the one it reads now
    attention_kl: float
    labels_before: tuple[str, ...]
    labels: tuple[str, ...]
    reached: tuple[str, ...] = ()

    @property
    def name(self) -> Head:
        """Layer and head."""
        return Head(self.layer, self.head)


@dataclass(frozen=True)
class Survival:
    """How many heads had a label before, how many of them kept it, and how many have it now.

    `reached` counts those of them whose mean score still reaches the label's minimum: they keep it,
    or too few texts bear it out.
    """

    before: int
    kept: int
    after: int
    reached: int


@dataclass(frozen=True)
class Conversion:
    """One converted model, without any training. Losses are nats a token.

    `loss_delta` is against the model as it is, `low` and `high` its 95 % interval over the texts.
    `repeated` is the loss on random tokens said once, and on their second saying. `hidden_error`
    is |h' - h| / |h| after the embedding and after each layer.
    """

    n_kv_heads: int
    method: str
    grouping: str
    exact: bool  # query heads that share did so before
    kv_bytes_per_token: int
    kv_bytes: int
    ratio_to_mha: float | None
    loss: float
    loss_delta: float
    low: float | None
    high: float | None
    repeated: tuple[float, float] | None
    attention_kl: float
    hidden_error: tuple[float, ...]
    heads: tuple[ConvertedHead, ...]

    @property
    def survival(self) -> dict[str, Survival]:
        """By label, in the order of the table of labels."""
        from attnscope.scoring.rules import LABELS

        found = {}
        for label in LABELS:
            before = sum(label in head.labels_before for head in self.heads)
            after = sum(label in head.labels for head in self.heads)
            kept = sum(label in head.labels_before and label in head.labels for head in self.heads)
            reached = sum(
                label in head.labels_before and label in (*head.labels, *head.reached)
                for head in self.heads
            )
            if before or after:
                found[label] = Survival(before, kept, after, reached)
        return found

    def to_json(self) -> dict[str, Any]:
        """One entry of `conversion`."""
        entry = {name: value for name, value in vars(self).items() if name != "heads"}
        repeated = self.repeated
        return {
            **entry,
            "repeated": None if repeated is None else {"first": repeated[0], "second": repeated[1]},
            "hidden_error": list(self.hidden_error),
            "labels": {label: asdict(one) for label, one in self.survival.items()},
            "heads": [
                {
                    **asdict(head),
                    "labels_before": list(head.labels_before),
                    "labels": list(head.labels),
                    "reached": list(head.reached),
                }
                for head in self.heads
            ],
        }


@dataclass(frozen=True)
class ConversionResult:
    """Every conversion that was asked for. `settings` say what was read."""

    n_kv_heads: int  # of the model as it is
    vocab_size: int
    loss: float
    repeated: tuple[float, float] | None
    settings: dict[str, Any]
    conversions: tuple[Conversion, ...]
    notes: tuple[str, ...] = ()
    saved: str | None = None  # the directory

    def to_json(self) -> list[dict[str, Any]]:
        """The `conversion` entry of a document."""
        return [one.to_json() for one in self.conversions]

    def to_frame(self) -> DataFrame:
        """One row for each conversion and head, with what holds of the whole conversion."""
        from pandas import DataFrame

        return DataFrame(self._rows())

    def _rows(self) -> Iterator[dict[str, Any]]:
        whole = (
            *("n_kv_heads", "method", "grouping", "kv_bytes_per_token", "kv_bytes"),
            *("ratio_to_mha", "loss", "loss_delta", "low", "high"),
        )
        for one in self.conversions:
            shared = {name: getattr(one, name) for name in whole}
            for head in one.heads:
                yield {
                    **shared,
                    "layer": head.layer,
                    "head": head.head,
                    "kv_head": head.kv_head,
                    "attention_kl": head.attention_kl,
                    "layer_hidden_error": one.hidden_error[head.layer + 1],
                    "labels_before": " ".join(head.labels_before),
                    "labels": " ".join(head.labels),
                    "reached": " ".join(head.reached),
                }

    def best(self, n_kv_heads: int) -> Conversion:
        """The one with the least loss for so many key/value heads."""
        return min(
            (one for one in self.conversions if one.n_kv_heads == n_kv_heads),
            key=lambda one: one.loss,
        )
