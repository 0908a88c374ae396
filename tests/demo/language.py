"""A small generated story language: people, things, traits, lists and pronouns that need look-up.

Everybody has one habit ("Anna" always "sang") and every thing one fate ("the bowl" always "broke"),
so the word after a pronoun is known exactly when the antecedent is known.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.demo.words import (
    ADJECTIVES,
    ADVERBS,
    DAYS,
    FUNCTION_WORDS,
    HABIT,
    HABITS,
    MATERIALS,
    MEN,
    PLACES,
    ROLE_HABIT,
    SURFACE_TRAITS,
    SURFACES,
    THING_FATE,
    THING_NEAR,
    THING_TRAITS,
    VERBS_TO_PEOPLE,
    VERBS_TO_THINGS,
    WOMEN,
)

PRONOUNS = {"he", "she", "it", "He", "She", "It"}
Rng = random.Random


@dataclass(frozen=True, slots=True)
class Piece:
    """One word or punctuation mark; a pronoun carries its antecedent's head word."""

    text: str
    antecedent: str | None = None


@dataclass(frozen=True, slots=True)
class CorefItem:
    """A text with one pronoun and two candidates before it, as character spans."""

    text: str
    pronoun: tuple[int, int]
    candidates: tuple[tuple[int, int], tuple[int, int]]
    gold: int
    kind: str


def story_words() -> list[str]:
    """Every word type of the stories, in a fixed order without repeats."""
    groups = [
        FUNCTION_WORDS, WOMEN, MEN, HABITS, list(ROLE_HABIT), list(ROLE_HABIT.values()),
        list(THING_FATE), list(THING_FATE.values()), SURFACES, PLACES, MATERIALS, THING_TRAITS,
        SURFACE_TRAITS, ADJECTIVES, DAYS, ADVERBS, VERBS_TO_PEOPLE, VERBS_TO_THINGS,
        ["when", "where", "bought", "sold", "every", "liked", "put", "placed", "spilled", "left"],
    ]  # fmt: skip
    return list(dict.fromkeys(word for group in groups for word in group))


def join(pieces: list[Piece]) -> str:
    """Pieces as text: a space before every word, none before punctuation."""
    text = "".join(p.text if p.text in ",." else " " + p.text for p in pieces)
    return text.removeprefix(" ")


@functools.cache
def _split(template: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\{\w+\}|\w+|[,.]", template))


def _fill(template: str, slots: dict[str, str | Piece]) -> list[Piece]:
    pieces: list[Piece] = []
    for part in _split(template):
        value = slots[part[1:-1]] if part[0] == "{" else part
        if isinstance(value, Piece):
            pieces.append(value)
        else:
            pieces.extend(Piece(word) for word in value.split())
    return pieces


def _things(rng: Rng, n: int) -> list[str]:
    return rng.sample(list(THING_FATE), n)


def _couple(rng: Rng) -> tuple[str, str]:
    pair = [rng.choice(WOMEN), rng.choice(MEN)]
    rng.shuffle(pair)
    return pair[0], pair[1]


def _pronoun(rng: Rng, noun: str) -> str:
    if noun in THING_FATE or noun in SURFACES:
        return "it"
    if noun in ROLE_HABIT:
        return rng.choice(["he", "she"])
    return "she" if noun in WOMEN else "he"


def _deed(noun: str) -> str:
    return HABIT.get(noun) or ROLE_HABIT.get(noun) or THING_FATE[noun]


LINKS = [
    "and then {low} {deed}.",
    "and {low} {deed} {adverb}.",
    ", and {low} {deed}.",
    "because {low} {deed}.",
    ". {Cap} {deed} {adverb}.",
    ". {Cap} {deed}.",
    ". Then {low} {deed}.",
    "so {low} {deed}.",
    ". The {spot} was {adjective}. {Cap} {deed}.",
    "on {day}, and {low} {deed} {adverb}.",
]
GENDER_OPENINGS = [
    "{a} {did} {b}",
    "{a} {did} {b} near the {place}",
    "{a} {did} {b} at the {adjective2} {place}",
    "{a} and {b} walked to the {place}",
    "{a} was with {b} at the {place}",
    "On {day2} {a} {did} {b}",
    "Then {a} {did} {b}",
]
ACTOR_OPENINGS = [
    "{who} {did} the {thing}",
    "{who} {did} the {material} {thing}",
    "{who} {did} the {adjective2} {thing} at the {place}",
    "On {day2} {low_who} {did} the {thing}",
]
THING_OPENINGS = [
    "The {thing} {near} {low_who}",
    "The {material} {thing} {near} {low_who}",
    "The {adjective2} {thing} {near} {low_who} at the {place}",
    "Then the {thing} {near} {low_who}",
]


def _loose_slots(rng: Rng) -> dict[str, str | Piece]:
    day, day2 = rng.choice(DAYS), rng.choice(DAYS)
    spot, place = rng.sample(PLACES, 2)
    return {
        "adverb": rng.choice(ADVERBS), "adjective": rng.choice(ADJECTIVES),
        "adjective2": rng.choice(ADJECTIVES), "material": rng.choice(MATERIALS),
        "day": day, "day2": day2, "spot": spot, "place": place,
    }  # fmt: skip


def _refer(rng: Rng, slots: dict[str, str | Piece], noun: str) -> list[Piece]:
    pronoun = _pronoun(rng, noun)
    slots |= {
        "low": Piece(pronoun, noun),
        "Cap": Piece(pronoun.capitalize(), noun),
        "deed": _deed(noun),
    }
    return _fill(rng.choice(LINKS), slots)


def _both(rng: Rng, pair: tuple[str, str], said: list[Piece]) -> list[Piece]:
    """Now and then one more sentence in which a pronoun stands for each of the two."""
    if rng.random() < 0.5:
        return []
    one, two = rng.sample(pair, 2)
    used = {p.antecedent: p.text.lower() for p in said if p.antecedent}
    low, low2 = (used.get(noun) or _pronoun(rng, noun) for noun in (one, two))
    slots: dict[str, str | Piece] = {
        "one": Piece(low, one), "two": Piece(low2, two), "Cap": Piece(low.capitalize(), one),
        "deed": _deed(one), "deed2": _deed(two),
    }  # fmt: skip
    return _fill(rng.choice([
        "Later {one} {deed} and {two} {deed2}.", "{Cap} {deed} and {two} {deed2}.",
        "{Cap} {deed} because {two} {deed2}.",
    ]), slots)  # fmt: skip


def gender(rng: Rng, second: bool | None = None) -> tuple[list[Piece], tuple[str, str], int]:
    """Two people of different gender, then a pronoun for the first or the second."""
    a, b = _couple(rng)
    gold = int(rng.random() < 0.5 if second is None else second)
    slots = _loose_slots(rng) | {"a": a, "b": b, "did": rng.choice(VERBS_TO_PEOPLE)}
    pieces = _fill(rng.choice(GENDER_OPENINGS), slots)
    pieces += _refer(rng, slots, (a, b)[gold])
    return pieces + _both(rng, (a, b), pieces), (a, b), gold


def animacy(rng: Rng, second: bool | None = None) -> tuple[list[Piece], tuple[str, str], int]:
    """A person and a thing in either order, then a pronoun for the first or the second."""
    thing = rng.choice(list(THING_FATE))
    role = rng.random() < 0.6
    noun = rng.choice(list(ROLE_HABIT)) if role else rng.choice(WOMEN + MEN)
    gold = int(rng.random() < 0.5 if second is None else second)
    slots = _loose_slots(rng) | {
        "thing": thing, "did": rng.choice(VERBS_TO_THINGS), "near": rng.choice(THING_NEAR),
        "who": f"The {noun}" if role else noun, "low_who": f"the {noun}" if role else noun,
    }  # fmt: skip
    first = rng.random() < 0.5
    pieces = _fill(rng.choice(ACTOR_OPENINGS if first else THING_OPENINGS), slots)
    pair = (noun, thing) if first else (thing, noun)
    pieces += _refer(rng, slots, pair[gold])
    return pieces + _both(rng, pair, pieces), pair, gold


def cause(rng: Rng, second: bool | None = None) -> tuple[list[Piece], tuple[str, str], int]:
    """A thing on a surface, "because it was" a trait of one of them."""
    thing, surface = rng.choice(list(THING_FATE)), rng.choice(SURFACES)
    gold = int(rng.random() < 0.5 if second is None else second)
    noun = (thing, surface)[gold]
    slots = _loose_slots(rng) | {
        "thing": thing, "surface": surface, "low": Piece("it", noun),
        "who": "The " + rng.choice(list(ROLE_HABIT)), "material2": rng.choice(MATERIALS),
        "did": rng.choice(["dropped", "put", "placed", "spilled", "lost", "left"]),
    }  # fmt: skip
    if rng.random() < 0.5:
        x, y = rng.sample(ADJECTIVES, 2)
        lead = "The {thing} was {x} and the {surface} was {y}. "
        lead += "{who} {did} the {thing} on the {surface}"
    else:
        x, y = rng.choice(THING_TRAITS), rng.choice(SURFACE_TRAITS)
        lead = rng.choice([
            "{who} {did} the {material} {thing} on the {material2} {surface}",
            "{who} {did} the {thing} on the {surface}",
        ])  # fmt: skip
    slots |= {"x": x, "y": y, "trait": (x, y)[gold]}
    return _fill(lead + " because {low} was {trait}.", slots), (thing, surface), gold


def shopping(rng: Rng) -> list[Piece]:
    """A list of things, said twice."""
    things = _things(rng, rng.randint(2, 5))
    listing = " , ".join(f"a {t}" for t in things[:-1]) + f" and a {things[-1]}"
    a, b = rng.sample(WOMEN + MEN, 2)
    did = rng.choice(VERBS_TO_THINGS)
    return _fill(f"{a} {did} {listing}. {b} also {did} {listing}.", {})


def company(rng: Rng) -> list[Piece]:
    """A list of people, said twice."""
    people = rng.sample(WOMEN + MEN, rng.randint(3, 5))
    listing = ", ".join(people[:-1]) + f" and {people[-1]}"
    one, two = rng.sample(PLACES, 2)
    return _fill(f"{listing} were at the {one}. Later {listing} were at the {two}.", {})


def refrain(rng: Rng) -> list[Piece]:
    """A line of random pairs, sung two or three times."""
    pairs = [
        f"the {rng.choice(ADJECTIVES)} {rng.choice(list(THING_FATE) + PLACES)}"
        for _ in range(rng.randint(1, 4))
    ]
    line = "Sing of " + ", ".join(pairs) + "."
    return _fill(" ".join([line] * rng.randint(2, 3)), {})


def traits(rng: Rng) -> list[Piece]:
    """Traits bound in context, one of them asked for again."""
    n = rng.randint(2, 3)
    things, adjectives = _things(rng, n), rng.sample(ADJECTIVES, n)
    facts = [f"the {t} is {x}" for t, x in zip(things, adjectives, strict=True)]
    lead = ", ".join(facts[:-1]) + f" and {facts[-1]}."
    k = rng.randrange(n)
    who = rng.choice(WOMEN + MEN)
    tail = rng.choice(
        ["{who} likes the {thing} because {low} is {x}.", "{who} likes the {x} {thing}."]
    )
    slots = {"who": who, "thing": things[k], "x": adjectives[k], "low": Piece("it", things[k])}
    return _fill("T" + lead[1:] + " " + tail, slots)


def giving(rng: Rng) -> list[Piece]:
    """Two people, one gives and the other one gets."""
    a, b = rng.sample(WOMEN + MEN, 2)
    giver, getter = (a, b) if rng.random() < 0.5 else (b, a)
    place, thing = rng.choice(PLACES), rng.choice(list(THING_FATE))
    return _fill(f"When {a} and {b} went to the {place}, {giver} gave a {thing} to {getter}.", {})


def plain(rng: Rng) -> list[Piece]:
    """A short fact without a pronoun."""
    slots = _loose_slots(rng)
    who, role, thing = rng.choice(WOMEN + MEN), rng.choice(list(ROLE_HABIT)), _things(rng, 1)[0]
    return _fill(rng.choice([
        "On {day} the {place} was {adjective}.", f"{who} {_deed(who)} {{adverb}}.",
        f"The {role} {_deed(role)} at the {{place}}.", f"The {thing} {_deed(thing)}.",
        f"{who} {_deed(who)} on {{day}}.",
    ]), slots)  # fmt: skip


PLAIN_MAKERS: list[tuple[Callable[[Rng], list[Piece]], float]] = [
    (shopping, 0.06), (company, 0.04), (refrain, 0.06), (traits, 0.06), (giving, 0.05),
    (plain, 0.13),
]  # fmt: skip
COREF_MAKERS = {"gender": gender, "animacy": animacy, "cause": cause}


def passage(rng: Rng) -> list[Piece]:
    """One to three sentences of the language."""
    draw = rng.random()
    for make, share in PLAIN_MAKERS:
        if draw < share:
            return make(rng)
        draw -= share
    kind = "gender" if draw < 0.28 else "animacy" if draw < 0.50 else "cause"
    return COREF_MAKERS[kind](rng)[0]


def story(rng: Rng, n_pieces: int) -> list[Piece]:
    """Passages until at least `n_pieces` pieces are there."""
    pieces: list[Piece] = []
    while len(pieces) < n_pieces:
        pieces.extend(passage(rng))
    return pieces


def coref_items(kind: str, n_items: int, seed: int) -> list[CorefItem]:
    """Items of one kind; the right candidate is the nearest in every second one."""
    rng = Rng(f"{kind}-{seed}")
    items: list[CorefItem] = []
    for index in range(n_items):
        pieces, pair, gold = COREF_MAKERS[kind](rng, second=bool(index % 2))
        spans: list[tuple[int, int]] = []
        end = 0
        for k, piece in enumerate(pieces):
            start = end + (k > 0 and piece.text not in ",.")
            end = start + len(piece.text)
            spans.append((start, end))
        at = next(k for k, piece in enumerate(pieces) if piece.antecedent)
        # The last mention before the pronoun stands for each candidate.
        first, second = (
            max(k for k in range(at) if pieces[k].text == noun) for noun in pair
        )  # fmt: skip
        items.append(CorefItem(join(pieces), spans[at], (spans[first], spans[second]), gold, kind))
    return items
