"""Rotary position embedding (Su et al. 2021): turning pairs of query and key features by position.

The angles come from the checkpoint's own rotary module, which knows every way to stretch them;
applying them is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rotation:
    """cos and sin of the angles, (B or 1, T, D): feature d turns with feature d + D/2."""

    cos: Tensor
    sin: Tensor


def rotate(features: Tensor, rotation: Rotation) -> Tensor:
    """Turn features (B, H, T, D) by their positions, paired in halves as Llama checkpoints do."""
    cos = rotation.cos.unsqueeze(1)  # (B, 1, T, D)
    sin = rotation.sin.unsqueeze(1)  # (B, 1, T, D)
    first, second = features.chunk(2, dim=-1)  # 2 × (B, H, T, D/2)
    turned = torch.cat((-second, first), dim=-1)  # (B, H, T, D)
    return features * cos + turned * sin
