"""Pronouns and candidates are found by the patterns that the module explains, and by marks."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from attnscope.errors import UsageError
from attnscope.scoring.mentions import Mentions, find_mentions

FOUND = {
    "The chef dropped the glass bowl on the tile floor because it was slippery.": (
        ["it"],
        ["The chef", "the glass bowl", "the tile floor"],
    ),
    "Mary told Anna's sister that Simon de la Tour had lost his hat.": (
        ["his"],
        ["Mary", "Anna", "sister", "Simon de la Tour", "his hat"],
    ),
    "In May, Will met the tired old man. He was happy.": (
        ["He"],
        ["May", "Will", "the tired old man"],
    ),
    "The cat likes the dog, and it's tired.": (["it"], ["The cat", "the dog"]),
    "The mechanic gave the clerk a present because it was his birthday.": (
        ["it", "his"],
        ["The mechanic", "the clerk", "a present", "his birthday"],
    ),
    "Although they slept, nothing happened.": (["they"], []),
    "Dr. Smith saw Mrs. van der Berg before she left.": (
        ["she"],
        ["Dr. Smith", "Mrs. van der Berg"],
    ),
    "Put the cake in the oven and let it bake.": (["it"], ["the cake", "the oven"]),
    "The trophy didn't fit in the suitcase because it was too big.": (
        ["it"],
        ["The trophy", "the suitcase"],
    ),
    "Anna's older sister said she liked the cat's tail.": (
        ["she"],
        ["Anna", "older sister", "the cat", "tail"],
    ),
    "Cats like milk because it tastes good.": (["it"], ["Cats"]),
    "The CEO of Apple thanked the United States as it rained.": (
        ["it"],
        ["The CEO of Apple", "the United States"],
    ),
    "The 👩‍🍳 chef dropped the 🥣 bowl because it was hot.": (
        ["it"],
        ["The 👩‍🍳 chef", "the 🥣 bowl"],
    ),
    "She dropped the bowl [1] because it was [red]hot[/red] [2].": (["She", "it"], ["the bowl"]),
}


def words(found: Mentions) -> tuple[list[str], list[str]]:
    """What was found, as words of the text."""
    texts = [[found.text[slice(*span)] for span in s] for s in (found.pronouns, found.candidates)]
    return texts[0], texts[1]


@pytest.mark.parametrize("text", FOUND)
def test_patterns(text: str) -> None:
    found = find_mentions(text)
    assert words(found) == FOUND[text]
    assert (found.text, found.how) == (text, "patterns")


def test_marks_decide_and_are_taken_out() -> None:
    found = find_mentions(
        "The {chef} dropped { the bowl } because [it] and he [MASK] left.", "patterns", ["[MASK]"]
    )
    assert found.text == "The chef dropped  the bowl  because it and he [MASK] left."
    assert words(found) == (["it"], ["chef", "the bowl"])
    assert found.how == "marks"


def test_one_kind_of_marks_leaves_the_other_to_be_found() -> None:
    found = find_mentions("Ann saw the dog and [its] ball.")
    assert words(found) == (["its"], ["Ann", "the dog"])
    assert found.how == "marks and patterns"


@pytest.mark.parametrize("text", ["", "[]", "{ }", "[", "]it[", "[\n]", "[it {the"])
def test_what_is_no_mark_stays(text: str) -> None:
    assert find_mentions(text).text == text


@pytest.mark.parametrize(
    "text",
    [
        "{[it]}",
        "The [chef {dropped] the bowl} because [it] was slippery.",
        "{The chef of {the house}} dropped {the bowl} because [it] was slippery.",
        "{The chef} dropped {the bowl because [it] was slippery.",
    ],
)
def test_marks_that_are_not_closed_are_named(text: str) -> None:
    with pytest.raises(UsageError, match="not closed, or lies in another"):
        find_mentions(text)


@given(st.text(max_size=80))
def test_any_text_has_spans_inside_it(text: str) -> None:
    try:
        found = find_mentions(text)
    except UsageError:
        assume(False)
    for start, end in (*found.pronouns, *found.candidates):
        assert 0 <= start < end <= len(found.text)
        assert found.text[start:end].strip() == found.text[start:end]


def test_spacy_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="choose from patterns, spacy"):
        find_mentions("It is.", "spaci")
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(UsageError, match="pip install spacy"):
        find_mentions("It is.", "spacy")
    spacy = SimpleNamespace(util=SimpleNamespace(get_installed_models=lambda: ["de_core"]))
    monkeypatch.setitem(sys.modules, "spacy", spacy)
    with pytest.raises(UsageError, match="English model"):
        find_mentions("It is.", "spacy")


def test_spacy_gives_noun_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    def chunk(start: int, end: int, kind: str) -> SimpleNamespace:
        return SimpleNamespace(start_char=start, end_char=end, root=SimpleNamespace(pos_=kind))

    chunks = [chunk(0, 4, "NOUN"), chunk(10, 12, "PRON")]
    spacy = SimpleNamespace(
        util=SimpleNamespace(get_installed_models=lambda: ["en_core_web_sm"]),
        load=lambda name: lambda text: SimpleNamespace(noun_chunks=chunks),
    )
    monkeypatch.setitem(sys.modules, "spacy", spacy)
    assert words(find_mentions("Cats say: it", "spacy")) == (["it"], ["Cats"])
