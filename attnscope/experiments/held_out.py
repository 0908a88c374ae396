"""Which texts a conversion is made from, and which others it is measured on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.attention.alignment import Moments
from attnscope.attention.lens import Lens
from attnscope.errors import CheckpointError, UsageError
from attnscope.experiments.room import check_room
from attnscope.models.load import Model
from attnscope.models.states import hidden_states
from attnscope.models.text import Tokens, batch_of
from attnscope.plain import visible
from attnscope.scoring.battery import TOO_MUCH_UNKNOWN
from attnscope.scoring.passages import read_battery, unknown_share
from attnscope.scoring.stimuli import RepeatedTokens, repeated_tokens
from attnscope.types import Progress, no_progress

TEXTS = 16  # passages to measure on; as many others decide how heads are aligned
SEQUENCES, CONTROLS = 16, 8  # of repeated random tokens


@dataclass(frozen=True)
class Texts:
    """What is read: passages to align on, others to measure on, repeated random tokens."""

    aligned: tuple[Tokens, ...]
    measured: tuple[Tokens, ...]
    stimulus: RepeatedTokens | None
    what: str
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As the settings of a document record it."""
        n = self.stimulus
        return {
            "texts": len(self.measured),
            "what": self.what,
            "tokens": sum(map(len, self.measured)),
            "aligned_on": {"texts": len(self.aligned), "tokens": sum(map(len, self.aligned))},
            "random": None
            if n is None
            else {
                "length": n.length,
                "sequences": n.sequences,
                "control_sequences": len(n.batch) - n.sequences,
            },
        }


def pick_texts(model: Model, count: int = TEXTS, seed: int = 0) -> Texts:
    """Passages of every kind, half of them for each purpose: none serves both.

    Raises UsageError where the tokenizer does not know them.
    """
    if count < 1:
        raise UsageError(f"{count} texts: give at least 1.")
    battery = read_battery(model)
    if unknown_share(model, battery.texts) > TOO_MUCH_UNKNOWN:
        raise UsageError(
            f"The tokenizer of {visible(model.id)} does not know most of the {battery.what} that "
            "losses are measured on."
        )
    count = min(count, len(battery.texts) // 2)
    spread = np.linspace(0, len(battery.texts), 2 * count, endpoint=False).astype(int)
    chosen = [battery.texts[n] for n in spread]
    notes, stimulus = [], None
    try:
        stimulus = repeated_tokens(model, sequences=SEQUENCES, controls=CONTROLS, seed=seed)
    except CheckpointError as error:
        notes.append(f"No repeated random tokens were read: {error}")
    cut = sum(text.cut > 0 for text in chosen)
    if cut:
        notes.append(f"{cut} of {len(chosen)} texts were cut to fit the model.")
    return Texts(tuple(chosen[::2]), tuple(chosen[1::2]), stimulus, battery.what, tuple(notes))


def read_moments(
    model: Model, texts: Sequence[Tokens], progress: Progress = no_progress
) -> list[Moments]:
    """Second moments of each layer's keys and values over some texts."""
    sizes = [spec.kv_heads * spec.head_width for spec in model.specs]
    check_room(
        sum(2 * size * size * 8 for size in sizes),
        "The second moments of all key/value heads",
        "Use a smaller model.",
    )
    made = [
        Moments(*(torch.zeros(size, size, dtype=torch.float64) for _ in range(2))) for size in sizes
    ]
    for number, text in enumerate(texts):
        progress("reading texts to align heads on", number, len(texts))

        def record(layer: int, around: Mapping[str, Tensor]) -> None:
            for name, total in (("key", made[layer].key), ("value", made[layer].value)):
                flat = around[name][0].transpose(0, 1).flatten(1).double().cpu()  # (T, G·D)
                total += flat.T @ flat

        batch = batch_of([text], model.pad_id).to(model.device)
        hidden_states(model, batch, Lens(recorders=(record,)))
    return made
