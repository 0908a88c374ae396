"""What was measured of caches and of decoding, beside what the formula says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

QUANTISED = ("fp8", "int4")  # kinds of caches, beside dynamic and static


@dataclass(frozen=True)
class LayerCache:
    """One layer of one of transformers' caches, in bytes.

    `formula` is 2·G·D numbers for min(T, W) tokens. `measured` is what the cache hands to the
    attention of the newest token; where it is quantised, what it keeps. `kept` is what it has for
    the next token, `allocated` the memory in which that lies.
    """

    layer: int
    window: int | None
    formula: int
    measured: int
    kept: int
    allocated: int

    @property
    def difference(self) -> int:
        """What was measured beyond the formula."""
        return self.measured - self.formula


@dataclass(frozen=True)
class CacheCheck:
    """One kind of cache, filled with so many tokens; or why it could not be (`skipped`)."""

    cache: str
    context: int
    dtype: str
    layers: tuple[LayerCache, ...]
    skipped: str | None = None

    @property
    def formula(self) -> int:
        """Of all layers."""
        return sum(layer.formula for layer in self.layers)

    @property
    def measured(self) -> int:
        """Of all layers."""
        return sum(layer.measured for layer in self.layers)

    @property
    def kept(self) -> int:
        """Of all layers."""
        return sum(layer.kept for layer in self.layers)

    @property
    def allocated(self) -> int:
        """Of all layers."""
        return sum(layer.allocated for layer in self.layers)

    def to_json(self) -> dict[str, Any]:
        """One entry of `measured.caches`; what was not weighed has no bytes."""
        difference = self.measured - self.formula
        sizes = (self.formula, self.measured, self.kept, self.allocated, difference)
        names = ("formula", "measured", "kept", "allocated", "difference")
        return {
            "cache": self.cache,
            "context": self.context,
            "dtype": self.dtype,
            **dict(zip(names, sizes if self.layers else [None] * len(names), strict=True)),
            "skipped": self.skipped,
            "layers": [{**asdict(layer), "difference": layer.difference} for layer in self.layers],
        }


@dataclass(frozen=True)
class DecodeTime:
    """One decode step of one layer with so many key/value heads, at one context.

    `ratio` is the median over rounds of its time over the MHA twin's in the same round.
    """

    variant: str
    n_kv_heads: int
    context: int
    seconds: float
    ratio: float
    low: float  # quartiles of the ratio
    high: float
    cache_bytes: int


@dataclass(frozen=True)
class MeasuredResult:
    """Caches against the formula, and decode steps against the MHA twin's."""

    caches: tuple[CacheCheck, ...]
    decode: tuple[DecodeTime, ...]
    settings: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The `measured` entry of a document."""
        return {
            "settings": self.settings,
            "caches": [check.to_json() for check in self.caches],
            "decode": [asdict(row) for row in self.decode],
        }

    def to_frame(self) -> DataFrame:
        """One row for each cache and layer, then one for each decode step: `what` says which."""
        from pandas import DataFrame

        return DataFrame(self._rows(), dtype=object)  # whole numbers stay whole beside nothing

    def _rows(self) -> Iterator[dict[str, Any]]:
        for check in self.caches:
            for layer in check.layers:
                yield {
                    "what": "cache",
                    "cache": check.cache,
                    "context": check.context,
                    "dtype": check.dtype,
                    **asdict(layer),
                    "difference": layer.difference,
                }
        for row in self.decode:
            yield {"what": "decode", "dtype": self.settings.get("decode_dtype"), **asdict(row)}
