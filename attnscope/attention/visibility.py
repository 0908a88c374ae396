"""Visibility: which keys a query may see. Never a (T, T) tensor unless a block is that large."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


def in_reach(query: Tensor, key: Tensor, causal: bool, window: int | None) -> Tensor:
    """Elementwise: would `query` see `key`, were both tokens? Positions may be of any size."""
    seen = key <= query if causal else torch.ones_like(key <= query)
    return seen if window is None else seen & ((query - key).abs() < window)


@dataclass(frozen=True)
class Visibility:
    """Key j is visible to query i when it is a token, not later if causal, and nearer than window.

    valid is (B, T) bool, False on padding; a window of W is W keys, the query itself included.
    """

    valid: Tensor
    causal: bool
    window: int | None = None

    @property
    def n_keys(self) -> int:
        """Keys, padding included."""
        return int(self.valid.shape[1])

    def on(self, device: torch.device) -> Visibility:
        """The same on another device; itself where it is there already."""
        if self.valid.device == device:
            return self
        return Visibility(self.valid.to(device), self.causal, self.window)

    @cached_property
    def padded(self) -> bool:
        """Is there padding in any text?"""
        return not bool(self.valid.all())

    def key_range(self, start: int, stop: int) -> tuple[int, int]:
        """The keys [low, high) outside which queries [start, stop) see nothing."""
        low = 0 if self.window is None else max(0, start - self.window + 1)
        if self.causal:
            return low, stop
        high = self.n_keys if self.window is None else min(self.n_keys, stop + self.window - 1)
        return low, high

    def block(self, start: int, stop: int) -> Tensor | None:
        """Which keys of `key_range(start, stop)` queries [start, stop) see, (B or 1, t, S) bool.

        None when every query sees every key.
        """
        low, high = self.key_range(start, stop)
        if not (self.causal or self.window is not None or self.padded):
            return None
        device = self.valid.device
        query = torch.arange(start, stop, device=device)[:, None]  # (t, 1)
        key = torch.arange(low, high, device=device)[None, :]  # (1, S)
        seen: Tensor | None = None
        if self.causal:
            seen = (key <= query)[None]  # (1, t, S)
        if self.window is not None:
            near = ((query - key).abs() < self.window)[None]  # (1, t, S)
            seen = near if seen is None else seen & near
        if self.padded:
            real = self.valid[:, None, low:high]  # (B, 1, S)
            seen = real.expand(-1, stop - start, -1) if seen is None else seen & real
        return seen

    def sees(self, batch: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Elementwise: is `key` visible to `query` in text `batch`? Indices outside are not."""
        inside = (key >= 0) & (key < self.n_keys)
        seen = inside & self.valid[batch, key.clamp(0, self.n_keys - 1)]
        return seen & in_reach(query, key, self.causal, self.window)

    def count(self, marked: Tensor | None = None) -> Tensor:
        """How many (marked) keys each query sees, (B, T) int64. `marked` is (B, T) bool."""
        return self._visible if marked is None else self._count(self.valid & marked)

    @cached_property
    def _visible(self) -> Tensor:
        return self._count(self.valid)

    def _count(self, keys: Tensor) -> Tensor:
        total = torch.nn.functional.pad(keys.long().cumsum(1), (1, 0))  # (B, T + 1)
        n_keys = self.n_keys
        query = torch.arange(n_keys, device=keys.device)
        low = torch.zeros_like(query)
        high = query + 1 if self.causal else torch.full_like(query, n_keys)
        if self.window is not None:
            low = (query - self.window + 1).clamp(min=0)
            if not self.causal:
                high = (query + self.window).clamp(max=n_keys)
        return total[:, high] - total[:, low]
