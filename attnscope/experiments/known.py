"""known: the published models whose attention shape comes with attnscope."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import attnscope
from attnscope.models import shapes
from attnscope.models.shapes import AttentionShape

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class KnownShapes:
    """The rows of configs/models."""

    shapes: tuple[AttentionShape, ...]

    def to_json(self) -> dict[str, Any]:
        """The `attnscope.shapes/1` document."""
        return {
            "schema": "attnscope.shapes/1",
            "attnscope": attnscope.__version__,
            "model": None,
            "settings": {},
            "shapes": [_told(shape) for shape in self.shapes],
        }

    def to_frame(self) -> DataFrame:
        """One row per model; what latent attention keeps of a token stands for its ranks."""
        from pandas import DataFrame

        rows = []
        for shape in self.shapes:
            told = _told(shape)
            told["latent"] = None if shape.latent is None else shape.latent.kept
            rows.append(told)
        return DataFrame(rows, dtype=object)


def _told(shape: AttentionShape) -> dict[str, Any]:
    """A row as rows of a report have it: latent attention has no key/value heads."""
    told = {"kind": shape.kind, "encoder": not shape.causal, **asdict(shape)}
    del told["assumed"]  # published models leave nothing open
    return told | {"n_kv_heads": None if shape.latent is not None else shape.n_kv_heads}


def known_shapes() -> KnownShapes:
    """What `attnscope compare mha-vs-gqa --list` tells."""
    return KnownShapes(tuple(shapes.known_shapes().values()))
