"""heads: what every head does, in general and in the texts given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attnscope.errors import UsageError
from attnscope.experiments.heads_result import HeadsResult
from attnscope.models.load import Model
from attnscope.models.text import Tokens
from attnscope.scoring.battery import Battery, Reading, read_texts, run_battery
from attnscope.scoring.estimate import Scores, estimate, mean
from attnscope.scoring.labels import judge, labels_of
from attnscope.scoring.measures import Received
from attnscope.scoring.roles import Role
from attnscope.scoring.rules import Rule, read_rules
from attnscope.scoring.scan import MEASURES, scan
from attnscope.scoring.sums import Floats, HeadSums
from attnscope.types import Head, Progress, no_progress


def heads(
    model: Model,
    texts: Sequence[Tokens] = (),
    *,
    battery: bool = True,
    corpus: Iterable[Tokens] | None = None,
    rules: Sequence[Rule] | None = None,
    roles: Sequence[Role] = (),
    explained: Sequence[Head] = (),
    seed: int = 0,
    refresh: bool = False,
    progress: Progress = no_progress,
) -> HeadsResult:
    """Score and label every head: in the texts given, and in general on the battery.

    `corpus` stands in for the battery's passages, and for the texts where none are given; it is
    read once. `refresh` measures the battery again.
    Raises UsageError when a role of the user's does not fit the texts.
    """
    rules = read_rules(own_roles=[role.name for role in roles]) if rules is None else rules
    _check_roles(roles, texts)
    here = _InTexts.read(model, texts, roles, seed, progress) if texts else None
    tested = Battery(None, None, ("Labels rest on the given texts alone.",))
    if battery:
        tested = run_battery(
            model, corpus=corpus, roles=roles, seed=seed, refresh=refresh, progress=progress
        )
    general = tested.text
    if general is None:
        alone = texts or (() if corpus is None else corpus)
        general = read_texts(model, alone, roles=roles, seed=seed, progress=progress)
    evidence = {"text": general.evidence}
    if tested.random is not None:
        evidence["random"] = tested.random.evidence
    verdicts = judge(rules, evidence, model.shape.causal)
    here = here or _InTexts.of(general)
    cut = general.about["cut"] if corpus is not None else 0
    return HeadsResult(
        model=model.describe(),
        settings={
            **model.settings(seed),
            "thresholds": [rule.to_json() for rule in rules],
            "battery": None
            if tested.random is None
            else {**tested.random.about, "text": general.about},
            "roles": {role.name: role.definition for role in roles},
        },
        text=texts[0] if len(texts) == 1 else None,
        n_texts=here.n_texts,
        n_tokens=here.n_tokens,
        roles=tuple(roles),
        verdicts=verdicts,
        labels=labels_of(verdicts, model.shape.grid),
        scores=here.scores,
        general=general,
        random=tested.random,
        live_mass=1 - mean(here.sums, "resting"),
        entropy=mean(here.sums, "entropy"),
        distance=mean(here.sums, "distance"),
        received=here.received,
        explained=tuple(explained),
        notes=(
            *tested.notes,
            *_weak(here.n_texts, general.about["texts"], tested.random is not None),
            *([_NO_MARKS] if corpus is not None and battery else []),
            *([f"Cut to fit the model: {cut} of the corpus's texts."] if cut else []),
        ),
    )


@dataclass(frozen=True)
class _InTexts:
    """What heads do in the texts given."""

    n_texts: int
    n_tokens: int
    sums: HeadSums
    scores: dict[str, Scores]
    received: Floats | None = None

    @classmethod
    def read(
        cls,
        model: Model,
        texts: Sequence[Tokens],
        roles: Sequence[Role],
        seed: int,
        progress: Progress,
    ) -> _InTexts:
        received = Received(model, texts[0]) if len(texts) == 1 else None
        watching = (received,) if received else ()
        sums = scan(model, texts, roles=roles, watchers=watching, progress=progress)
        names = [name for name in sums.names if name not in MEASURES]
        shares = None if received is None else received.shares()
        n_tokens = sum(len(text) for text in texts)
        return cls(len(texts), n_tokens, sums, estimate(sums, names, seed=seed), shares)

    @classmethod
    def of(cls, reading: Reading) -> _InTexts:
        about = reading.about
        scores = dict(reading.evidence.scores)
        return cls(about["texts"], about["tokens"], reading.sums, scores)


FEW_TEXTS = 10  # resampling fewer makes intervals too narrow
_NO_MARKS = "The corpus marks no antecedents: coreference is not tested."


def _weak(given: int, general: int, battery: bool) -> list[str]:
    """What to say where there are too few texts to be sure."""
    notes = []
    if given == 1 and battery:
        notes.append(
            "One text is weak evidence: what is told of it has no interval, and no label rests on "
            "it."
        )
    elif given == 1:
        notes.append("One text is weak evidence: labels rest on it alone, without intervals.")
    if 1 < general < FEW_TEXTS:
        notes.append(f"Labels rest on {general} texts: from so few, intervals come out too narrow.")
    return notes


def _check_roles(roles: Sequence[Role], texts: Sequence[Tokens]) -> None:
    names = [role.name for role in roles]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"Two roles are called {twice}: give each a name of its own.")
    local = next((role for role in roles if not role.general), None)
    if local is not None and len(texts) != 1:
        raise UsageError(f"The pairs of {local.name} are tokens of one text: give one text.")
