"""The load-time proof: one text through transformers' own eager attention and through ours.

A wrong layout gives plausible nonsense, so every load ends here. The two runs share one set of
weights: the witness is heard first, then our attention takes the layers' places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnscope.attention.cores import Block
from attnscope.attention.lens import Lens
from attnscope.models.layouts import Stored
from attnscope.models.seam import Pass, Seat, attention_named

PROOF_TOKENS = 24
TOLERANCE = {torch.float32: 5e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}


@dataclass(frozen=True)
class LayerParity:
    """The largest absolute differences in one layer."""

    layer: int
    max_abs_attention: float
    max_abs_output: float


@dataclass(frozen=True)
class Parity:
    """How far our forward is from transformers' own, by the largest absolute differences."""

    layers: tuple[LayerParity, ...]
    n_tokens: int
    max_abs_hidden: float
    hidden_scale: float  # the largest absolute value in the final hidden state
    tolerance: float
    max_abs_logits: float | None = None

    @property
    def max_abs_attention(self) -> float:
        """Over all layers."""
        return max(layer.max_abs_attention for layer in self.layers)

    @property
    def failure(self) -> str | None:
        """What is beyond tolerance, in words; None when nothing is.

        Attention lies in [0, 1] and is held to the tolerance itself, a hidden state to the
        tolerance times its own scale.
        """
        for layer in self.layers:
            if not layer.max_abs_attention <= self.tolerance:
                return f"attention of layer {layer.layer} differs by {layer.max_abs_attention:.1e}"
        if not self.max_abs_hidden <= self.tolerance * max(1.0, self.hidden_scale):
            return f"the final hidden state differs by {self.max_abs_hidden:.1e}"
        return None

    def to_json(self) -> dict[str, float]:
        """The two figures that every document carries."""
        return {
            "max_abs_attention": self.max_abs_attention,
            "max_abs_hidden": self.max_abs_hidden,
        }


@dataclass(frozen=True)
class Testimony:
    """What one forward pass computed: weights (H, T, T) and output (T, C) a layer, last state."""

    weights: list[Tensor]
    outputs: list[Tensor]
    hidden: Tensor
    logits: Tensor | None


Run = Callable[[Tensor], tuple[Tensor, Tensor | None]]  # ids (1, T) to hidden state and logits


def hear_transformers(network: nn.Module, stored: list[Stored], ids: Tensor, run: Run) -> Testimony:
    """Run transformers' own eager attention over ids (1, T). Only before ours takes its place."""
    weights: dict[int, Tensor] = {}
    outputs: dict[int, Tensor] = {}

    def keep_weights(layer: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: object, result: tuple[Tensor, Tensor]) -> None:
            weights[layer] = result[1][0].float()  # (H, T, T)

        return hook

    hooks = []
    for layer, place in enumerate(stored):
        hooks.append(place.module.register_forward_hook(keep_weights(layer)))
        hooks.append(place.mixer.register_forward_hook(_keep_output(outputs, layer)))
    try:
        with attention_named(network, "eager"), torch.inference_mode():
            hidden, logits = run(ids)
    finally:
        for hook in hooks:
            hook.remove()
    layers = range(len(stored))
    return Testimony([weights[i] for i in layers], [outputs[i] for i in layers], hidden, logits)


def hear_ours(seats: list[Seat], running: Pass, ids: Tensor, run: Run) -> Testimony:
    """The same through our attention."""
    n_tokens = ids.shape[1]
    weights: dict[int, Tensor] = {}
    outputs: dict[int, Tensor] = {}

    def keep(block: Block) -> None:
        if block.layer not in weights:
            n_heads = block.weights.shape[1]
            weights[block.layer] = block.weights.new_zeros(n_heads, n_tokens, n_tokens)
        rows, keys = slice(block.start, block.stop), slice(block.low, block.high)
        weights[block.layer][:, rows, keys] = block.weights[0]

    hooks = [
        seat.attention.W_O.register_forward_hook(_keep_output(outputs, layer))
        for layer, seat in enumerate(seats)
    ]
    running.valid, running.lens = None, Lens(observers=(keep,))
    try:
        with torch.inference_mode():
            hidden, logits = run(ids)
    finally:
        running.lens = None
        for hook in hooks:
            hook.remove()
    layers = range(len(seats))
    return Testimony([weights[i] for i in layers], [outputs[i] for i in layers], hidden, logits)


def compare(theirs: Testimony, ours: Testimony, tolerance: float) -> Parity:
    """The largest absolute differences, layer by layer."""
    layers = tuple(
        LayerParity(layer, _apart(*weights), _apart(*outputs))
        for layer, (weights, outputs) in enumerate(
            zip(
                zip(theirs.weights, ours.weights, strict=True),
                zip(theirs.outputs, ours.outputs, strict=True),
                strict=True,
            )
        )
    )
    return Parity(
        layers=layers,
        n_tokens=int(theirs.hidden.shape[1]),
        max_abs_hidden=_apart(theirs.hidden, ours.hidden),
        hidden_scale=float(theirs.hidden.float().abs().max()),
        tolerance=tolerance,
        max_abs_logits=(
            None
            if theirs.logits is None or ours.logits is None
            else _apart(theirs.logits, ours.logits)
        ),
    )


def proof_ids(vocab_size: int, length: int = PROOF_TOKENS, seed: int = 0) -> Tensor:
    """Token ids (1, T) from the whole vocabulary, the same ones every time."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab_size, (1, length), generator=generator)


def _keep_output(outputs: dict[int, Tensor], layer: int) -> Callable[..., None]:
    def hook(module: nn.Module, args: object, result: Tensor) -> None:
        outputs[layer] = result[0].float()  # (T, C)

    return hook


def _apart(first: Tensor, second: Tensor) -> float:
    return float((first.float() - second.float()).abs().max())
