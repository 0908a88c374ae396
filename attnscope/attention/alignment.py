"""Alignment: the one key or value head that stands best for several, each in its own coordinates.

Heads may hold the same in other coordinates, so each may be turned before they are pooled, if
its query and output heads are turned along. A key head g may go through any matrix, k_g = A_g·k, if
its queries go through the transposed one, q·(A_g·k) = (A_gᵀ·q)·k, and a value head through any
other, if W_O makes up for it. One condition: between W_K and the scores stands the rotary
embedding, and A_g must commute with it at every position. What commutes with turning a pair of
features by every angle is turning and stretching that pair: multiplying it, read as a complex
number, by a constant. So keys get one complex number for each pair; features that do not turn, and
values, get a full matrix. Where keys are normed behind W_K nothing but a change of sign commutes
with the weights of the norm, and keys are not aligned at all.

The shared head and the A_g are those that leave the least squared error Σ |k_g - A_g·k|² over the
keys (values) that the layer computed for some text: by Eckart and Young (1936) the leading
eigenvectors of the heads' second moments. Orthogonal Procrustes is the case in which every A_g is
a rotation; it can only leave more. Where heads are each other's images under such maps nothing is
left, and the pooled layer computes the same attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.attention.spec import AttentionSpec


@dataclass(frozen=True)
class Moments:
    """Second moments of a layer's keys and of its values over some tokens, (G·D, G·D) float64.

    Of keys after the rotary embedding: what is read off them is the same before it.
    """

    key: Tensor
    value: Tensor


@dataclass(frozen=True)
class Features:
    """Features of a head that may be mixed: each of the pairs (P, 2) in itself, all `free` (U,)."""

    pairs: Tensor
    free: Tensor

    @property
    def width(self) -> int:
        """Width of a head, D."""
        return self.pairs.numel() + self.free.numel()


def key_features(spec: AttentionSpec) -> Features:
    """Those of a key head: what the rotary embedding turns stays in its pairs."""
    turned = spec.turned_width if spec.rotary else 0
    if spec.rotary_pairs == "halves":
        first = torch.arange(turned // 2)
        second = first + turned // 2
    else:
        first = torch.arange(0, turned, 2)
        second = first + 1
    return Features(torch.stack((first, second), -1), torch.arange(turned, spec.head_width))


def value_features(spec: AttentionSpec) -> Features:
    """Those of a value head: all of them."""
    return Features(torch.zeros(0, 2, dtype=torch.long), torch.arange(spec.head_width))


@dataclass(frozen=True)
class CommonHead:
    """maps (n, D, D): A_g of each source; back (n, D, D): the head is Σ backᵀ · W_g."""

    maps: Tensor
    back: Tensor


def common_head(features: Features, moment: Tensor, counts: Mapping[int, int]) -> CommonHead:
    """The head that the sources in `counts` share best; each counts as often as it says.

    moment is (G·D, G·D), of all heads.
    """
    seen, often = _weighted(features.width, moment, counts)
    vectors = torch.zeros(len(counts), features.width, features.width, dtype=torch.float64)
    if len(at := features.free):
        _, found = torch.linalg.eigh(_free(seen, at))
        vectors[:, at[:, None], at] = found[:, -len(at) :].view(len(counts), len(at), len(at))
    if len(features.pairs):
        x, y = features.pairs.unbind(-1)
        turn = torch.linalg.eigh(_complex(seen, features.pairs))[1][..., -1].T  # (n, P)
        vectors[:, x, x] = vectors[:, y, y] = turn.real
        vectors[:, y, x], vectors[:, x, y] = turn.imag, -turn.imag
    return CommonHead(vectors / often, vectors * often)


def lost_share(features: Features, moment: Tensor, counts: Mapping[int, int]) -> float:
    """The share of the sources' squared size that the head they share best leaves, 0 to 1."""
    seen, _ = _weighted(features.width, moment, counts)
    kept = 0.0
    if len(at := features.free):
        kept += float(torch.linalg.eigvalsh(_free(seen, at))[-len(at) :].sum())
    if len(features.pairs):
        kept += float(torch.linalg.eigvalsh(_complex(seen, features.pairs))[..., -1].sum())
    total = float(torch.einsum("ndnd->", seen))
    return min(max(1 - kept / total, 0.0), 1.0) if total > 0 else 0.0


def _weighted(width: int, moment: Tensor, counts: Mapping[int, int]) -> tuple[Tensor, Tensor]:
    """Second moments of the sources (n, D, n, D), each times its root of counts (n, 1, 1)."""
    chosen, n_all = list(counts), moment.shape[0] // width
    often = torch.tensor([float(counts[head]) for head in chosen], dtype=torch.float64).sqrt()
    seen = moment.view(n_all, width, n_all, width)[chosen][:, :, chosen]  # (n, D, n, D)
    return seen * (often[:, None, None, None] * often[:, None]), often[:, None, None]


def _free(seen: Tensor, at: Tensor) -> Tensor:
    size = seen.shape[0] * len(at)
    return seen[:, at][..., at].reshape(size, size)  # (n·U, n·U)


def _complex(seen: Tensor, pairs: Tensor) -> Tensor:
    """Moments of pairs read as complex numbers, E[z·z̄'], (P, n, n)."""
    x, y = pairs.unbind(-1)
    same = seen[:, x, :, x] + seen[:, y, :, y]  # (P, n, n)
    return torch.complex(same, seen[:, y, :, x] - seen[:, x, :, y])
