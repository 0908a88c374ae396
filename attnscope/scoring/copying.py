"""Copying: what each head by itself adds to the logit of the right next token, with its sign.

A head's direct logit is what its output would score if nothing came after it but the final norm,
which keeps the scale that it has in the real run (direct logit attribution, Wang et al. 2022).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from attnscope.models.load import Model
from attnscope.models.stream import Stream
from attnscope.types import TokenBatch


class Copying:
    """The direct logit of the right token less the mean over the vocabulary, summed over rows.

    Hear the final norm in one run (`listening`), then let a lens record the next run of the same
    batch. total (B, L, H), in logits before any softcap; asked (B, T - 1) says which rows count.
    """

    def __init__(self, model: Model, stream: Stream, batch: TokenBatch, asked: Tensor) -> None:
        shape = model.shape
        self.model, self.stream, self.batch, self.asked = model, stream, batch, asked
        self.total = torch.zeros(len(batch), shape.n_layers, shape.n_heads, dtype=torch.float64)
        self._entering: Tensor | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within it, keep what enters the final norm."""

        def keep(module: object, args: tuple[Tensor, ...]) -> None:
            self._entering = args[0]

        hook = self.stream.final.module.register_forward_pre_hook(keep)
        try:
            yield
        finally:
            hook.remove()
        self._wanted = self._pull_back()

    def _pull_back(self) -> Tensor:
        """What a change of the stream does to the answer, (B, T, C); 0 for rows that do not count.

        The row of W_U of the right token, less the mean row, through the final norm.
        """
        entering = self._entering
        assert entering is not None
        self._entering = None
        unembedding = self.model.predictor().matrix()
        following = self.batch.ids[:, 1:].to(unembedding.device)
        rows = unembedding[following].float() - unembedding.float().mean(0)  # (B, T - 1, C)
        rows = rows * self.asked.to(rows.device)[..., None]
        rows = torch.nn.functional.pad(rows, (0, 0, 0, 1)).to(entering.device)  # (B, T, C)
        final = self.stream.final
        return self.stream.scale * final.pull(rows, final.scales(entering.view_as(rows)))

    def record(self, layer: int, around: Mapping[str, Tensor]) -> None:
        """Add up the direct logits of a layer's heads, as a lens tells it."""
        z = around["z"]  # (B, H, T, D)
        attention, write = self.model.seats[layer].attention, self.stream.writes[layer]
        merged = attention.merge(z)  # (B, T, H·D)
        wanted = self._wanted.to(z.device)
        if write.norm is not None:
            output = attention.mix(merged.to(self.model.dtype))  # (B, T, C)
            wanted = write.norm.pull(wanted, write.norm.scales(output))
        back = write.factor * wanted @ self._output_matrix(layer).T  # (B, T, H·D)
        each = (back * merged).unflatten(-1, (z.shape[1], -1)).sum((1, 3))  # (B, H)
        self.total[:, layer] = each.double().cpu()

    def _output_matrix(self, layer: int) -> Tensor:
        """W_O, (H·D, C), by what it makes of each unit vector."""
        attention = self.model.seats[layer].attention
        like = next(attention.W_O.parameters())
        width = attention.spec.n_heads * attention.spec.head_width
        basis = torch.eye(width, dtype=like.dtype, device=like.device)
        bias = attention.mix(basis.new_zeros(1, 1, width))[0]
        return (attention.mix(basis[None])[0] - bias).float()  # (H·D, C)
