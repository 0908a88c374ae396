"""What `compare` returns: the rows, and what was measured beside them; a document, and a frame."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import attnscope
from attnscope.experiments.memory import NumberFormat, Paging
from attnscope.experiments.published import PUBLISHED
from attnscope.models.shapes import AttentionShape
from attnscope.plain import visible

if TYPE_CHECKING:
    from pandas import DataFrame

    from attnscope.experiments.conversion_result import ConversionResult
    from attnscope.experiments.measured_result import MeasuredResult
    from attnscope.experiments.similarity_result import SimilarityResult

WINDOWS = ("full", "window")


@dataclass(frozen=True)
class Settings:
    """What the numbers depend on beside the shape."""

    contexts: tuple[int, ...]
    batch: int
    kept: NumberFormat
    weights: NumberFormat
    paging: Paging
    memory: int  # bytes

    def to_json(self) -> dict[str, Any]:
        """As the document records it."""
        return {
            "contexts": [*self.contexts],
            "batch": self.batch,
            "dtype": self.kept.name,
            "scale_group": self.kept.group,
            "zero_point": self.kept.zero_point,
            "weights_dtype": self.weights.name,
            "page_size": self.paging.page_size,
            "sliding": WINDOWS[0 if self.paging.full_windows else 1],
            "memory_bytes": self.memory,
        }


@dataclass(frozen=True)
class CompareRow:
    """One variant of one model at one context. FLOPs are those of attention."""

    model: str
    variant: str
    as_is: bool  # the model as it is; the others are its twins
    n_layers: int
    n_heads: int
    n_kv_heads: int | None  # None: MLA has none
    d_head: int
    dtype: str
    batch: int
    context: int
    kv_bytes_per_token: int
    kv_bytes: int
    kv_bytes_allocated: int
    ratio_to_mha: float | None  # None: no cache
    attention_parameters: int
    attention_bytes: int
    weights_bytes: int | None  # of the whole model; None where its parameters are not known
    attention_flops_per_token: int
    prefill_flops: int
    decode_flops_per_byte: float | None
    longest_context: int | None  # None: no cache, or any context fits
    largest_batch: int | None


@dataclass(frozen=True)
class CompareResult:
    """The rows, and the shapes they are about; of a loaded model also what was measured on it."""

    shapes: tuple[AttentionShape, ...]
    settings: Settings
    rows: tuple[CompareRow, ...]
    loaded: dict[str, Any] | None = None  # the model's own entry
    conversion: ConversionResult | None = None
    similarity: SimilarityResult | None = None
    measured: MeasuredResult | None = None

    @property
    def parts(self) -> list[ConversionResult | SimilarityResult | MeasuredResult]:
        """What was measured."""
        every = (self.conversion, self.similarity, self.measured)
        return [part for part in every if part is not None]

    @property
    def notes(self) -> list[str]:
        """What a reader must know of the shapes before believing the numbers."""
        return [
            f"The config of {visible(shape.name)} leaves out {', '.join(shape.assumed)}: taken are "
            f"the defaults of transformers for {shape.family}."
            for shape in self.shapes
            if shape.assumed
        ]

    def to_json(self) -> dict[str, Any]:
        """The `attnscope.compare/1` document."""
        described = _described(self.shapes[0], self.settings) if len(self.shapes) == 1 else None
        settings = self.settings.to_json()
        if self.conversion is not None:
            settings["conversion"] = self.conversion.settings
        return {
            "schema": "attnscope.compare/1",
            "attnscope": attnscope.__version__,
            "model": described if self.loaded is None else {**(described or {}), **self.loaded},
            "settings": settings,
            "rows": [asdict(row) for row in self.rows],
            "conversion": None if self.conversion is None else self.conversion.to_json(),
            "similarity": None if self.similarity is None else self.similarity.to_json(),
            "measured": None if self.measured is None else self.measured.to_json(),
            "notes": self.notes,
            "published": [report.to_json() for report in PUBLISHED],
        }

    def to_frame(self) -> DataFrame:
        """One row per model, variant and context; whole numbers stay whole, however large.

        Where one thing was measured on a model, its rows instead.
        """
        from pandas import DataFrame

        if len(self.parts) == 1:
            return self.parts[0].to_frame()
        names = [field.name for field in fields(CompareRow)]
        columns = {name: [getattr(row, name) for row in self.rows] for name in names}
        return DataFrame({name: _whole(values) for name, values in columns.items()})


def _described(shape: AttentionShape, settings: Settings) -> dict[str, Any]:
    """The `model` entry: nothing was loaded, so nothing is proven."""
    told = asdict(shape)
    kept = ("family", "n_layers", "n_heads", "n_kv_heads", "d_head", "d_model", "causal")
    more = ("window", "sliding_layers", "latent", "positions", "parameters", "hub", "source")
    return {
        "id": shape.name,
        **{key: told[key] for key in kept},
        "n_kv_heads": None if shape.latent is not None else shape.n_kv_heads,
        "dtype": settings.weights.name,
        "parity": None,
        **{key: told[key] for key in more},
    }


def _whole(values: list[Any]) -> Any:
    """A column that keeps integers beyond 64 bits, and beside missing ones."""
    from pandas import Series

    mixed = any(isinstance(v, int) and not isinstance(v, bool) for v in values)
    return Series(values, dtype=object) if mixed else values
