"""The bundled passages hold what they say, and links are found again among tokens."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import attnscope
from attnscope.models.text import Reader
from attnscope.scoring.passages import (
    Link,
    Passage,
    bundled_passages,
    last_token,
    locate,
    read_battery,
    read_passages,
    unknown_share,
)
from tests import english, tiny
from tests.planted_words import UNKNOWN, word_tokenizer

PRONOUN = re.compile(
    r"\b(he|she|him|her|his|hers|they|them|their|theirs|himself|herself|itself|themselves|it|its)\b",
    re.IGNORECASE,
)
ENTRIES: list[dict[str, Any]] = [
    entry
    for file in files("attnscope.models").joinpath("bundled", "passages").iterdir()
    for entry in json.loads(file.read_text(encoding="utf-8"))
]
CHOICES = [(p, link) for p in bundled_passages() for link in p.links if len(link.candidates) > 1]


# The data


def test_every_file_is_read() -> None:
    assert {p.name for p in bundled_passages()} == {entry["name"] for entry in ENTRIES}
    assert len(bundled_passages()) == len(ENTRIES)
    assert sum(len(p.links) for p in bundled_passages()) == sum(len(e["links"]) for e in ENTRIES)


def test_there_are_enough_of_many_kinds() -> None:
    passages = bundled_passages()
    assert len(passages) >= 48
    assert len({p.name for p in passages}) == len({p.text for p in passages}) == len(passages)
    registers = Counter(p.register for p in passages)
    assert len(registers) >= 6
    assert min(registers.values()) >= 3


@pytest.mark.parametrize("passage", bundled_passages(), ids=lambda passage: passage.name)
def test_a_passage_is_80_to_150_words(passage: Passage) -> None:
    assert 80 <= len(passage.text.split()) <= 150
    assert passage.text == passage.text.strip()
    assert passage.text.isprintable() or "\n" in passage.text
    assert len(passage.links) > 1


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["name"])
def test_the_characters_marked_are_the_words_said(entry: dict[str, Any]) -> None:
    """`says` is what the writer meant: "she: Odile, not Wanjiru"."""
    text = entry["text"]
    for link in entry["links"]:
        pronoun = text[slice(*link["pronoun"])]
        named = [text[slice(*span)] for span in link["candidates"]]
        right = named.pop(link["gold"])
        others = f", not {' or '.join(named)}" if named else ""
        assert link["says"] == f"{pronoun}: {right}{others}"
        assert PRONOUN.fullmatch(pronoun)


@pytest.mark.parametrize("passage", bundled_passages(), ids=lambda passage: passage.name)
def test_links_are_sound(passage: Passage) -> None:
    text = passage.text
    assert len({link.pronoun for link in passage.links}) == len(passage.links)
    for link in passage.links:
        for start, end in (link.pronoun, *link.candidates):
            assert 0 <= start < end <= len(text)
            assert text[start:end] == text[start:end].strip()
            # Whole words: no letter goes on before or behind.
            assert not re.search(r"\w$", text[:start]) or not re.match(r"\w", text[start])
            assert not re.search(r"\w$", text[start:end]) or not re.match(r"\w", text[end:])
        assert all(end <= link.pronoun[0] for _, end in link.candidates)
        assert 0 <= link.gold < len(link.candidates)
        assert len(set(link.candidates)) == len(link.candidates)
        spans = sorted(link.candidates)
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
        named = [text[slice(*span)].lower() for span in link.candidates]
        assert len(set(named)) == len(named)


@pytest.mark.parametrize("passage", bundled_passages(), ids=lambda passage: passage.name)
def test_no_pronoun_is_left_unmarked(passage: Passage) -> None:
    found = {match.span() for match in PRONOUN.finditer(passage.text)}
    assert found == {link.pronoun for link in passage.links}


def test_no_simple_rule_knows_the_answer() -> None:
    assert len(CHOICES) >= 300
    nearest = sum(link.nearest == link.gold for _, link in CHOICES) / len(CHOICES)
    first = sum(min(link.candidates) == link.candidates[link.gold] for _, link in CHOICES)
    listed_first = sum(link.gold == 0 for _, link in CHOICES)
    assert 0.45 <= nearest <= 0.55
    assert 0.45 <= first / len(CHOICES) <= 0.55
    assert 0.45 <= listed_first / len(CHOICES) <= 0.55
    for _, link in CHOICES:
        ends = [end for _, end in link.candidates]
        assert ends[link.nearest] == max(ends)


def test_every_passage_has_choices_to_resample() -> None:
    assert len({passage.name for passage, _ in CHOICES}) == len(bundled_passages())


# Links among tokens


def _uncased() -> PreTrainedTokenizerFast:
    """WordPiece with letters behind, lower case, as BERT's uncased checkpoints have it."""
    letters = [*"abcdefghijklmnopqrstuvwxyz0123456789.,;:!?()[]{}\"'’‘“”#=+-*/_<>%$&–—éè"]
    pieces = [*english.SPECIAL, *letters, *(f"##{letter}" for letter in letters), "the", "she"]
    pieces += ["it", "they", "##ing", "##ed", "##er", "an"]
    tokenizer = Tokenizer(
        models.WordPiece({p: n for n, p in enumerate(dict.fromkeys(pieces))}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def _sentencepiece() -> PreTrainedTokenizerFast:
    """A mark for a space at the head of each word, as Llama's own tokenizers have it."""
    known = [UNKNOWN, "▁", *(f"▁{word}" for word in english.words())]
    tokenizer = Tokenizer(
        models.BPE({p: n for n, p in enumerate(_letters(known))}, [], unk_token=UNKNOWN)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=UNKNOWN)


def _letters(known: list[str]) -> list[str]:
    return list(dict.fromkeys([known[0], *sorted({c for word in known[1:] for c in word})]))


TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "bytes": tiny.byte_tokenizer,
    "wordpiece": tiny.wordpiece_tokenizer,
    "uncased": _uncased,
    "words": lambda: word_tokenizer(english.words(UNKNOWN)),
    "words with BOS": lambda: word_tokenizer(english.words(UNKNOWN, "<s>")),
    "metaspace": _sentencepiece,
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokens_found_cover_the_words(name: str) -> None:
    """The last token of each span: its characters reach the span's end, the next one's do not."""
    reader = Reader(TOKENIZERS[name]())
    for number, passage in enumerate(bundled_passages()):
        tokens = reader.read(passage.text)
        assert tokens.offsets is not None
        for link in passage.links:
            item = locate(number, passage.text, link, tokens)
            assert item is not None
            assert (item.text, item.gold, item.nearest) == (number, link.gold, link.nearest)
            places = (item.pronoun, *item.candidates)
            for place, (start, end) in zip(places, (link.pronoun, *link.candidates), strict=True):
                covered = tokens.offsets[place]
                assert covered[0] < end <= covered[1], (passage.name, passage.text[start:end])
                if place + 1 < len(tokens):
                    assert tokens.offsets[place + 1][0] >= end or tokens.tokens[place + 1].special
                # Going back from there, the whole span is covered, and nothing before its word.
                first = place
                while tokens.offsets[first][0] > start:
                    first -= 1
                assert passage.text[tokens.offsets[first][0] : start].strip() == ""
            assert all(candidate < item.pronoun for candidate in item.candidates)
            for named, span in zip(item.named, link.candidates, strict=True):
                words = set(passage.text[slice(*span)].split()) - {
                    "a",
                    "an",
                    "the",
                    "A",
                    "An",
                    "The",
                }
                counts = [len(passage.text.split(word)) - 1 for word in words]
                assert named == max(counts)


def test_a_span_that_is_not_all_there_is_not_found() -> None:
    tokens = Reader(tiny.byte_tokenizer()).read("the cat sang")
    assert tokens.offsets is not None
    assert last_token(tokens, (4, 7)) is not None
    assert last_token(tokens, (8, 15)) is None  # it goes on behind the last token
    assert last_token(tokens, (13, 15)) is None
    link = Link((8, 12), ((0, 3), (4, 7)), 1)
    assert locate(3, "the cat sang", link, tokens) is not None
    assert locate(3, "the cat sang", Link((20, 22), ((0, 3), (4, 7)), 1), tokens) is None
    assert locate(3, "the cat sang", Link((8, 12), ((0, 3), (20, 21)), 1), tokens) is None


def test_special_tokens_cover_nothing() -> None:
    """Their offsets are (0, 0), which is the first character of the text as well."""
    tokens = Reader(TOKENIZERS["words with BOS"]()).read("She ran.")
    assert tokens.offsets is not None
    assert tokens.offsets[0] == (0, 0)
    assert last_token(tokens, (0, 3)) == 1


def test_links_cut_off_are_counted(checkpoint: Callable[[str], Path]) -> None:
    """The tiny checkpoints have 128 positions: what lies behind them cannot be asked."""
    model = attnscope.load(str(checkpoint("gpt2")))
    battery = read_battery(model)
    assert max(len(text) for text in battery.texts) == 128
    assert len(battery.items) + battery.skipped == len(CHOICES)
    assert 0 < battery.skipped < len(CHOICES)
    left = 0
    for passage, tokens in zip(bundled_passages(), battery.texts, strict=True):
        assert tokens.offsets is not None
        end = max(stop for _, stop in tokens.offsets)
        left += sum(link.pronoun[1] <= end for link in passage.links if len(link.candidates) > 1)
    assert len(battery.items) == left


def test_a_model_that_is_long_enough_loses_no_link(english: Callable[[str], Path]) -> None:
    for name in ("gpt2", "llama", "bert"):
        model = attnscope.load(str(english(name)))
        battery = read_battery(model)
        assert battery.skipped == 0
        assert len(battery.items) == len(CHOICES)
        assert unknown_share(model, battery.texts) == 0
        assert [item.text for item in battery.items] == sorted(item.text for item in battery.items)


def test_links_with_one_candidate_are_no_choice(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    links = [
        {"pronoun": [8, 10], "candidates": [[0, 3]], "gold": 0},
        {"pronoun": [8, 10], "candidates": [[0, 3], [4, 7]], "gold": 1},
    ]
    path.write_text(json.dumps([{"name": "a", "register": "b", "text": "c", "links": links}]))
    [passage] = read_passages(path)
    assert [link.nearest for link in passage.links] == [0, 1]
    assert [len(link.candidates) for link in passage.links] == [1, 2]
