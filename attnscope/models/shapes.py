"""The shape of a model's attention, as far as memory and arithmetic go; and the known models.

Each row of configs/models/*.yaml is one published model. No weights, no torch: plain integers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from attnscope.config_files import config_files
from attnscope.errors import RunError, UsageError, did_you_mean
from attnscope.plain import visible


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: what is kept of a token is `kv_rank + rope` numbers.

    Widths per head: `nope` and `rope` of a query, `value` of a value (arXiv 2405.04434, 2.1).
    """

    kv_rank: int
    rope: int
    nope: int
    value: int
    q_rank: int | None = None  # None: queries are projected at once

    @property
    def kept(self) -> int:
        """Numbers kept of a token, in each layer."""
        return self.kv_rank + self.rope

    def weights(self, d_model: int, n_heads: int) -> int:
        """Weights of a layer's projections."""
        width = n_heads * (self.nope + self.rope)
        query = (
            d_model * width if self.q_rank is None else self.q_rank * (d_model + width)
        )  # through the low rank where there is one
        up = self.kv_rank * n_heads * (self.nope + self.value)
        return query + d_model * self.kept + up + n_heads * self.value * d_model

    def norms(self) -> int:
        """Weights of the norms of its latents, which other attention does not have."""
        return self.kv_rank + (self.q_rank or 0)


@dataclass(frozen=True)
class AttentionShape:
    """How many heads, how wide, in how many layers, and how far back they see."""

    name: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_model: int
    causal: bool = True
    window: int | None = None  # keys, the query's own among them
    sliding_layers: int = 0  # so many layers have the window, the others see everything
    qkv_bias: bool = False
    output_bias: bool = False
    latent: Latent | None = None
    positions: int | None = None
    parameters: int | None = None  # of the whole model; None where it is not known
    family: str = ""
    hub: str = ""
    source: str = ""
    assumed: tuple[str, ...] = ()  # keys that a config leaves to transformers' defaults

    @property
    def kind(self) -> str:
        """MLA, MHA, GQA or MQA."""
        if self.latent is not None:
            return "MLA"
        if self.n_kv_heads == self.n_heads:
            return "MHA"
        return "MQA" if self.n_kv_heads == 1 else "GQA"

    @property
    def projection_weights(self) -> int:
        """Weights of W_Q, W_K, W_V and W_O of all layers: 2·C·D·(H + G) in each."""
        if self.latent is not None:
            return self.n_layers * self.latent.weights(self.d_model, self.n_heads)
        return self.n_layers * 2 * self.d_model * self.d_head * (self.n_heads + self.n_kv_heads)

    @property
    def attention_parameters(self) -> int:
        """The same with their biases."""
        biases = self.d_head * (self.n_heads + 2 * self.n_kv_heads) if self.qkv_bias else 0
        biases += self.d_model if self.output_bias else 0
        return self.projection_weights + self.n_layers * biases

    def twin(self, n_kv_heads: int) -> AttentionShape:
        """The same model with so many key/value heads. Raises UsageError where heads are left over.

        Its `parameters` are those of the model, less its attention, plus the twin's.
        """
        if n_kv_heads < 1 or self.n_heads % n_kv_heads:
            fitting = map(str, divisors(self.n_heads))
            raise UsageError(
                f"{self.n_heads} query heads cannot share {n_kv_heads} key/value heads evenly. "
                f"Choose from {', '.join(fitting)}."
            )
        if n_kv_heads == self.n_kv_heads and self.latent is None:
            return self
        other = replace(self, n_kv_heads=n_kv_heads, latent=None, parameters=None)
        if self.parameters is None:
            return other
        norms = 0 if self.latent is None else self.n_layers * self.latent.norms()
        rest = self.parameters - self.attention_parameters - norms
        return replace(other, parameters=rest + other.attention_parameters)


def divisors(number: int) -> list[int]:
    """Every whole number that divides it, the least first."""
    low = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*low, *(number // n for n in low)})


def known_shapes() -> Mapping[str, AttentionShape]:
    """The rows of configs/models/*.yaml, by name."""
    return _read(config_files("models"))


def known_shape(name: str) -> AttentionShape:
    """The known model of this name or hub id, in whatever case. Raises UsageError for another."""
    for shape in known_shapes().values():
        if name.lower() in (shape.name, shape.hub.lower()):
            return shape
    raise UsageError(
        f"No model called '{visible(name)}' is known by its shape."
        f"{did_you_mean(name.lower(), known_shapes())}\n"
        "Type `attnscope compare mha-vs-gqa --list` for those that are; --model takes others."
    )


@lru_cache
def _read(paths: tuple[Path, ...]) -> Mapping[str, AttentionShape]:
    shapes: dict[str, AttentionShape] = {}
    for path in paths:
        rows = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
        for name, row in rows.items():
            if name in shapes:
                raise RunError(f"{path.name}: there are two rows {name}.")
            shapes[name] = read_row(name, row, path.name)
    return shapes


# The same loader, written in C where it was built so: a tenth of the time.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NEEDED = {"n_layers", "n_heads", "n_kv_heads", "d_head", "d_model", "source"}


def read_row(name: str, row: Mapping[str, Any], file: str) -> AttentionShape:
    """One row. Unknown and missing keys, and numbers that do not fit, raise RunError."""
    known = {field.name for field in fields(AttentionShape)} - {"name", "sliding_layers", "assumed"}
    _check_keys(f"{file}, row {name}", row, known | {"full_every"}, _NEEDED)
    values = dict(row)
    every = values.pop("full_every", None)
    if (latent := values.get("latent")) is not None:
        wanted = {field.name for field in fields(Latent)}
        _check_keys(f"{file}, row {name}, latent", latent, wanted, wanted - {"q_rank"})
        values["latent"] = Latent(**latent)
    if values.get("window") is not None:
        layers = values["n_layers"]
        values["sliding_layers"] = layers - (layers // every if every else 0)
    shape = AttentionShape(name=name, **values)
    if shape.n_heads % shape.n_kv_heads or (every is not None and shape.window is None):
        raise RunError(f"{file}, row {name}: heads or windows do not fit each other.")
    return shape


def _check_keys(where: str, row: Mapping[str, Any], known: set[str], needed: set[str]) -> None:
    for key in row:
        if key not in known:
            raise RunError(f"{where}: unknown key {key!r}.{did_you_mean(str(key), known)}")
    if missing := sorted(needed - set(row)):
        raise RunError(f"{where}: {', '.join(missing)} is missing.")
