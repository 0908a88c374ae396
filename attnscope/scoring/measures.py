"""What is measured of heads beside their scores: reach, value norms, what each token receives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from attnscope.attention.cores import Block
from attnscope.models.load import Model
from attnscope.models.text import Tokens
from attnscope.scoring.roles import resting_places
from attnscope.scoring.scan import Watcher
from attnscope.scoring.sums import Floats
from attnscope.types import TokenBatch

PLACES = ("first-token", "special-token", "punctuation")  # where a head may rest


class Received(Watcher):
    """What each token of one text gets, over the rows that are no special tokens."""

    def __init__(self, model: Model, text: Tokens) -> None:
        self.total = torch.zeros(
            model.shape.n_layers, model.shape.n_heads, len(text), device=model.device
        )
        special = [token.special for token in text.tokens]
        self.rows = ~torch.tensor(special, device=model.device)
        if not self.rows.any():
            self.rows = ~self.rows

    def see(self, block: Block) -> None:
        """Add up the columns of the block."""
        rows: Tensor = self.rows[block.start : block.stop].float()  # (t,)
        part = rows @ block.weights[0]  # (H, S)
        self.total[block.layer, :, block.low : block.high] += part

    def shares(self) -> Floats:
        """Each token's share of a head's attention, (L, H, T)."""
        shares: Floats = (self.total / self.rows.sum()).double().cpu().numpy()
        return shares


class Reach(Watcher):
    """How far a head looks: the distance within which half of its live mass lies."""

    def __init__(self, model: Model) -> None:
        shape = (model.shape.n_layers, model.shape.n_heads, 1)
        self.total = torch.zeros(shape, dtype=torch.float64, device=model.device)

    def begin(self, batch: TokenBatch, texts: Sequence[int]) -> None:
        """Rows and keys that count: tokens of a text, and no resting places."""
        longer = max(0, batch.ids.shape[1] - self.total.shape[-1])
        self.total = torch.nn.functional.pad(self.total, (0, longer))  # (L, H, greatest distance)
        self.rows = (batch.valid & ~batch.special).float()  # (B, T)
        self.keys = (batch.valid & ~resting_places(batch)).float()  # (B, T)

    def see(self, block: Block) -> None:
        """Add up the weights at each distance."""
        rows, keys = self.rows[:, block.start : block.stop], self.keys[:, block.low : block.high]
        kept = torch.einsum("bhts,bt,bs->hts", block.weights, rows, keys)  # (H, t, S)
        query = torch.arange(block.start, block.stop, device=kept.device)
        key = torch.arange(block.low, block.high, device=kept.device)
        apart = (query[:, None] - key[None, :]).abs().flatten()  # (t·S,)
        self.total[block.layer].index_add_(1, apart, kept.flatten(1).double())

    def half(self) -> Floats:
        """The least k so that half of the live mass lies within k tokens, (L, H); NaN for none."""
        total: Floats = self.total.cpu().numpy()
        mass = total.cumsum(-1)
        reach = (mass < mass[..., -1:] / 2).sum(-1).astype(float)
        return np.where(mass[..., -1] > 0, reach, np.nan)


class ValueNorms(Watcher):
    """‖value · W_O‖ of the keys that heads rest on, beside that of all other keys."""

    def __init__(self, model: Model) -> None:
        self.model = model
        size = (model.shape.n_layers, model.shape.n_heads, len(PLACES) + 1)
        self.total = torch.zeros(size, dtype=torch.float64, device=model.device)
        self.count = torch.zeros(size[-1], dtype=torch.float64, device=model.device)

    def begin(self, batch: TokenBatch, texts: Sequence[int]) -> None:
        """Where the keys of each place are; the last place is everywhere else."""
        first = torch.zeros_like(batch.valid)
        first[:, 0] = True
        places = [first, batch.special & ~first, batch.punctuation & ~first]
        other = batch.valid & ~torch.stack(places).any(0)
        self.places = torch.stack([*places, other]).double()  # (4, B, S)
        self.count += self.places.sum((1, 2))

    def record(self, layer: int, around: Mapping[str, Tensor]) -> None:
        """Add up the norms of a layer's values, as each query head writes them."""
        value = around["value"].float().to(self.places.device)  # (B, G, S, D)
        gram = self._gram(layer).to(value.device)  # (G, R, D, D)
        turned = torch.einsum("bgsd,grde->bgrse", value, gram)  # (B, G, R, S, D)
        squares = (turned * value[:, :, None]).sum(-1).clamp(min=0)  # (B, G, R, S)
        norms = squares.sqrt().flatten(1, 2).double()  # (B, H, S)
        self.total[layer] += torch.einsum("bhs,pbs->hp", norms, self.places)

    def _gram(self, layer: int) -> Tensor:
        """W_O · W_O^T of each head, so that ‖value · W_O‖ needs no (C,) vector per key."""
        attention = self.model.seats[layer].attention
        spec = attention.spec
        width = spec.n_heads * spec.head_width
        weight = next(attention.W_O.parameters())
        name = f"gram {layer}, {weight.data_ptr()}, {weight._version}"
        if name not in self.model.memory:
            basis = torch.eye(width, dtype=weight.dtype, device=weight.device)
            mixed = attention.mix(basis[None])[0] - attention.mix(basis.new_zeros(1, 1, width))[0]
            heads = mixed.float().view(spec.n_heads, spec.head_width, -1)  # (H, D, C)
            gram = heads @ heads.mT  # (H, D, D)
            shape = (spec.kv_heads, spec.group_size, spec.head_width, spec.head_width)
            self.model.memory[name] = gram.view(shape)
        found: Tensor = self.model.memory[name]
        return found

    def ratios(self) -> dict[str, Floats]:
        """By place: its mean norm over the mean norm elsewhere, (L, H); NaN where there is none."""
        with np.errstate(invalid="ignore", divide="ignore"):
            means: Floats = self.total.cpu().numpy() / self.count.cpu().numpy()
            return {place: means[..., n] / means[..., -1] for n, place in enumerate(PLACES)}
