"""Two ways to compute the same attention: `dense` all rows at once, `blocked` a few rows at a time.

Both show the rows of weights to whoever asks, and keep none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attnscope.attention.spec import AttentionSpec
from attnscope.attention.visibility import Visibility


@dataclass(frozen=True)
class Block:
    """Some rows of a layer's attention: queries [start, stop) over keys [low, low + S).

    weights is (B, H, t, S) float32, the softmax of scores; keys outside the block have weight 0.
    Where the layer has a learned sink, rows sum to 1 - sink, (B, H, t).
    """

    layer: int
    start: int
    low: int
    weights: Tensor
    scores: Tensor
    sink: Tensor | None = None

    @property
    def stop(self) -> int:
        """One past the last query."""
        return self.start + int(self.weights.shape[2])

    @property
    def high(self) -> int:
        """One past the last key."""
        return self.low + int(self.weights.shape[3])

    @cached_property
    def entropy(self) -> Tensor:
        """Entropy of each row in nats, (B, H, t): -Σ w·ln w over the keys, without the sink."""
        # -Σ w·ln w with ln w = (score - top) + ln(greatest weight): one logarithm a row, not one
        # for every weight. From the top, because scores may share a large offset.
        below = self.scores - self.scores.amax(-1, keepdim=True)  # (B, H, t, S)
        mean_below = torch.einsum("bhts,bhts->bht", self.weights, below)  # (B, H, t)
        greatest = self.weights.amax(-1).clamp(min=torch.finfo(self.weights.dtype).tiny).log()
        return -self.total(greatest) - mean_below

    def total(self, each: Tensor) -> Tensor:
        """What the row's weights sum to, times `each` (B, H, t)."""
        return each if self.sink is None else each * (1 - self.sink)


# (first query, first key, weights and scores (B, G, R, t, S), the sink's share (B, G, R, t))
Show = Callable[[int, int, Tensor, Tensor, Tensor | None], None]


def attention_scores(
    query: Tensor, key: Tensor, spec: AttentionSpec, visible: Tensor | None
) -> Tensor:
    """query · key * scale, capped, with the lowest number where a key is not visible.

    query (B, G, R, t, D) holds the R query heads of each key/value head side by side, so that one
    product with key (B, G, S, D) serves them all and no key is copied. visible (B or 1, t, S).
    """
    batch, groups, shared, rows, width = query.shape
    stacked = query.reshape(batch, groups, shared * rows, width) * spec.scaling  # (B, G, R·t, D)
    scores = stacked @ key.mT  # (B, G, R·t, S)
    scores = scores.view(batch, groups, shared, rows, -1)  # (B, G, R, t, S)
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    if visible is not None:
        # The lowest finite number, not -inf: a padded row that sees nothing must not become NaN.
        scores.masked_fill_(~visible[:, None, None], torch.finfo(scores.dtype).min)
    return scores


def sink_softmax(scores: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """softmax of scores (B, G, R, t, S), and the share that a learned sink (G, R) takes from it."""
    weights = torch.softmax(scores, dim=-1)  # (B, G, R, t, S)
    if sink is None:
        return weights, None
    # The sink is one more term of the row's sum, so every weight shrinks by the same factor.
    above = torch.logsumexp(scores, dim=-1) - sink.float()[None, :, :, None]  # (B, G, R, t)
    return weights * torch.sigmoid(above)[..., None], torch.sigmoid(-above)


def mix_values(weights: Tensor, value: Tensor) -> Tensor:
    """weights · value: (B, G, R, t, S) and (B, G, S, D) to (B, G, R, t, D)."""
    batch, groups, shared, rows, keys = weights.shape
    stacked = weights.view(batch, groups, shared * rows, keys)  # (B, G, R·t, S)
    return (stacked @ value).view(batch, groups, shared, rows, -1)  # (B, G, R, t, D)


def blocked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    spec: AttentionSpec,
    visibility: Visibility,
    show: Show,
    rows: int,
    sink: Tensor | None = None,
) -> Tensor:
    """Attention `rows` queries at a time, in O(rows · S) memory.

    query (B, G, R, T, D), key and value (B, G, S, D), sink (G, R): a learned score
    beside the keys'. Returns heads (B, G, R, T, D) in float32.
    """
    query, key, value = query.float(), key.float().contiguous(), value.float().contiguous()
    total = query.shape[3]
    heads = []
    for start in range(0, total, rows):
        stop = min(start + rows, total)
        low, high = visibility.key_range(start, stop)
        visible = visibility.block(start, stop)
        scores = attention_scores(query[..., start:stop, :], key[:, :, low:high], spec, visible)
        weights, share = sink_softmax(scores, sink)  # (B, G, R, t, S), (B, G, R, t)
        show(start, low, weights, scores, share)
        heads.append(mix_values(weights, value[:, :, low:high]))
    return torch.cat(heads, dim=3)  # (B, G, R, T, D)


def dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    spec: AttentionSpec,
    visibility: Visibility,
    show: Show,
    sink: Tensor | None = None,
) -> Tensor:
    """Attention of every row at once: one block. Arguments and result as in `blocked`."""
    return blocked(query, key, value, spec, visibility, show, query.shape[3], sink)
