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
    """cos and sin of the angles, (B or 1, T, W), one column per turned feature.

    W may be less than a head is wide: its other features stay as they are.
    """

    cos: Tensor
    sin: Tensor


def rotate(features: Tensor, rotation: Rotation, pairs: str = "halves") -> Tensor:
    """Turn the first W features of (B, H, T, D) by their positions.

    In "halves" feature d turns with d + W/2 (Llama), in "neighbours" 2d with 2d + 1 (GPT-J).
    """
    width = rotation.cos.shape[-1]
    cos = rotation.cos.unsqueeze(1)  # (B, 1, T, W)
    sin = rotation.sin.unsqueeze(1)  # (B, 1, T, W)
    turning, still = features[..., :width], features[..., width:]  # (B, H, T, W), (B, H, T, D - W)
    turned = turning * cos + quarter_turn(turning, pairs) * sin  # (B, H, T, W)
    return torch.cat((turned, still), dim=-1) if still.shape[-1] else turned


def quarter_turn(features: Tensor, pairs: str) -> Tensor:
    """Each pair (a, b) to (-b, a)."""
    if pairs == "neighbours":
        first, second = features[..., ::2], features[..., 1::2]  # 2 × (B, H, T, W/2)
        return torch.stack((-second, first), dim=-1).flatten(-2)  # (B, H, T, W)
    first, second = features.chunk(2, dim=-1)  # 2 × (B, H, T, W/2)
    return torch.cat((-second, first), dim=-1)  # (B, H, T, W)


def per_feature(angles: Tensor, pairs: str) -> Tensor:
    """One column per pair (B, T, W/2) to one per feature (B, T, W)."""
    if pairs == "neighbours":
        return angles.repeat_interleave(2, dim=-1)
    return torch.cat((angles, angles), dim=-1)
