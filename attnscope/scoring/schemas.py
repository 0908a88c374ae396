"""Readers of minimal sentence pairs: WinoBias, and Winogender as sentences or as templates."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from attnscope.errors import UsageError
from attnscope.scoring.mentions import find_candidates, find_pronouns, is_pronoun
from attnscope.scoring.passages import Link, Span
from attnscope.scoring.questions import NOT_FOUND, File, Question, Read

BRACKETS = re.compile(r"\[([^\[\]]+)\]")
_SIDE = re.compile(r"(?<![a-z])(?:pro|anti)(?![a-z])")
_NUMBERED = re.compile(r"^\s*\d+\s+")


def twin_path(path: Path) -> Path | None:
    """The file beside this one that differs by pro and anti in its name, if there is one."""
    side = _SIDE.search(path.name)
    if side is None:
        return None
    other = "anti" if side[0] == "pro" else "pro"
    twin = path.with_name(path.name[: side.start()] + other + path.name[side.end() :])
    return twin if twin.is_file() else None


def read_winobias(files: Sequence[File]) -> Read:
    """WinoBias (Zhao et al. 2018): a numbered sentence a line, "[The cook] ... [she] ...".

    The rival is not marked: it is what other sentences of the files mark and this one has too.
    """
    marked: list[tuple[str, str, str, list[Span]]] = []
    skipped = Counter[str]()
    for file, name, lines in files:
        side = _SIDE.search(file)
        series = _SIDE.sub("", file) if side else ""  # two files without sides are twins too
        variant = side[0] if side else file if len(files) > 1 else ""
        for number, line in lines:
            text, spans = _without_brackets(_NUMBERED.sub("", line))
            if len(spans) < 2:
                raise UsageError(
                    f"{name}, line {number}: WinoBias marks a mention and a pronoun, as in "
                    "1 [The cook] thanked the guest because [she] ..."
                )
            label = _NUMBERED.match(line)
            key = label[0].strip() if label else str(number)
            marked.append((f"{series}:{key}", variant, text, spans))
    nouns = {_noun(text[slice(*span)]) for _, _, text, spans in marked for span in spans}
    nouns = {noun for noun in nouns if noun and not is_pronoun(noun)}
    # Longest first, so that "construction worker" is not read as "worker".
    listed = "|".join(
        re.escape(noun) for noun in sorted(nouns, key=lambda noun: (-len(noun), noun))
    )
    pattern = re.compile(rf"\b(?:(?:the|an?)\s+)?(?:{listed})\b", re.IGNORECASE)
    found = []
    for unit, variant, text, spans in marked:
        names = [span for span in spans if not is_pronoun(text[slice(*span)])]
        pronouns = [span for span in spans if is_pronoun(text[slice(*span)])]
        if not names or not pronouns:
            skipped[NOT_FOUND] += 1
            continue
        gold, pronoun = names[0], pronouns[0]
        others = [match.span() for match in pattern.finditer(text) if match.end() <= pronoun[0]]
        # Where no other sentence marks it, any phrase with an article will do.
        others = _rivals(text, others, gold) or _rivals(text, _phrases(text, pronoun[0]), gold)
        candidates = tuple(sorted([gold, *others]))
        link = Link(pronoun, candidates, candidates.index(gold))
        found.append(Question(f"{variant}{unit}", text, link, unit, variant))
    return found, skipped


def _rivals(text: str, spans: Sequence[Span], gold: Span) -> list[Span]:
    """The first mention of everything else: not of the right one, whose article may be unmarked."""
    named = {_noun(text[slice(*gold)])}
    found = []
    for start, end in spans:
        apart = end <= gold[0] or start >= gold[1]
        if apart and _noun(text[start:end]) not in named:
            named.add(_noun(text[start:end]))
            found.append((start, end))
    return found


def _phrases(text: str, end: int) -> list[Span]:
    found = [span for span in find_candidates(text) if span[1] <= end]
    return [span for span in found if _noun(text[slice(*span)]) != text[slice(*span)].lower()]


def _without_brackets(line: str) -> tuple[str, list[Span]]:
    text, spans, done = "", [], 0
    for mark in BRACKETS.finditer(line):
        text += line[done : mark.start()]
        spans.append((len(text), len(text) + len(mark[1])))
        text += mark[1]
        done = mark.end()
    return text + line[done:], spans


def _noun(mention: str) -> str:
    return re.sub(r"^(?:the|an?)\s+", "", mention.strip(), flags=re.IGNORECASE).lower()


_GENDERS = ("male", "female", "neutral")
_FORMS = {
    "$NOM_PRONOUN": ("he", "she", "they"),
    "$POSS_PRONOUN": ("his", "her", "their"),
    "$ACC_PRONOUN": ("him", "her", "them"),
}


def read_winogender(files: Sequence[File]) -> Read:
    """Winogender (Rudinger et al. 2018): its sentences, or the templates that they are made from.

    A sentence's id is occupation.participant.answer.gender; answer 0 is the occupation.
    """
    found, skipped = [], Counter[str]()
    for _, name, lines in files:
        for number, line in lines:
            cells = [cell.strip() for cell in line.split("\t")]
            if cells[0] in ("sentid", "occupation(0)"):
                continue
            for sentence_id, text in _sentences(cells, f"{name}, line {number}"):
                occupation, participant, answer, gender = sentence_id
                spans = [_mention(text, noun) for noun in (occupation, participant)]
                pronouns = find_pronouns(text)
                if None in spans or not pronouns:
                    skipped[NOT_FOUND] += 1
                    continue
                candidates = tuple(span for span in spans if span is not None)
                link = Link(pronouns[0], candidates, int(answer))
                unit = ".".join(sentence_id[:3])
                found.append(Question(f"{unit}.{gender}", text, link, unit, gender))
    return found, skipped


def _sentences(cells: list[str], where: str) -> list[tuple[tuple[str, str, str, str], str]]:
    """The ids and sentences of a line: one, or six where it is a template."""
    parts = cells[0].removesuffix(".txt").split(".")
    if len(cells) == 2 and len(parts) == 4 and parts[2] in ("0", "1"):
        return [((parts[0], parts[1], parts[2], parts[3]), cells[1])]
    if len(cells) != 4 or cells[2] not in ("0", "1") or "$OCCUPATION" not in cells[3]:
        raise UsageError(
            f"{where}: Winogender has lines sentid, sentence, or occupation, participant, answer, "
            "template, with tabs between."
        )
    occupation, participant, answer, template = cells
    made = []
    for other in (participant, "someone"):
        text = template.replace("$OCCUPATION", occupation)
        if other == "someone":
            text = re.sub(r"\b(?:[Tt]he|[Aa]n?) \$PARTICIPANT", "$PARTICIPANT", text)
        text = text.replace("$PARTICIPANT", other)
        text = text[:1].upper() + text[1:]
        for n, gender in enumerate(_GENDERS):
            filled = text
            for slot, forms in _FORMS.items():
                filled = filled.replace(slot, forms[n])
            made.append(((occupation, other, answer, gender), filled))
    return made


def _mention(text: str, noun: str) -> Span | None:
    match = re.search(rf"\b(?:(?:the|an?)\s+)?{re.escape(noun)}\b", text, re.IGNORECASE)
    return None if match is None else match.span()
