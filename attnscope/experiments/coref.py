"""coref: where the attention of each pronoun in a text goes among what it could stand for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnscope.errors import CheckpointError, UsageError
from attnscope.experiments.capture import capture
from attnscope.experiments.coref_text import CorefText, Known, Linked, Mention
from attnscope.experiments.selection import select
from attnscope.models.load import Model
from attnscope.models.text import Tokens
from attnscope.plain import visible
from attnscope.scoring.battery import run_battery
from attnscope.scoring.coreference import NEAREST_WRONG, ROLE, CoreferenceProbe, Places, views
from attnscope.scoring.labels import judge
from attnscope.scoring.mentions import Mentions
from attnscope.scoring.passages import Item, Span, last_token
from attnscope.scoring.rules import Rule, read_rules
from attnscope.scoring.scan import watch
from attnscope.scoring.sums import Floats
from attnscope.types import Progress, no_progress

NO_CANDIDATE = "no candidate could be looked at"
CUT = "cut off, or without a token of its own"


def coref(
    model: Model,
    mentions: Mentions,
    tokens: Tokens,
    *,
    rules: Sequence[Rule] | None = None,
    seed: int = 0,
    refresh: bool = False,
    progress: Progress = no_progress,
) -> CorefText:
    """Where each pronoun's attention goes among the candidates, for every head.

    `tokens` are those of `mentions.text`. A causal model is asked about candidates before the
    pronoun only. Coreference heads are known from the battery, which is run if it was not yet.
    Raises UsageError when no pronoun can be asked about, CheckpointError where the tokenizer gives
    no offsets.
    """
    if not mentions.pronouns:
        raise UsageError(
            "No pronoun was found in the text. Mark what you mean: [it], and {the bowl} for what "
            "it could stand for."
        )
    if tokens.offsets is None:
        raise CheckpointError(
            f"The tokenizer of {visible(model.id)} does not tell which characters a token covers, "
            "so mentions cannot be found. Name a fast one with --tokenizer."
        )
    pairs, skipped = _pairs(model, mentions, tokens)
    if not pairs:
        raise UsageError(
            f"Nothing is there for {visible(_named(mentions, mentions.pronouns[0]))!r} to stand "
            "for, that the model could see. Mark candidates: {the bowl}."
        )
    known = known_heads(model, rules=rules, seed=seed, refresh=refresh, progress=progress)
    items = [
        Item(0, pronoun.token, tuple(one.token for one in candidates), 0, 0, ())
        for pronoun, candidates in pairs
    ]
    probe = CoreferenceProbe(model, items, [len(tokens)])
    watch(model, [tokens], [probe.watcher], progress=progress, what="reading the text")
    # A head that is not known is read where the pronoun stands.
    view = np.where(known.labelled, known.view, 0)
    linked = tuple(
        Linked(pronoun, candidates, _in_view(probe.weights_of(n), view))
        for n, (pronoun, candidates) in enumerate(pairs)
    )
    best = known.ranked(np.mean([one.live for one in linked], axis=0))[0]
    known = replace(known, view=view)
    return CorefText(
        model=model.describe(),
        settings={**model.settings(seed), "mentions": mentions.how},
        tokens=tokens,
        linked=linked,
        skipped=dict(skipped),
        known=known,
        views=views(model.shape.causal),
        pattern=capture(model, tokens, select(model, None, str(best)), seed=seed),
        notes=known.notes,
    )


def known_heads(
    model: Model,
    *,
    rules: Sequence[Rule] | None = None,
    seed: int = 0,
    refresh: bool = False,
    progress: Progress = no_progress,
) -> Known:
    """The coreference heads of a model by its battery, and where each is best read."""
    shape = model.shape.n_layers, model.shape.n_heads
    battery = run_battery(model, seed=seed, refresh=refresh, progress=progress)
    nothing = np.zeros(shape, dtype=np.intp)
    reading = battery.text
    if reading is None or reading.view is None:
        notes = battery.notes or ("The battery of this model holds no pronouns.",)
        return Known(None, None, nothing.astype(bool), nothing, notes)
    asked = [rule for rule in (rules or read_rules()) if rule.role == ROLE]
    verdicts = judge(asked, {"text": reading.evidence}, model.shape.causal)
    scores = reading.evidence.scores
    labelled = np.any([verdict.holds for verdict in verdicts], axis=0)
    return Known(scores[ROLE], scores[NEAREST_WRONG], labelled, reading.view, battery.notes)


def _pairs(
    model: Model, mentions: Mentions, tokens: Tokens
) -> tuple[list[tuple[Mention, tuple[Mention, ...]]], Counter[str]]:
    """Every pronoun with the candidates that the model can see from it, and what is left out."""
    found, skipped = [], Counter[str]()
    candidates = [one for span in mentions.candidates if (one := _mention(mentions, span, tokens))]
    skipped[CUT] += len(mentions.candidates) - len(candidates)
    for span in mentions.pronouns:
        pronoun = _mention(mentions, span, tokens)
        if pronoun is None:
            skipped[CUT] += 1
            continue
        seen = {
            one.token: one
            for one in candidates
            if (one.token < pronoun.token or not model.shape.causal)
            and (one.end <= pronoun.start or one.start >= pronoun.end)
        }
        if seen:
            found.append((pronoun, tuple(seen.values())))
        else:
            skipped[NO_CANDIDATE] += 1
    return found, +skipped


def _mention(mentions: Mentions, span: Span, tokens: Tokens) -> Mention | None:
    at = last_token(tokens, span)
    return None if at is None else Mention(*span, _named(mentions, span), at)


def _named(mentions: Mentions, span: Span) -> str:
    return mentions.text[slice(*span)]


def _in_view(weights: Floats, view: Places) -> Floats:
    """weights (views, candidates, L, H) in each head's view (L, H): (candidates, L, H)."""
    index = np.broadcast_to(view, weights.shape[1:])[None]
    found: Floats = np.take_along_axis(weights, index, axis=0)[0]
    return found
