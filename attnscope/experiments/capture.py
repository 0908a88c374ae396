"""capture: the attention weights of one text, and what stands around them, as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import attnscope
from attnscope.attention.cores import Block
from attnscope.attention.lens import Lens
from attnscope.errors import UsageError, did_you_mean
from attnscope.experiments.room import check_room
from attnscope.experiments.selection import Selection
from attnscope.models.load import Model
from attnscope.models.text import Tokens, batch_of
from attnscope.types import Head

if TYPE_CHECKING:
    from pandas import DataFrame

EXTRAS = ("z", "contribution_norm", "query", "key", "value", "sink")


@dataclass(frozen=True)
class Capture:
    """The weights of one text: `capture[layer]` is (H, T, T), row = query, column = key.

    With some heads selected, H is their number and `heads[layer]` says which they are.
    """

    model: dict[str, Any]
    settings: dict[str, Any]
    tokens: Tokens
    selection: Selection
    attention: dict[int, Tensor]
    extras: dict[str, Tensor]

    def __getitem__(self, layer: int) -> Tensor:
        return self.attention[layer]

    def __len__(self) -> int:
        return len(self.attention)

    def __iter__(self) -> Iterator[int]:
        return iter(self.attention)

    def heads(self) -> Iterator[tuple[Head, Tensor]]:
        """Every selected head with its weights (T, T)."""
        for layer, chosen in self.selection:
            for place, head in enumerate(chosen):
                yield Head(layer, head), self.attention[layer][place]

    def to_json(self) -> dict[str, Any]:
        """The `attnscope.show/1` document: each head's rows of weights, row = query."""
        return {
            **self.metadata(),
            "schema": "attnscope.show/1",
            "heads": [
                {"layer": head.layer, "head": head.head, "weights": weights.tolist()}
                for head, weights in self.heads()
            ],
        }

    def to_frame(self) -> DataFrame:
        """One row per head, query and key."""
        from pandas import DataFrame

        texts = [token.text for token in self.tokens.tokens]
        return DataFrame(
            {
                "layer": head.layer,
                "head": head.head,
                "query": query,
                "query_text": texts[query],
                "key": key,
                "key_text": texts[key],
                "weight": weight,
            }
            for head, weights in self.heads()
            for query, row in enumerate(weights.tolist())
            for key, weight in enumerate(row)
        )

    def arrays(self) -> dict[str, Tensor]:
        """Every array by the key it has in a file."""
        found = {f"attention.{layer}": weights for layer, weights in self.attention.items()}
        if not self.selection.whole:
            found |= {f"heads.{layer}": torch.tensor(chosen) for layer, chosen in self.selection}
        found |= self.extras
        found["input_ids"] = torch.tensor([token.id for token in self.tokens.tokens])
        return found

    def metadata(self) -> dict[str, Any]:
        """The document that a file of arrays carries."""
        return {
            "schema": "attnscope.capture/1",
            "attnscope": attnscope.__version__,
            "model": self.model,
            "settings": self.settings,
            "tokens": self.tokens.to_json(),
        }


def capture(
    model: Model,
    text: Tokens,
    selection: Selection,
    *,
    include: Sequence[str] = (),
    seed: int = 0,
) -> Capture:
    """The weights of the selected heads over one text, float32, on the CPU.

    `include` adds z (heads before W_O), contribution_norm (‖z · W_O‖ of each head), query, key
    and value (key and value by key/value head), and sink, the share of each row that a learned
    sink takes. Raises RunError when memory would not be enough.
    """
    unknown = next((name for name in include if name not in EXTRAS), None)
    if unknown is not None:
        raise UsageError(
            f"Unknown --include {unknown!r}: choose from {', '.join(EXTRAS)}."
            + did_you_mean(unknown, EXTRAS)
        )
    if "sink" in include and not any(spec.sink for spec in model.specs):
        raise UsageError(f"{model.id} has no learned sink: leave `sink` out of --include.")
    n = len(text)
    check_room(
        selection.count() * n * n * 4,
        f"The weights of {selection.count()} heads over {n} tokens",
        "Select fewer with --layers or --heads, or shorten the text.",
    )
    attention = {layer: torch.zeros(len(chosen), n, n) for layer, chosen in selection}
    extras: dict[str, Tensor] = {}

    def keep(block: Block) -> None:
        if block.layer in attention:
            chosen = list(selection.heads[block.layer])
            rows, keys = slice(block.start, block.stop), slice(block.low, block.high)
            attention[block.layer][:, rows, keys] = block.weights[0, chosen].cpu()

    def record(layer: int, around: Mapping[str, Tensor]) -> None:
        if layer in attention:
            chosen = list(selection.heads[layer])
            for name in include:
                extras[f"{name}.{layer}"] = _extra(model, layer, chosen, name, around)

    model.run(
        batch_of([text], model.pad_id),
        Lens(observers=(keep,), recorders=(record,) if include else ()),
    )
    return Capture(
        model.describe(),
        {**model.settings(seed), "include": list(include)},
        text,
        selection,
        attention,
        extras,
    )


def _extra(
    model: Model, layer: int, chosen: list[int], name: str, around: Mapping[str, Tensor]
) -> Tensor:
    if name == "contribution_norm":
        return _contribution_norm(model, layer, around["z"][0])[chosen].cpu()  # (H, T)
    if name == "sink":  # layers without one give it nothing
        share = around.get("sink", around["z"].new_zeros(around["z"].shape[:3]))
        return share[0, chosen].cpu()  # (H, T)
    found = around[name][0].float()  # (H or G, T, D)
    return (found if name in ("key", "value") else found[chosen]).cpu().contiguous()


def _contribution_norm(model: Model, layer: int, z: Tensor) -> Tensor:
    """‖z · W_O‖ of each head: what it adds to the residual stream, (H, T)."""
    attention = model.seats[layer].attention

    def mixed(heads: Tensor) -> Tensor:
        return attention.mix(attention.merge(heads[None]).to(model.dtype))[0].float()  # (T, C)

    bias = mixed(torch.zeros_like(z))  # what W_O adds by itself
    norms = []
    for head in range(z.shape[0]):
        alone = torch.zeros_like(z)
        alone[head] = z[head]
        norms.append((mixed(alone) - bias).norm(dim=-1))  # (T,)
    return torch.stack(norms)  # (H, T)
