"""Which heads to switch off: by name, by label, by layer; what is named twice counts once."""

from __future__ import annotations

from attnscope.errors import UsageError, did_you_mean
from attnscope.experiments.heads import heads as label_heads
from attnscope.experiments.induction import induction
from attnscope.experiments.induction_result import COPYING
from attnscope.experiments.selection import known_heads, select
from attnscope.models.load import Model
from attnscope.plain import visible
from attnscope.scoring.coreference import ROLE
from attnscope.scoring.rules import LABELS
from attnscope.types import Head, Progress, no_progress


def check_choice(heads: str | None, label: str | None, layers: str | None) -> None:
    """Raise UsageError, before a checkpoint is opened, for no choice or an unknown label."""
    if heads is None and label is None and layers is None:
        raise UsageError(
            "Say which heads to switch off: --head 5.5,6.1, --label induction or --layer 5."
        )
    for name in [] if label is None else label.split(","):
        if name.strip() not in LABELS:
            raise UsageError(
                f"Unknown label {visible(name)!r}: choose from {', '.join(LABELS)}."
                + did_you_mean(name, LABELS)
            )


def asks_for_names(heads: str | None, label: str | None, layers: str | None) -> bool:
    """Are the heads chosen for what they do with pronouns, of which random tokens have none?"""
    return (heads, layers) == (None, None) and label is not None and label.strip() == ROLE


def choose(
    model: Model,
    heads: str | None,
    label: str | None,
    layers: str | None,
    *,
    seed: int = 0,
    progress: Progress = no_progress,
) -> list[Head]:
    """The heads that `5.5,6.1`, labels or layers name, all together.

    induction, shifted-induction and anti-induction are what `induction` finds, every other label
    what `heads` gives on its battery. Raises UsageError for a head or a layer that is not there, a
    label that is unknown, or one that no head has.
    """
    check_choice(heads, label, layers)
    found = [] if heads is None else known_heads(model, heads)
    if layers is not None:
        chosen = select(model, layers, None)
        found += [Head(layer, head) for layer, each in chosen for head in each]
    for name in [] if label is None else label.split(","):
        found += _labelled(model, name.strip(), seed, progress)
    return list(dict.fromkeys(found))


def _labelled(model: Model, label: str, seed: int, progress: Progress) -> list[Head]:
    if label in COPYING:
        having = induction(model, seed=seed, progress=progress).first.labelled(label)
    else:
        result = label_heads(model, seed=seed, progress=progress)
        having = [
            head
            for head in result.heads
            if label in (result.labels_of(head).labels or ("unclassified",))
        ]
    if not having:
        raise UsageError(
            f"No head of {visible(model.id)} is labelled {label}: name some with --head."
        )
    return having
