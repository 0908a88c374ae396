"""AttentionSpec: everything that decides what one attention layer computes, besides its weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

from attnscope.errors import UsageError

ROTARY_PAIRS = ("halves", "neighbours")
QK_NORMS = (None, "head", "projection")


@dataclass(frozen=True)
class AttentionSpec:
    """Sizes and switches of one attention layer.

    `n_kv_heads` left out means one key/value head per query head (MHA); 1 is MQA; between is GQA.
    `d_head` left out is `d_model / n_heads`; `scale` left out is `1 / sqrt(d_head)`
    (Vaswani et al. 2017, section 3.2.1). A checkpoint's own values always win over both.

    Raises UsageError when the heads do not divide up as told.
    """

    d_model: int
    n_heads: int
    n_kv_heads: int | None = None
    d_head: int | None = None
    scale: float | None = None
    causal: bool = False
    window: int | None = None  # keys a query sees, itself included; None: all
    softcap: float | None = None  # scores become softcap * tanh(scores / softcap)
    rotary: bool = False  # cos and sin come with each forward
    rotary_width: int | None = None  # features of a head that turn, its first ones; None: all
    rotary_pairs: str = "halves"  # feature d turns with d + width/2; "neighbours": 2d with 2d + 1
    qk_norm: str | None = None  # query and key normed by "head", or over the whole "projection"
    norm_after_rotary: bool = False  # where qk_norm is by head
    sink: bool = False  # a learned score per head that takes weight from every row
    bias: bool = False  # only when the projections are made here

    def __post_init__(self) -> None:
        for name in ("d_model", "n_heads", "n_kv_heads", "d_head", "window", "rotary_width"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}: it must be at least 1.")
        if self.n_kv_heads is not None and self.n_heads % self.n_kv_heads:
            raise UsageError(
                f"n_heads {self.n_heads} is not a multiple of n_kv_heads {self.n_kv_heads}: "
                "query heads cannot share key/value heads evenly."
            )
        if self.d_head is None and self.d_model % self.n_heads:
            raise UsageError(
                f"d_model {self.d_model} is not divisible by n_heads {self.n_heads}: "
                "give d_head explicitly, or change one of the two."
            )
        if self.rotary and self.turned_width % 2:
            name = "d_head" if self.rotary_width is None else "rotary_width"
            raise UsageError(f"Rotary embedding turns pairs: {name} {self.turned_width} is odd.")
        if self.rotary and self.turned_width > self.head_width:
            raise UsageError(
                f"rotary_width {self.turned_width} is more than d_head {self.head_width}."
            )
        _check("rotary_pairs", self.rotary_pairs, ROTARY_PAIRS)
        _check("qk_norm", self.qk_norm, QK_NORMS)
        if self.norm_after_rotary and self.qk_norm == "projection":
            raise UsageError("A norm over the whole projection comes before the rotary embedding.")

    @property
    def kv_heads(self) -> int:
        """Key/value heads, G."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def group_size(self) -> int:
        """Query heads that share one key/value head, R = H / G."""
        return self.n_heads // self.kv_heads

    @property
    def head_width(self) -> int:
        """Width of one head, D."""
        return self.d_model // self.n_heads if self.d_head is None else self.d_head

    @property
    def turned_width(self) -> int:
        """Features of a head that the rotary embedding turns."""
        return self.head_width if self.rotary_width is None else self.rotary_width

    @property
    def scaling(self) -> float:
        """What query · key is multiplied by."""
        return self.head_width**-0.5 if self.scale is None else self.scale

    @property
    def kind(self) -> str:
        """MHA, GQA or MQA."""
        if self.kv_heads == self.n_heads:
            return "MHA"
        return "MQA" if self.kv_heads == 1 else "GQA"

    def kv_head(self, head: int) -> int:
        """The key/value head that query head `head` reads."""
        return head // self.group_size

    def with_changes(self, **changes: object) -> AttentionSpec:
        """A copy with some fields replaced, checked again."""
        return replace(self, **changes)  # type: ignore[arg-type]


def _check(name: str, value: str | None, known: tuple[str | None, ...]) -> None:
    if value not in known:
        raise UsageError(f"{name} is {value!r}: choose from {', '.join(map(str, known))}.")
