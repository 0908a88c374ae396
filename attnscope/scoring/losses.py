"""How well a model predicts the next token, in slices of positions: nats per token, and KL.

Logits of a whole text are never in memory at once: they would be V numbers for every position.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.models.unembedding import Unembedding


@dataclass(frozen=True)
class Predictions:
    """For every position but the last, and for each of R runs of the same B texts, on the CPU.

    loss (R, B, T - 1): -ln of the probability of the token that follows, in nats.
    kl (R, B, T - 1): KL of the first run's distribution from this run's, in nats; 0 for the first.
    """

    loss: Tensor
    kl: Tensor


def predictions(
    unembed: Unembedding, hidden: Tensor, ids: Tensor, runs: int = 1, asked: Tensor | None = None
) -> Predictions:
    """Compare each position's prediction with what follows: hidden (R·B, T, C), ids (B, T).

    Positions outside `asked` (B, T - 1) are left at 0 and cost nothing.
    """
    texts, length = ids.shape
    apart = hidden.view(runs, texts, length, -1)
    each = apart[:, :, :-1].flatten(1, 2)  # (R, B·(T-1), C)
    following = ids[:, 1:].flatten()  # (B·(T-1),)
    wanted = torch.arange(len(following)) if asked is None else asked.flatten().nonzero()[:, 0]
    loss, kl = torch.zeros(2, runs, len(following), dtype=torch.float64)
    for part in torch.split(wanted, unembed.rows):
        here = part.to(hidden.device)
        target = following[part.to(ids.device)].to(hidden.device)[:, None]  # (n, 1)
        first: tuple[Tensor, Tensor] | None = None
        for run in range(runs):
            scores = unembed(each[run, here])  # (n, V)
            total = scores.logsumexp(-1)  # (n,)
            right = scores.gather(-1, target.to(scores.device))[:, 0]
            loss[run, part] = (total - right).double().cpu()
            if runs == 1:
                continue
            if first is None:
                clean = torch.softmax(scores, dim=-1)  # (n, V)
                first = clean, torch.linalg.vecdot(clean, scores) - total  # Σ p ln p
            else:
                cross = torch.linalg.vecdot(first[0], scores) - total  # Σ p ln q
                kl[run, part] = (first[1] - cross).clamp(min=0).double().cpu()
    shape = (runs, texts, length - 1)
    return Predictions(loss.view(shape), kl.view(shape))
