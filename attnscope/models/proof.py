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
    """The largest absolute differences in one layer, and how much of it rounding explains.

    `tolerance` for attention is the base plus half a rounding step of the layer's largest score:
    eager attention in half precision rounds its scores so, and a weight moves by half of that.
    """

    layer: int
    max_abs_attention: float
    max_abs_output: float
    tolerance: float


@dataclass(frozen=True)
class Parity:
    """How far our forward is from transformers' own, by the largest absolute differences."""

    layers: tuple[LayerParity, ...]
    n_tokens: int
    max_abs_hidden: float
    hidden_scale: float  # the largest absolute value in the final hidden state
    tolerance: float
    eps: float  # relative rounding step of the weights' number format
    max_abs_logits: float | None = None

    @property
    def max_abs_attention(self) -> float:
        """Over all layers."""
        return max(layer.max_abs_attention for layer in self.layers)

    @property
    def failure(self) -> str | None:
        """What is beyond tolerance, in words; None when nothing is.

        A hidden state is held to its own scale, with room for rounding that later layers amplify.
        """
        for layer in self.layers:
            if not layer.max_abs_attention <= layer.tolerance:
                return f"attention of layer {layer.layer} differs by {layer.max_abs_attention:.1e}"
        share = self.tolerance + 8 * self.eps * len(self.layers) ** 0.5
        if not self.max_abs_hidden <= share * max(1.0, self.hidden_scale):
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
    """What one forward pass computed: in each layer what went in (1, T, C), the weights (H, T, T)
    and what came out (T, C); and the last hidden state."""

    inputs: list[Tensor]
    weights: list[Tensor]
    outputs: list[Tensor]
    hidden: Tensor
    logits: Tensor | None
    largest_scores: list[float] | None = None  # known of ours alone


Run = Callable[[Tensor], tuple[Tensor, Tensor | None]]  # ids (1, T) to hidden state and logits


def hear_transformers(network: nn.Module, stored: list[Stored], ids: Tensor, run: Run) -> Testimony:
    """Run transformers' own eager attention over ids (1, T). Only before ours takes its place."""
    inputs: dict[int, Tensor] = {}
    weights: dict[int, Tensor] = {}
    outputs: dict[int, Tensor] = {}

    def keep_weights(layer: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: object, result: tuple[Tensor, Tensor]) -> None:
            weights[layer] = result[1][0].float()  # (H, T, T)

        return hook

    hooks = []
    for layer, place in enumerate(stored):
        entering = _keep_input(inputs, layer)
        hooks.append(place.module.register_forward_pre_hook(entering, with_kwargs=True))
        hooks.append(place.module.register_forward_hook(keep_weights(layer)))
        hooks.append(place.mixer.register_forward_hook(_keep_output(outputs, layer)))
    try:
        with attention_named(network, "eager"), torch.inference_mode():
            hidden, logits = run(ids)
    finally:
        for hook in hooks:
            hook.remove()
    return Testimony(_listed(inputs), _listed(weights), _listed(outputs), hidden, logits)


def hear_ours(
    seats: list[Seat],
    running: Pass,
    ids: Tensor,
    run: Run,
    given: list[Tensor] | None = None,
) -> Testimony:
    """The same through our attention; each layer from the input it is `given`, if any is."""
    n_tokens = ids.shape[1]
    weights: dict[int, Tensor] = {}
    outputs: dict[int, Tensor] = {}
    largest = [0.0] * len(seats)

    def keep(block: Block) -> None:
        seen = block.scores.masked_fill(block.scores <= torch.finfo(torch.float32).min, 0)
        largest[block.layer] = max(largest[block.layer], float(seen.abs().max()))
        if block.layer not in weights:
            n_heads = block.weights.shape[1]
            weights[block.layer] = block.weights.new_zeros(n_heads, n_tokens, n_tokens)
        rows, keys = slice(block.start, block.stop), slice(block.low, block.high)
        weights[block.layer][:, rows, keys] = block.weights[0]

    hooks = [
        seat.attention.W_O.register_forward_hook(_keep_output(outputs, layer))
        for layer, seat in enumerate(seats)
    ]
    for seat, hidden_states in zip(seats, given or [], strict=False):
        enter = _replace_input(hidden_states)
        hooks.append(seat.register_forward_pre_hook(enter, with_kwargs=True))
    running.valid, running.lens = None, Lens(observers=(keep,))
    try:
        with torch.inference_mode():
            hidden, logits = run(ids)
    finally:
        running.lens = None
        for hook in hooks:
            hook.remove()
    return Testimony(given or [], _listed(weights), _listed(outputs), hidden, logits, largest)


def prove(theirs: Testimony, seats: list[Seat], running: Pass, ids: Tensor, run: Run) -> Parity:
    """Run ours over the same ids and measure how far it is, layer by layer and at the end.

    In half precision each layer is compared from the input it had in transformers' own run: what
    rounding does to a layer is known, what later layers make of it is not.
    """
    dtype = theirs.hidden.dtype
    ours = hear_ours(seats, running, ids, run)
    layerwise = ours
    if dtype != torch.float32:
        layerwise = hear_ours(seats, running, ids, run, given=theirs.inputs)
    return compare(theirs, ours, layerwise, dtype)


def compare(theirs: Testimony, ours: Testimony, layerwise: Testimony, dtype: torch.dtype) -> Parity:
    """The largest absolute differences for weights of this number format."""
    tolerance, eps = TOLERANCE[dtype], torch.finfo(dtype).eps
    scores = layerwise.largest_scores or []
    layers = tuple(
        LayerParity(
            layer,
            _apart(theirs.weights[layer], layerwise.weights[layer]),
            _apart(theirs.outputs[layer], layerwise.outputs[layer]),
            tolerance + eps / 2 * scores[layer],
        )
        for layer in range(len(ours.weights))
    )
    return Parity(
        layers=layers,
        n_tokens=int(theirs.hidden.shape[1]),
        max_abs_hidden=_apart(theirs.hidden, ours.hidden),
        hidden_scale=float(theirs.hidden.float().abs().max()),
        tolerance=tolerance,
        eps=eps,
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


def _listed(by_layer: dict[int, Tensor]) -> list[Tensor]:
    return [by_layer[layer] for layer in range(len(by_layer))]


def _keep_input(inputs: dict[int, Tensor], layer: int) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        inputs[layer] = args[0] if args else kwargs["hidden_states"]  # (1, T, C)

    return hook


def _replace_input(hidden_states: Tensor) -> Callable[..., object]:
    def hook(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> object:
        if args:
            return (hidden_states, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": hidden_states}

    return hook


def _keep_output(outputs: dict[int, Tensor], layer: int) -> Callable[..., None]:
    def hook(module: nn.Module, args: object, result: Tensor) -> None:
        outputs[layer] = result[0].float()  # (T, C)

    return hook


def _apart(first: Tensor, second: Tensor) -> float:
    return float((first.float() - second.float()).abs().max())
