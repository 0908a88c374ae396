"""info: what each layer's attention is, which heads share what, and what inspecting it takes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import attnscope
from attnscope.attention.spec import AttentionSpec
from attnscope.models.load import Model

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class InfoResult:
    """The layers of a model, as its load-time proof found them."""

    model: dict[str, Any]
    settings: dict[str, Any]
    specs: tuple[AttentionSpec, ...]
    layout: str
    parameters: int
    attention_parameters: int
    length: int  # tokens that capture_bytes is about
    directory: str

    @property
    def capture_bytes(self) -> int:
        """What the weights of every head over `length` tokens take, float32."""
        return sum(4 * spec.n_heads * self.length**2 for spec in self.specs)

    @property
    def sharing(self) -> list[list[int]]:
        """The query heads that read each key/value head, for the first layer."""
        spec = self.specs[0]
        return [
            [head for head in range(spec.n_heads) if spec.kv_head(head) == shared]
            for shared in range(spec.kv_heads)
        ]

    def to_json(self) -> dict[str, Any]:
        """The `attnscope.info/1` document."""
        return {
            "schema": "attnscope.info/1",
            "attnscope": attnscope.__version__,
            "model": self.model,
            "settings": self.settings,
            "layout": self.layout,
            "layers": [
                {"layer": layer, "kind": spec.kind, **asdict(spec)}
                for layer, spec in enumerate(self.specs)
            ],
            "sharing": self.sharing,
            "parameters": self.parameters,
            "attention_parameters": self.attention_parameters,
            "capture": {"tokens": self.length, "bytes": self.capture_bytes},
        }

    def to_frame(self) -> DataFrame:
        """One row per layer."""
        from pandas import DataFrame

        frame = DataFrame(self.to_json()["layers"])
        whole = ["window", "n_kv_heads", "d_head", "rotary_width"]  # whole numbers, or none
        return frame.astype(dict.fromkeys(whole, "Int64"))


def info(model: Model, length: int = 512, seed: int = 0) -> InfoResult:
    """What `attnscope models info` tells; `length` is the text that capture is estimated for."""
    attention = sum(p.numel() for seat in model.seats for p in seat.parameters())
    return InfoResult(
        model=model.describe(),
        settings=model.settings(seed),
        specs=model.specs,
        layout=model.layout,
        parameters=sum(p.numel() for p in model.network.parameters()),
        attention_parameters=attention,
        length=length,
        directory=str(model.source.directory),
    )
