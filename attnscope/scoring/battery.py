"""The battery: what heads do in general, on passages and on repeated random tokens.

Every result is kept (see store.py), keyed by the model and by the very tokens that were read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from attnscope.errors import CheckpointError
from attnscope.models.load import Model
from attnscope.models.text import Tokens
from attnscope.scoring.coreference import NEAREST_WRONG, ROLE, CoreferenceProbe, Places
from attnscope.scoring.estimate import FAMILY_ERROR, Scores, estimate
from attnscope.scoring.labels import Evidence
from attnscope.scoring.measures import Reach, ValueNorms
from attnscope.scoring.packing import pack_scores, pack_sums, unpack_scores, unpack_sums
from attnscope.scoring.passages import Item, read_battery, unknown_share
from attnscope.scoring.roles import ROLES, Role
from attnscope.scoring.rules import read_rules
from attnscope.scoring.scan import MEASURES, Watcher, ask, questions, scan_many
from attnscope.scoring.stimuli import RepeatedTokens, repeated_tokens
from attnscope.scoring.store import Arrays, fingerprint, kept, key_of
from attnscope.scoring.sums import Floats, HeadSums, concatenate
from attnscope.types import Progress, no_progress

TOO_MUCH_UNKNOWN = 0.5  # of the passages' tokens: then their scores would say nothing
_RANDOM_TOKENS = 2048  # at a time
ERROR = FAMILY_ERROR / 2  # the passages and the random tokens share the family's error


@dataclass(frozen=True)
class Reading:
    """What heads do on one kind of text: its evidence, and the sums that it came from."""

    evidence: Evidence
    sums: HeadSums
    reach: Floats  # (L, H), NaN where not measured
    value_norms: dict[str, Floats]  # by resting place, (L, H)
    about: dict[str, Any]
    kept: bool
    view: Places | None = None  # (L, H): from where each head links pronouns best, if it was asked


@dataclass(frozen=True)
class Battery:
    """Both readings, or why there is no battery."""

    text: Reading | None
    random: Reading | None
    notes: tuple[str, ...] = ()


def run_battery(
    model: Model,
    *,
    corpus: Iterable[Tokens] | None = None,
    roles: Sequence[Role] = (),
    seed: int = 0,
    refresh: bool | None = False,
    progress: Progress = no_progress,
) -> Battery:
    """Read the passages (or the user's corpus in their place) and repeated random tokens.

    `refresh` reads them again, kept or not; None never does, and raises NotKept.
    """
    own = [role for role in roles if role.general]
    if corpus is not None or any(role.definition is None for role in own):
        return _run(model, corpus, own, seed, refresh, progress)
    asked = [(role.name, role.definition) for role in own]
    settings = f"seed {seed}, add_bos {model.reader.add_bos}, {asked}"
    name = f"battery of {fingerprint(model)}, {settings}"
    if refresh or name not in model.memory:
        model.memory[name] = _run(model, None, own, seed, refresh, progress)
    battery: Battery = model.memory[name]
    return battery


def _run(
    model: Model,
    corpus: Iterable[Tokens] | None,
    own: Sequence[Role],
    seed: int,
    refresh: bool | None,
    progress: Progress,
) -> Battery:
    try:
        stimulus = repeated_tokens(model, seed=seed)
    except CheckpointError as error:
        return Battery(None, None, (f"Labels rest on the given texts alone: {error}",))
    notes = []
    if stimulus.shortened_from:
        notes.append(
            f"Repeated tokens shortened from {stimulus.shortened_from} to {stimulus.length} "
            "to fit the model."
        )
    if corpus is not None:
        text = read_texts(model, corpus, roles=own, seed=seed, error=ERROR, progress=progress)
    else:
        found = _read_passages(model, own, seed, refresh, progress)
        if isinstance(found, str):
            return Battery(None, None, (found,))
        text = found
    random = _read_random(model, stimulus, own, seed, refresh, progress)
    return Battery(text, random, tuple(notes))


def read_texts(
    model: Model,
    texts: Iterable[Tokens],
    *,
    roles: Sequence[Role] = (),
    seed: int = 0,
    error: float = FAMILY_ERROR,
    progress: Progress = no_progress,
) -> Reading:
    """Score every head on texts of the user's; they may stream, and are read once."""
    counted = _Counted(texts)
    arrays = _measure(model, counted, (), roles, seed, error, progress, "reading")
    about = {"texts": counted.texts, "tokens": counted.tokens, "cut": counted.cut}
    return _reading(arrays, about, False)


class _Counted:
    """Texts that are counted as they pass."""

    def __init__(self, texts: Iterable[Tokens]) -> None:
        self._texts = texts
        self.texts = self.tokens = self.cut = 0

    def __iter__(self) -> Iterator[Tokens]:
        for text in self._texts:
            self.texts += 1
            self.tokens += len(text)
            self.cut += text.cut > 0
            yield text


def _read_passages(
    model: Model, roles: Sequence[Role], seed: int, refresh: bool | None, progress: Progress
) -> Reading | str:
    """The passages' reading; a sentence when this tokenizer knows too little of them."""
    quick = f"passages, add_bos {model.reader.add_bos}"
    battery = model.memory.get(quick)
    if battery is None:
        battery = model.memory[quick] = read_battery(model)
    unknown = unknown_share(model, battery.texts)
    if unknown > TOO_MUCH_UNKNOWN:
        return (
            "Labels rest on the given texts alone: the tokenizer does not know "
            f"{100 * unknown:.0f} % of the battery's {battery.what}."
        )

    def compute() -> Arrays:
        what = f"reading {len(battery.texts)} {battery.what}"
        return _measure(model, battery.texts, battery.items, roles, seed, ERROR, progress, what)

    about = {
        "texts": len(battery.texts),
        "what": battery.what,
        "tokens": sum(len(text) for text in battery.texts),
        "cut": sum(text.cut > 0 for text in battery.texts),
        "links": len(battery.items),
        "links_skipped": battery.skipped,
    }
    links = [[i.text, i.pronoun, i.candidates, i.gold, i.nearest, i.named] for i in battery.items]
    ids = [[token.id for token in text.tokens] for text in battery.texts]
    return _keep(model, {"ids": ids, "links": links}, roles, seed, compute, about, refresh)


def _read_random(
    model: Model,
    stimulus: RepeatedTokens,
    roles: Sequence[Role],
    seed: int,
    refresh: bool | None,
    progress: Progress,
) -> Reading:
    def compute() -> Arrays:
        parts = []
        size = max(1, _RANDOM_TOKENS // stimulus.batch.ids.shape[1])
        for start in range(0, len(stimulus.batch), size):
            progress("reading repeated random tokens", start, len(stimulus.batch))
            batch = stimulus.batch.rows(start, start + size)
            probes = {**questions(batch, model.shape, roles), **stimulus.probes(batch)}
            parts.append(ask(model, batch, probes))
        sums = concatenate(parts)
        n = stimulus.sequences
        repeated, control = sums.take(range(n)), sums.take(range(n, len(sums)))
        return {
            **pack_sums(repeated),
            **pack_scores("scores", estimate_roles(repeated, "random", seed, ERROR)),
            **pack_scores("control", estimate_roles(control, "random", seed, ERROR)),
        }

    what = {"random": stimulus.batch.ids.tolist(), "sequences": stimulus.sequences}
    return _keep(model, what, roles, seed, compute, stimulus.describe(seed), refresh)


def _keep(
    model: Model,
    what: Mapping[str, Any],
    roles: Sequence[Role],
    seed: int,
    compute: Any,
    about: dict[str, Any],
    refresh: bool | None,
) -> Reading:
    """The reading of these tokens, from before where nothing it depends on has changed."""
    definitions = [(role.name, role.definition) for role in roles]
    if any(role.definition is None for role in roles):  # a function may be another one next time
        return _reading(compute(), about, False)
    tokens = xxhash.xxh3_128(json.dumps(what).encode()).hexdigest()
    key = key_of(model, {"tokens": tokens, "roles": definitions, "seed": seed})
    arrays, before = kept(key, compute, refresh=refresh)
    return _reading(arrays, about, before)


def _measure(
    model: Model,
    texts: Iterable[Tokens],
    items: Sequence[Item],
    roles: Sequence[Role],
    seed: int,
    error: float,
    progress: Progress,
    what: str,
) -> Arrays:
    reach, norms = Reach(model), ValueNorms(model)
    watchers: list[Watcher] = [reach, norms]
    links = None
    if items:
        texts = list(texts)
        links = CoreferenceProbe(model, items, [len(text) for text in texts])
        watchers.append(links.watcher)
    sums = scan_many(model, texts, roles=roles, watchers=watchers, progress=progress, what=what)
    arrays: Arrays = {}
    if links is not None:
        choices = links.choices()
        sums = sums.beside(choices.sums)
        arrays["baselines"] = np.array(json.dumps(choices.baselines))
        arrays["view"] = choices.view
    return {
        **arrays,
        **pack_sums(sums),
        **pack_scores("scores", estimate_roles(sums, "text", seed, error)),
        "reach": reach.half(),
        **{f"value_norm {place}": ratio for place, ratio in norms.ratios().items()},
    }


def estimate_roles(sums: HeadSums, kind: str, seed: int, error: float) -> dict[str, Scores]:
    """Score every role; those that a label rests on, on this kind of text, are a family.

    With ours are the user's, since a rule of the user's may rest on them.
    """
    roles = [name for name in sums.names if name not in MEASURES]
    own = {name for name in roles if name not in (*ROLES, NEAREST_WRONG)}
    return estimate(sums, roles, seed=seed, error=error, tested=roles_tested(kind) | own)


def roles_tested(kind: str) -> set[str]:
    """The roles that labels of ours rest on, on this kind of text."""
    return {rule.role for rule in read_rules() if kind in rule.evidence}


def _reading(arrays: Arrays, about: dict[str, Any], before: bool) -> Reading:
    scores = unpack_scores("scores", arrays)
    control = unpack_scores("control", arrays) if "control" in arrays else None
    baselines: dict[str, dict[str, float]] = {}
    if "baselines" in arrays:
        baselines[ROLE] = json.loads(str(arrays["baselines"]))
        about = {**about, "baselines": baselines[ROLE]}
    sums = unpack_sums(arrays)
    nothing = np.full(next(iter(scores.values())).lift.shape, np.nan)
    norms = {
        k.removeprefix("value_norm "): a for k, a in arrays.items() if k.startswith("value_norm ")
    }
    return Reading(
        Evidence(scores, control, baselines),
        sums,
        arrays.get("reach", nothing),
        norms,
        about,
        before,
        arrays.get("view"),
    )
