"""Other texts to compare with: what a head adds when it reads something else."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from attnscope.attention.lens import Lens
from attnscope.models.load import Model
from attnscope.scoring.passages import passages_for, read_battery, unknown_share
from attnscope.scoring.stimuli import middle_ids, wrapping
from attnscope.types import TokenBatch

_UNKNOWN = 0.5  # a tokenizer that knows less of the passages gets random tokens


def reference_name(model: Model) -> str:
    """What `reference_ids` are, in words."""
    random = torch.equal(reference_ids(model), middle_ids(model))
    return "random tokens" if random else f"the battery's {passages_for(model)[1]}"


def reference_ids(model: Model) -> Tensor:
    """Token ids (N,) of the passages that suit a model, one after the other; else random ones."""
    name = f"reference ids, add_bos {model.reader.add_bos}"
    if name not in model.memory:
        texts = read_battery(model).texts
        if unknown_share(model, texts) > _UNKNOWN:
            model.memory[name] = middle_ids(model)
        else:
            plain = [token.id for text in texts for token in text.tokens if not token.special]
            model.memory[name] = torch.tensor(plain, dtype=torch.int64)
    ids: Tensor = model.memory[name]
    return ids


def reference_texts(model: Model, n_texts: int, length: int, seed: int = 0) -> TokenBatch:
    """Stretches of the reference from random places, each as long, behind what begins a text."""
    ids = reference_ids(model)
    before, _ = wrapping(model)
    begin = torch.tensor(before[:length], dtype=torch.int64)
    size = length - len(begin)
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(ids), (n_texts, 1), generator=generator)
    places = (starts + torch.arange(size)) % len(ids)  # (N, T)
    texts = torch.cat([begin.expand(n_texts, -1), ids[places]], dim=1)
    special = torch.zeros_like(texts, dtype=torch.bool)
    special[:, : len(begin)] = True
    nothing = torch.zeros_like(special)
    return TokenBatch(texts, torch.ones_like(special), special, nothing).to(model.device)


def mean_outputs(model: Model, batch: TokenBatch, rows: int) -> Tensor:
    """The mean z of every head over all tokens of these texts but the first, (L, H, D) float32.

    At most `rows` texts are read at once.
    """
    shape = model.shape
    total = torch.zeros(shape.n_layers, shape.n_heads, shape.d_head, dtype=torch.float64)
    counted = 0
    for start in range(0, len(batch), rows):
        part = batch.rows(start, start + rows)
        later = part.valid.clone()
        later[:, 0] = False  # the first token rests on itself, unlike any other
        counted += int(later.sum())

        def add(layer: int, around: Mapping[str, Tensor], later: Tensor = later) -> None:
            z = around["z"]  # (B, H, T, D)
            total[layer] += (
                torch.einsum("bhtd,bt->hd", z.float(), later.to(z)).double().cpu()  # (H, D)
            )

        model.run(part, Lens(recorders=(add,)))
    return (total / max(counted, 1)).float()
