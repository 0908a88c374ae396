"""Which form of attention a layer uses: measured, by trying each on what the layer really did.

Where a norm stands, which features rotary turns and with which neighbour, how a fused matrix is
cut: checkpoints do not say, and model code says it in a hundred dialects. So a layer's own query,
key and value are written down for some text, ours are computed from the same hidden states in every
form we have, and the form that gives the same numbers is the layer's. When none does, we refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnscope.attention.multihead import MultiHeadAttention, Projections
from attnscope.attention.rotary import Rotation, per_feature
from attnscope.attention.spec import AttentionSpec
from attnscope.errors import CheckpointError
from attnscope.models.layouts import Stored

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 1e-2}
EXACT = 1e-6  # so near, no other form needs trying


@dataclass(frozen=True)
class Call:
    """What went into one layer's attention module, and what it asked attention for."""

    layer: int
    hidden_states: Tensor  # (1, T, C)
    angles: tuple[Tensor, Tensor] | None  # as they were passed, (1, T, any width)
    query: Tensor  # (1, H, T, D), turned and normed
    key: Tensor  # (1, G, T, D)
    value: Tensor  # (1, G, T, D)
    sink: Tensor | None = None  # (H,)


@dataclass(frozen=True)
class Tables:
    """How the angles' cos and sin come to a layer: in which order, one column for what."""

    sin_first: bool = False
    columns: str = "halves"  # as in AttentionSpec.rotary_pairs, or "pairs": one for each pair
    backwards: bool = False  # turned by minus the angles

    def rotation(self, angles: tuple[Tensor, Tensor], pairs: str) -> Rotation:
        """The rotation in the arrangement that `rotate` takes."""
        sin, cos = angles if self.sin_first else angles[::-1]
        sin = -sin if self.backwards else sin
        if self.columns == pairs:
            return Rotation(cos, sin)
        return Rotation(*(per_feature(self._per_pair(table), pairs) for table in (cos, sin)))

    def _per_pair(self, table: Tensor) -> Tensor:
        if self.columns == "pairs":
            return table
        half = table.shape[-1] // 2
        return table[..., :half] if self.columns == "halves" else table[..., ::2]  # (B, T, W/2)


@dataclass(frozen=True)
class Form:
    """One way to compute a layer's attention: the spec, the weights, how the angles come.

    `factor` is what the layer multiplies its query by before it asks for attention.
    """

    spec: AttentionSpec
    projections: Projections
    tables: Tables
    factor: float = 1.0

    @property
    def settled(self) -> AttentionSpec:
        """The spec with that factor in its scale."""
        if self.factor == 1:
            return self.spec
        return self.spec.with_changes(scale=self.spec.scaling * self.factor)


def angles_in(arguments: tuple[object, ...]) -> tuple[Tensor, Tensor] | None:
    """The cos and sin among a module's arguments: two tables alike, or one complex table."""
    for value in arguments:
        if isinstance(value, Tensor) and value.is_complex():
            return value.real, value.imag
        if isinstance(value, (tuple, list)) and len(value) == 2 and _are_tables(*value):
            return value[0], value[1]
    return None


def _are_tables(first: object, second: object) -> bool:
    return (
        isinstance(first, Tensor)
        and isinstance(second, Tensor)
        and first.shape == second.shape
        and first.is_floating_point()
        and first.dim() in (2, 3)
    )


def read_tables(angles: tuple[Tensor, Tensor]) -> Tables:
    """Tell cos from sin by position 0, and the columns by which of them are equal."""
    sin_first = not bool(angles[0].reshape(-1, angles[0].shape[-1])[0].any())
    table = angles[0]  # at least two positions, so that columns differ where their angles do
    half = table.shape[-1] // 2
    if table.shape[-1] % 2 == 0 and torch.equal(table[..., :half], table[..., half:]):
        return Tables(sin_first, "halves")
    if table.shape[-1] % 2 == 0 and torch.equal(table[..., ::2], table[..., 1::2]):
        return Tables(sin_first, "neighbours")
    return Tables(sin_first, "pairs")


def find_form(spec: AttentionSpec, stored: Stored, call: Call, last: Form | None = None) -> Form:
    """The form that gives this layer's query, key and value.

    `spec` has what the layer's call told; a layer is probably built like the `last` one.
    Raises CheckpointError when none of the forms does.
    """
    best, apart = None, float("inf")
    for form in sorted(_forms(spec, stored, call), key=lambda form: not _alike(form, last)):
        form = replace(form, factor=_query_factor(form, call))
        if (found := distance(form, call)) < apart:
            best, apart = form, found
        if apart <= EXACT:
            break
    if best is None or apart > _tolerance(call):
        raise CheckpointError(
            f"{type(stored.module).__name__} (layer {call.layer}) makes its query, key and value "
            f"in a way attnscope does not know (the nearest is {apart:.0e} away), so this "
            "checkpoint cannot be inspected."
        )
    return best


def check_form(form: Form, stored: Stored, call: Call) -> None:
    """Raise CheckpointError when the form does not hold for another call of the layer."""
    apart = distance(form, call)
    if not apart <= _tolerance(call):
        raise CheckpointError(
            f"{type(stored.module).__name__} (layer {call.layer}) computes otherwise far into a "
            f"text or from large numbers ({apart:.0e} away), in a way attnscope does not know, so "
            "this checkpoint cannot be inspected."
        )


def distance(form: Form, call: Call) -> float:
    """How far a form is from the layer, relative to the layer's own numbers."""
    ours = _prepare(form, call)
    if ours is None:
        return float("inf")
    query, key, value = ours
    return max(
        _relative(query * form.factor, call.query),
        _relative(key, call.key),
        _relative(value, call.value),
    )


def _forms(spec: AttentionSpec, stored: Stored, call: Call) -> Iterator[Form]:
    """Every form that the layer's parts allow."""
    tables = Tables() if call.angles is None else read_tables(call.angles)
    for projections in stored.projections((spec.n_heads, spec.kv_heads, spec.head_width)):
        for turned in _rotaries(spec, call, tables):
            for normed in _norms(turned, stored):
                yield Form(normed, projections, tables)
                if normed.rotary:
                    yield Form(normed, projections, replace(tables, backwards=True))


def _rotaries(spec: AttentionSpec, call: Call, tables: Tables) -> Iterator[AttentionSpec]:
    if call.angles is not None:
        columns = call.angles[0].shape[-1]
        width = 2 * columns if tables.columns == "pairs" else columns
        if width <= spec.head_width:
            partial = None if width == spec.head_width else width
            for pairs in ("halves", "neighbours"):
                yield spec.with_changes(rotary=True, rotary_width=partial, rotary_pairs=pairs)
    yield spec


def _norms(spec: AttentionSpec, stored: Stored) -> Iterator[AttentionSpec]:
    if stored.norms is not None:
        yield spec.with_changes(qk_norm="head")
        yield spec.with_changes(qk_norm="projection")
        if spec.rotary:
            yield spec.with_changes(qk_norm="head", norm_after_rotary=True)
    yield spec


def _alike(form: Form, other: Form | None) -> bool:
    return other is not None and _shape_of(form) == _shape_of(other)


def _shape_of(form: Form) -> tuple[object, ...]:
    spec = form.spec
    switches = (spec.rotary, spec.rotary_pairs, spec.qk_norm, spec.norm_after_rotary)
    return *switches, form.tables.backwards


def _prepare(form: Form, call: Call) -> tuple[Tensor, Tensor, Tensor] | None:
    """Our query, key and value from the layer's own hidden states; None where sizes do not fit."""
    attention = MultiHeadAttention(form.spec, form.projections)
    rotation = None
    if form.spec.rotary and call.angles is not None:
        rotation = form.tables.rotation(call.angles, form.spec.rotary_pairs)
    try:
        with torch.inference_mode():
            return attention.prepare(call.hidden_states, rotation)
    except RuntimeError:
        return None


def _query_factor(form: Form, call: Call) -> float:
    """The layer's query over ours: 1, 1/sqrt(D) or another number, by least squares."""
    found = _prepare(form, call)
    if found is None or found[0].shape != call.query.shape:
        return 1.0
    ours, theirs = found[0].double(), call.query.double()
    squares = float((ours * ours).sum())
    factor = float((ours * theirs).sum()) / squares if squares else 1.0
    for likely in (1.0, form.spec.head_width**-0.5):
        if abs(factor - likely) <= _tolerance(call) * likely:
            return likely
    return factor


def _relative(ours: Tensor, theirs: Tensor) -> float:
    if ours.shape != theirs.shape:
        return float("inf")
    scale = max(float(theirs.float().abs().max()), torch.finfo(torch.float32).tiny)
    return float((ours.float() - theirs.float()).abs().max()) / scale


def _tolerance(call: Call) -> float:
    return TOLERANCE.get(call.query.dtype, TOLERANCE[torch.bfloat16])
