"""Rotary angles that depend on how long the text is: kept from depending on what was read before.

transformers' rotary modules stretch their frequencies for a long text (dynamic scaling, longrope)
and keep them stretched. A score must not depend on the text before it.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn


def forget_lengths(network: nn.Module) -> None:
    """Put every rotary module back to where a newly loaded one starts."""
    for module in _stretching(network):
        buffers = dict(module.named_buffers(recurse=False))
        for name, original in [*buffers.items(), *vars(module).items()]:
            if name.endswith("original_inv_freq") and isinstance(original, Tensor):
                prefix = name.removesuffix("original_inv_freq")
                now: Tensor = getattr(module, f"{prefix}inv_freq")
                setattr(module, f"{prefix}inv_freq", original.to(now.device))
                setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)


def depend_on_length(network: nn.Module) -> bool:
    """Do the angles of a text depend on the longest text in its batch?"""
    return any(True for _ in _stretching(network))


def _stretching(network: nn.Module) -> Iterator[nn.Module]:
    for module in network.modules():
        kinds = getattr(module, "rope_type", None)
        named = kinds.values() if isinstance(kinds, dict) else [kinds]
        if any("dynamic" in str(kind) or kind == "longrope" for kind in named):
            yield module
