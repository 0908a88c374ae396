"""decoding: the time of one decode step of our own attention, with many key/value heads and few.

One layer, random weights: a new token is projected, its key and value are written into a cache that
is full otherwise, and its query heads attend to all of it. Rounds are paired: every variant takes
its step in each, so that a machine that slows down slows all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.attention.cores import attention_scores, mix_values, sink_softmax
from attnscope.attention.multihead import MultiHeadAttention
from attnscope.attention.rotary import Rotation
from attnscope.attention.spec import AttentionSpec
from attnscope.experiments.measured_result import DecodeTime
from attnscope.experiments.memory import seen_tokens
from attnscope.experiments.room import check_room
from attnscope.types import Progress, no_progress

CONTEXTS = (1024, 4096, 16384)
ROUNDS = 25
WARM_UP = 3


def time_decoding(
    spec: AttentionSpec,
    contexts: Sequence[int] = CONTEXTS,
    *,
    rounds: int = ROUNDS,
    device: str = "cpu",
    progress: Progress = no_progress,
) -> tuple[DecodeTime, ...]:
    """A step of the MHA twin, of the layer itself and of the MQA twin, float32, one text.

    Raises RunError when their caches would not fit in memory together.
    """
    sizes = sorted({spec.n_heads, spec.kv_heads, 1}, reverse=True)
    longest = seen_tokens(max(contexts), spec.window)
    check_room(
        3 * sum(2 * size * spec.head_width * longest * 4 for size in sizes),
        f"Caches of {longest} tokens to time decoding with",
        "Ask for a shorter --context.",
    )
    found = []
    for number, context in enumerate(contexts):
        steps = [_Step.make(spec, size, context, device) for size in sizes]
        seconds: list[list[float]] = [[] for _ in steps]
        for turn in range(rounds + WARM_UP):
            turns = rounds + WARM_UP
            progress("timing decode steps", number * turns + turn, len(contexts) * turns)
            for step, taken in zip(steps, seconds, strict=True):
                took = step.run()
                if turn >= WARM_UP:
                    taken.append(took)
        found += [
            _row(step, taken, seconds[0], context)
            for step, taken in zip(steps, seconds, strict=True)
        ]
    return tuple(found)


def _row(step: _Step, taken: list[float], first: list[float], context: int) -> DecodeTime:
    ratios = [ours / mha for ours, mha in zip(taken, first, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    spec = step.attention.spec
    return DecodeTime(
        variant=spec.kind,
        n_kv_heads=spec.kv_heads,
        context=context,
        seconds=statistics.median(taken),
        ratio=middle,
        low=low,
        high=high,
        cache_bytes=step.key.nbytes + step.value.nbytes,
    )


@dataclass(frozen=True)
class _Step:
    """A layer, its cache (1, G, S, D), and the newest token (1, 1, C) at its position."""

    attention: MultiHeadAttention
    key: Tensor
    value: Tensor
    token: Tensor
    rotation: Rotation | None

    @classmethod
    def make(cls, spec: AttentionSpec, n_kv_heads: int, context: int, device: str) -> _Step:
        """A layer with random weights and a cache of random numbers."""
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device)

        twin = spec.with_changes(n_kv_heads=n_kv_heads, qk_norm=None, sink=False)
        attention = MultiHeadAttention(twin).requires_grad_(False).to(device)
        size = (1, n_kv_heads, seen_tokens(context, spec.window), spec.head_width)
        rotation = None
        if spec.rotary:
            angles = random(1, 1, spec.turned_width)
            rotation = Rotation(angles.cos(), angles.sin())
        return cls(attention, random(*size), random(*size), random(1, 1, spec.d_model), rotation)

    def run(self) -> float:
        """Seconds of one step."""
        _wait(self.token.device)
        started = time.perf_counter()
        with torch.inference_mode():
            decode_step(self.attention, self.token, self.key, self.value, self.rotation)
        _wait(self.token.device)
        return time.perf_counter() - started


def decode_step(
    attention: MultiHeadAttention,
    token: Tensor,
    keys: Tensor,
    values: Tensor,
    rotation: Rotation | None = None,
) -> Tensor:
    """What the layer makes of the newest token (B, 1, C), whose key and value end the cache.

    keys and values (B, G, S, D) are those of every token that it sees; their last row is written.
    """
    spec = attention.spec
    query, key, value = attention.prepare(token, rotation)
    keys[:, :, -1:], values[:, :, -1:] = key, value
    shape = (len(token), spec.kv_heads, spec.group_size, 1, spec.head_width)
    scores = attention_scores(query.view(shape), keys, spec, None)  # (B, G, R, 1, S)
    sink = attention.sink
    weights, _ = sink_softmax(
        scores, None if sink is None else sink.view(spec.kv_heads, spec.group_size)
    )
    heads = mix_values(weights, values)  # (B, G, R, 1, D)
    return attention.mix(attention.merge(heads.flatten(1, 2)))  # (B, 1, C)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
