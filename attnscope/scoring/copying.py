"""Copying: what each head by itself adds to the logit of the right next token, with its sign.

A head's direct logit is what its output would score if nothing came after it but the final norm,
which keeps the scale that it has in the real run (direct logit attribution, Wang et al. 2022).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from attnscope.models.direct import DirectPath
from attnscope.models.load import Model
from attnscope.types import TokenBatch


class Copying:
    """The direct logit of the right token less the mean over the vocabulary, summed over `rows`.

    Within `listening`, let a lens record one run of the batch; `rows` (n,) are the queries that
    count, in every text. Keeps the z of these rows until the final norm's scale is known.
    """

    def __init__(self, model: Model, path: DirectPath, batch: TokenBatch, rows: Tensor) -> None:
        self.model, self.path, self.batch, self.rows = model, path, batch, rows
        self._z: dict[int, Tensor] = {}
        self._entering: Tensor | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within it, keep what enters the final norm."""

        def keep(module: object, args: tuple[Tensor, ...]) -> None:
            entering = args[0].view(len(self.batch), -1, args[0].shape[-1])  # (B, T, C)
            self._entering = entering[:, self.rows.to(entering.device)]

        hook = self.path.final.module.register_forward_pre_hook(keep)
        try:
            yield
        finally:
            hook.remove()

    def record(self, layer: int, around: Mapping[str, Tensor]) -> None:
        """Keep a layer's z, as a lens tells it."""
        self._z[layer] = around["z"][:, :, self.rows.to(around["z"].device)]  # (B, H, n, D)

    def totals(self) -> Tensor:
        """The direct logits before any softcap, summed over rows, (B, L, H) float64."""
        wanted = self._pull_back()
        layers = [self._layer(layer, wanted) for layer in range(self.model.shape.n_layers)]
        return torch.stack(layers, dim=1)

    def _pull_back(self) -> Tensor:
        """What a change of the stream does to the answer, (B, n, C).

        The row of W_U of the right token, less the mean row, through the final norm.
        """
        assert self._entering is not None
        unembedding, entering = self.model.predictor().matrix(), self._entering
        following = self.batch.ids[:, self.rows.to(self.batch.ids.device) + 1]  # (B, n)
        right = unembedding[following.to(unembedding.device)].float()  # (B, n, C)
        apart = (right - self._mean_row(unembedding)).to(entering.device)
        final = self.path.final
        return self.path.scale * final.pull(apart, final.scales(entering))

    def _mean_row(self, unembedding: Tensor) -> Tensor:
        name = f"mean of W_U {unembedding.data_ptr()} {unembedding._version}"
        if name not in self.model.memory:
            self.model.memory[name] = unembedding.mean(0, dtype=torch.float32)
        mean: Tensor = self.model.memory[name]
        return mean

    def _layer(self, layer: int, wanted: Tensor) -> Tensor:
        z = self._z.pop(layer)
        attention, write = self.model.seats[layer].attention, self.path.writes[layer]
        merged, wanted = attention.merge(z), wanted.to(z.device)  # (B, n, H·D), (B, n, C)
        with torch.inference_mode():
            if write.norm is not None:
                output = attention.mix(merged.to(self.model.dtype))  # (B, n, C)
                wanted = write.norm.pull(wanted, write.norm.scales(output))
            back = write.factor * wanted @ self._output_matrix(layer).T  # (B, n, H·D)
        each = attention.split(back * merged).sum((2, 3))  # (B, H)
        return each.double().cpu()

    def _output_matrix(self, layer: int) -> Tensor:
        """W_O, (H·D, C), by what it makes of each unit vector."""
        attention = self.model.seats[layer].attention
        like = next(attention.W_O.parameters())
        width = attention.spec.n_heads * attention.spec.head_width
        basis = torch.eye(width, dtype=like.dtype, device=like.device)
        bias = attention.mix(basis.new_zeros(1, 1, width))[0]
        return (attention.mix(basis[None])[0] - bias).float()  # (H·D, C)
