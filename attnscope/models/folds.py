"""Fold: what a norm does to features apart from dividing by their size, so that it is linear.

A norm is g · (x - mean) / size(x) + b or g · x / size(x) + b. The division is by one number for
each token: it changes no ratio. The bias is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LOUD = 64.0  # so that a norm's epsilon does not count
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Fold:
    """`gain` times the features, of which the mean is taken off before where it is `centred`.

    `gain` has the shape of the features, (C,), or (H, D) where each head has its own.
    """

    gain: Tensor
    centred: bool

    def __call__(self, features: Tensor) -> Tensor:
        """features (..., C) to the same shape."""
        if self.centred:
            features = features - features.mean(-1, keepdim=True)
        return features * self.gain.to(features)

    def into(self, weight: Tensor) -> Tensor:
        """weight (..., C) that takes what the norm gives, made to take what the norm is given."""
        weight = weight * self.gain.to(weight)
        return weight - weight.mean(-1, keepdim=True) if self.centred else weight


def find_fold(
    module: Callable[[Tensor], Tensor], shape: Sequence[int], like: Tensor
) -> Fold | None:
    """The fold of a norm of features (..., *shape), over the last axis; None if it is no norm.

    The module is asked what it makes of some features, of larger ones, and of others whose mean is
    not zero. `like` has the number format and the place that it takes.
    """
    width = shape[-1]
    probe = torch.linspace(1, 2, width, dtype=torch.float64)
    probe[1::2] *= -1
    probe -= probe.mean()
    if width < 2:
        return None

    def heard(features: Tensor) -> Tensor | None:
        """What it gives, without its bias."""
        asked = features.expand(1, 1, *shape).to(like).contiguous()
        given = module(asked) - module(-asked)
        return given[0, 0].cpu().double() / 2 if given.shape == asked.shape else None

    once, twice = heard(LOUD * probe), heard(2 * LOUD * probe)
    if once is None or twice is None or not _near(once, twice) or not bool(once.any()):
        return None
    gain = once * probe.square().mean().sqrt() / probe
    other = 1 + torch.randn(width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    answer = heard(LOUD * other)
    for centred in (True, False):
        size = (other - other.mean() if centred else other).square().mean().sqrt()
        fold = Fold(gain, centred)
        if answer is not None and _near(fold(other.expand(gain.shape)) / size, answer):
            return fold
    return None


def _near(ours: Tensor, theirs: Tensor) -> bool:
    return bool((ours - theirs).abs().max() <= TOLERANCE * theirs.abs().max())
