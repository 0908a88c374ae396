"""Folds: what a norm does apart from its division, asked of the norm itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attnscope.models.folds import Fold, find_fold


class OnePlus(nn.Module):
    """Gemma's norm: root mean square, times 1 + weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        size = (x.float().square().mean(-1, keepdim=True) + 1e-6).sqrt()
        return (x.float() / size * (1 + self.weight.float())).type_as(x)


def _noisy(module: nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator))
    return module.requires_grad_(False)


@pytest.mark.parametrize("width", [2, 3, 7, 32, 577])
def test_norms(width: int) -> None:
    like = torch.zeros(())
    layer = _noisy(nn.LayerNorm(width))
    root = _noisy(nn.RMSNorm(width, eps=1e-5))
    plus = _noisy(OnePlus(width))
    for module, gain, centred in (
        (layer, layer.weight, True),
        (root, root.weight, False),
        (plus, 1 + plus.weight, False),
        (nn.LayerNorm(width, elementwise_affine=False), torch.ones(width), True),
    ):
        fold = find_fold(module, (width,), like)
        assert fold is not None
        assert fold.gain == pytest.approx(gain.double(), rel=1e-5, abs=1e-6)
        if width > 2:  # of two numbers, the mean and one of them tell the other
            assert fold.centred is centred


def test_a_fold_is_the_norm_up_to_a_factor() -> None:
    norm, features = _noisy(nn.LayerNorm(16)), torch.randn(5, 16)
    fold = find_fold(norm, (16,), features)
    assert fold is not None
    size = features.std(-1, unbiased=False, keepdim=True)
    assert torch.allclose(fold(features) / size + norm.bias, norm(features), atol=1e-4)
    weight = torch.randn(3, 16)
    assert torch.allclose(fold.into(weight) @ features.T, weight @ fold(features).T, atol=1e-4)


def test_a_gain_for_each_head() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 8))

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.layer_norm(x, (8,)) * self.weight

    module = Heads().requires_grad_(False)
    fold = find_fold(module, (3, 8), torch.zeros(()))
    assert fold is not None
    assert fold.centred
    assert torch.allclose(fold.gain.float(), module.weight, atol=1e-4)


@pytest.mark.parametrize(
    "module",
    [nn.Identity(), nn.GELU(), nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.0), nn.Softmax(-1),
     nn.Linear(8, 4), nn.Hardtanh()],
)  # fmt: skip
def test_what_is_no_norm(module: nn.Module) -> None:
    assert find_fold(module.requires_grad_(False), (8,), torch.zeros(())) is None


def test_one_number_has_no_mean_to_take_off() -> None:
    assert find_fold(nn.LayerNorm(1), (1,), torch.zeros(())) is None
    assert Fold(torch.ones(2), True)(torch.tensor([3.0, 5.0])).tolist() == [-1.0, 1.0]
