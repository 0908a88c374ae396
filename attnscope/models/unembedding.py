"""From hidden states to logits, through the network's own modules: its scaling, its softcap.

The network is called with a body that only hands over the hidden states, so that nothing of what
each architecture does with its logits is written here a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.errors import CheckpointError

SLICE_NUMBERS = 2**24  # so many logits exist at once (64 MiB)
_CLOSE = 1e-3  # of the greatest logit: how far two ways to the same logits may be apart


@dataclass(frozen=True)
class Unembedding:
    """A network's language-model head. `body` is what the network calls for its hidden states."""

    network: nn.Module
    body: nn.Module
    output: type[Any]  # of the body
    n_tokens: int  # of the vocabulary, as the logits have them

    @classmethod
    def find(cls, network: nn.Module, ids: Tensor) -> Unembedding:
        """Find the body, and prove over ids (1, T) that a call around it gives the same logits.

        Raises CheckpointError where it does not.
        """
        device = next(network.parameters()).device
        heard: list[tuple[nn.Module, Any]] = []
        hooks = [
            body.register_forward_hook(lambda module, _, output: heard.append((module, output)))
            for body in bodies(network)
        ]
        try:
            with torch.inference_mode():
                whole: Tensor = network(input_ids=ids.to(device)).logits[0].float()
        finally:
            for hook in hooks:
                hook.remove()
        if not heard:
            raise CheckpointError("Its logits cannot be computed apart from its hidden states.")
        body, output = heard[-1]  # the outermost returns last
        found = cls(network, body, type(output), int(whole.shape[-1]))
        apart = (found(output.last_hidden_state[0]) - whole.to(device)).abs().max()
        if not float(apart) <= _CLOSE * max(1.0, float(whole.abs().max())):
            raise CheckpointError(
                f"Its logits differ by {float(apart):.1e} when they are computed in slices."
            )
        return found

    @property
    def rows(self) -> int:
        """How many positions a slice has."""
        return max(1, SLICE_NUMBERS // self.n_tokens)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Hidden states (N, C) to logits (N, V), float32. N should be no more than `rows`."""
        ids = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
        given = self.output(last_hidden_state=hidden[None])
        with torch.inference_mode(), _answering(self.body, lambda *_, **__: given):
            logits: Tensor = self.network(input_ids=ids).logits
        return logits[0].float()

    def matrix(self) -> Tensor:
        """W_U, (V, C): a token's logit is its row times the hidden state, before any softcap."""
        network: Any = self.network
        weight: Tensor = network.get_output_embeddings().weight
        return weight

    def scale(self) -> float | None:
        """What the network multiplies its logits by; measured where no softcap bends them.

        None where logits are not W_U times the hidden state (BERT's head transforms it first).
        """
        weight = self.matrix()
        small = 1e-3 * torch.ones(1, weight.shape[1], dtype=weight.dtype)
        small = small.to(next(self.network.parameters()).device)
        apart = self(small) - self(torch.zeros_like(small))  # (1, V): without biases
        plain = (small.to(weight.device) @ weight.T).float().to(apart.device)
        scale = float((apart * plain).sum() / plain.square().sum().clamp(min=1e-30))
        left = float((apart - scale * plain).norm() / apart.norm().clamp(min=1e-30))
        return scale if left < 0.02 else None


def bodies(network: nn.Module) -> list[nn.Module]:
    """The modules that a language model may call for its hidden states."""
    whole: Any = network
    return list(dict.fromkeys([whole.base_model, whole.get_decoder()]))


@contextmanager
def _answering(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Within it, the module answers every call so."""
    before = vars(module).get("forward")  # accelerate puts one there
    vars(module)["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            del vars(module)["forward"]
        else:
            vars(module)["forward"] = before
