"""What a head's own weights say: how large they are, whether they copy, which distance they favour.

Everything up to a number for each token, the norms' division, and without biases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnscope.attention.linear import weight_of
from attnscope.experiments.composition import HeadWeights
from attnscope.models.load import Model
from attnscope.models.stream import Stream, positions_in

CHUNK = 8192  # rows of the embeddings at a time


@dataclass(frozen=True)
class Distance:
    """The distance that positions alone favour: the key at query + `offset` scores most.

    `share` is the part of what positions add to the scores that depends on the distance alone.
    """

    offset: int
    share: float


@dataclass
class OwnWeights:
    """One entry for each head, layer by layer; NaN or None where there is nothing to say."""

    qk_norm: list[float] = field(default_factory=list)
    ov_norm: list[float] = field(default_factory=list)
    copying: list[float] = field(default_factory=list)
    distance: list[Distance | None] = field(default_factory=list)


class OwnMeasures:
    """Measures the heads of one layer after the other."""

    def __init__(self, model: Model, stream: Stream) -> None:
        self.model, self.stream = model, stream
        self.found = OwnWeights()
        self.vocabulary = vocabulary_map(model) if stream.plain else None  # (C, C)
        self.positions = None
        if not all(spec.rotary or spec.qk_norm for spec in model.specs):
            self.positions = positions_in(model)

    def measure(self, layer: int, weights: HeadWeights) -> None:
        """Add the heads of this layer."""
        spec, n_heads = self.model.specs[layer], self.model.shape.n_heads
        readers, written = weights.readers(), weights.written()
        qk_norm = readers[1].norm(dim=(-2, -1))  # (H,)
        if spec.qk_norm is not None:  # the norm undoes any size
            qk_norm = torch.full_like(qk_norm, math.nan)
        self.found.qk_norm += qk_norm.tolist()
        self.found.ov_norm += written.norm(dim=(-2, -1)).tolist()
        copying = torch.full((n_heads,), math.nan)
        if self.vocabulary is not None:
            output = weights.output
            for fold in self.stream.passes[-1]:
                output = fold(output)
            copying = copying_scores(weights.value, self.vocabulary, output)
        self.found.copying += copying.tolist()
        self.found.distance += self._distances(layer, weights)

    def _distances(self, layer: int, weights: HeadWeights) -> Sequence[Distance | None]:
        spec = self.model.specs[layer]
        if self.positions is None or spec.rotary or spec.qk_norm is not None:
            return [None] * spec.n_heads
        places = self.positions[layer].to(weights.query)  # (T, C), which the norm has been through
        raw = partial(_unfolded, self.model, layer, places.device)
        query = torch.einsum("tc,hdc->htd", places, raw("W_Q"))  # (H, T, D)
        key = torch.einsum("tc,gdc->gtd", places, raw("W_K"))  # (G, T, D)
        key = key.repeat_interleave(spec.group_size, 0)  # (H, T, D)
        return favoured_distances(query, key, spec.causal)


def copying_scores(value: Tensor, vocabulary: Tensor, output: Tensor) -> Tensor:
    """The sum of the eigenvalues of W_U · W_OV · W_E over the sum of their sizes, (H,).

    From -1 to 1; near 1 a head raises the tokens that it attends to (Elhage et al. 2021). They are
    the eigenvalues of a (D, D) matrix too: value and output are (H, D, C), vocabulary (C, C).
    """
    small = (value @ vocabulary.to(value) @ output.mT).cpu()  # (H, D, D)
    sizes: Tensor = torch.linalg.eigvals(small).abs().sum(-1)  # (H,)
    return small.diagonal(dim1=-2, dim2=-1).sum(-1) / sizes


def vocabulary_map(model: Model) -> Tensor | None:
    """What a token's embedding would find of itself in the unembedding: W_Eᵀ · W_U, (C, C).

    None without a language-model head that takes the last hidden state.
    """
    network: Any = model.network
    head = network.get_output_embeddings() if hasattr(network, "get_output_embeddings") else None
    if head is None or getattr(network, "base_model", network) is network:
        return None
    embedding, unembedding = network.get_input_embeddings().weight, head.weight
    if embedding.shape != unembedding.shape or embedding.shape[1] != model.shape.d_model:
        return None
    if not _takes_last_hidden_state(model):
        return None
    total = torch.zeros(2 * (model.shape.d_model,))
    for start in range(0, len(embedding), CHUNK):
        rows = slice(start, start + CHUNK)
        total += (embedding[rows].float().T @ unembedding[rows].float().to(embedding.device)).cpu()
    return total


def favoured_distances(query: Tensor, key: Tensor, causal: bool) -> list[Distance | None]:
    """The distance that scores of positions (H, T, D) favour, over rows that see all of them."""
    n_tokens = query.shape[1]
    if n_tokens < 4:
        return [None] * len(query)
    reach = n_tokens // 2 if causal else n_tokens // 4
    offsets = torch.arange(-reach, 1 if causal else reach + 1, device=query.device)
    rows = torch.arange(reach, n_tokens if causal else n_tokens - reach, device=query.device)
    scores = query[:, rows] @ key.mT  # (H, t, S)
    scores = scores.gather(-1, (rows[:, None] + offsets).expand(len(query), -1, -1))
    scores = scores.double() - scores.double().mean(-1, keepdim=True)  # softmax takes no notice
    profile = scores.mean(1)  # (H, offsets)
    whole = scores.square().mean((1, 2))
    found: list[Distance | None] = []
    for head in range(len(query)):
        if not bool(whole[head] > 0):
            found.append(None)
            continue
        share = float(profile[head].square().mean() / whole[head])
        found.append(Distance(int(offsets[profile[head].argmax()]), share))
    return found


def _unfolded(model: Model, layer: int, place: torch.device, name: str) -> Tensor:
    """W_Q or W_K as stored, (heads, D, C)."""
    weight = weight_of(getattr(model.seats[layer].attention, name)).to(place, torch.float32)
    return weight.reshape(-1, model.shape.d_head, model.shape.d_model)


def _takes_last_hidden_state(model: Model) -> bool:
    """Is what enters the head what left the last layer and norm? Not behind a layer of its own."""
    return model.unembedding is not None and model.unembedding.scale() is not None
