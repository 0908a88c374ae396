"""The planted heads do what they are said to do: their weights, by plain loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

import attnscope
from attnscope.api import Capture, Model
from attnscope.types import Head
from tests import planted, planted_words, tiny

STORY = (
    "The keeper of the lighthouse had had a long night. The wind, which rose before the storm, "
    "pushed the waves over the rocks; the lamp flickered, but it did not go out. \"Who would sail "
    "in this weather?\" he asked the dog, and the dog, who had no answer, looked at the door. "
    "Then someone knocked, once, twice, and a voice called his name: the voice of his sister, who "
    "lived far away, beyond the bay, in a town that he had not seen for ten years. The keeper of "
    "the lighthouse opened the door. His sister came in, wet and laughing, and she told him that "
    "her boat had lost its mast near the harbour, that three men had rowed her to the shore, and "
    "that all of them were safe. They made tea; they sat by the fire; they talked of the house "
    "where they were born, of their father's clock (it never struck twelve), and of the summer "
    "when the river froze. Outside, the storm went on until morning."
)  # fmt: skip
TEXTS = [
    STORY,
    "\"Stop!\" she said, and then, more quietly, \"stop, please: the cat is asleep.\"",
    "very very long roads go on and on and on past very old farms",
    "Trains leave at noon.",
    "farms",
]  # fmt: skip
NAMES = ("gpt2", "llama")
WRITE = {"gpt2": planted.planted_gpt2, "llama": planted.planted_llama}
EVEN = ("punctuation", "long words", "uniform")  # over all of their targets


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {name: tmp_path_factory.mktemp(f"planted-{name}") for name in NAMES}
    for name, directory in made.items():
        assert WRITE[name](directory, TEXTS) == planted.labels()
    return made


@pytest.fixture(scope="module")
def models(directories: dict[str, Path]) -> dict[str, Model]:
    return {name: attnscope.load(str(directory)) for name, directory in directories.items()}


class Row:
    """What one query sees: the keys up to itself, by their ids and what they are."""

    def __init__(self, captured: Capture, query: int) -> None:
        tokens = captured.tokens.tokens[: query + 1]
        self.query, self.visible = query, range(query + 1)
        self.copies = [t.index for t in tokens[:-1] if t.id == tokens[-1].id]
        self.punctuation = [key for key in self.visible if captured.tokens.punctuation[key]]
        self.long_words = [t.index for t in tokens[1:] if planted_words.is_long(t.text)]


# Where each head must look, by its name in HEADS; [] where that is left open.
TARGETS: dict[str, Callable[[Row], Sequence[int]]] = {
    "previous": lambda row: [row.query - 1],
    "two back": lambda row: [row.query - 2] if row.query > 1 else [],
    "copy or itself": lambda row: row.copies or [row.query],
    "seven back": lambda row: [row.query - 7] if row.query > 7 else [],
    "punctuation": lambda row: [0] if row.punctuation[:1] == [0] else row.punctuation or [0],
    "long words": lambda row: row.long_words or row.visible[1:],
    "induction": lambda row: [key + 1 for key in row.copies] or [0],
    "induction or long words": lambda row: [key + 1 for key in row.copies] or row.long_words,
    "copy": lambda row: row.copies or [0],
    "itself": lambda row: [row.query],
    "first": lambda row: [0],
    "uniform": lambda row: row.visible,
}


def check(captured: Capture) -> None:
    """Every row of every head, the first one apart: it has nowhere else to look."""
    for head, weights in captured.heads():
        name = planted.HEADS[head.layer][head.head].name
        for query in range(1, len(captured.tokens)):
            targets = TARGETS[name](Row(captured, query))
            found = [float(weights[query, key]) for key in targets]
            if targets:
                assert sum(found) > 0.998, f"{name}, row {query}: {sum(found)}"
            if name in EVEN:
                even = 1 / len(targets)
                assert all(abs(w - even) < 0.01 * even for w in found), f"{name}, row {query}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", TEXTS, ids=["story", "quote", "doubled", "short", "one"])
def test_texts(name: str, text: str, models: dict[str, Model]) -> None:
    captured = models[name].capture(text)
    texts = [token.text for token in captured.tokens.tokens]
    assert planted_words.UNKNOWN not in texts
    assert (texts[0] == planted_words.BOS) == (name == "llama")
    check(captured)


def test_the_story_is_long_enough(models: dict[str, Model]) -> None:
    assert len(models["gpt2"].capture(STORY).tokens) > 200


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("length", "repeats"), [(50, 2), (125, 2), (20, 5), (250, 1)])
def test_repeated_random_tokens(
    name: str, length: int, repeats: int, models: dict[str, Model]
) -> None:
    """As the battery makes them; in GPT-2 the first token is a word, and is repeated too."""
    model = models[name]
    size = model.shape.vocab_size
    generator = torch.Generator().manual_seed(length)
    drawn = size // 4 + torch.randperm(size // 2, generator=generator)[:length]
    bos = [] if model.reader.bos_id is None else [model.reader.bos_id]
    check(model.capture_ids([*bos, *drawn.repeat(repeats).tolist()]))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_words", [1, 2, 10])
def test_few_words_over_and_over(name: str, n_words: int, models: dict[str, Model]) -> None:
    model = models[name]
    bos = [] if model.reader.bos_id is None else [model.reader.bos_id]
    generator = torch.Generator().manual_seed(n_words)
    words = 701 + torch.randint(n_words, (100,), generator=generator)
    check(model.capture_ids([*bos, *words.tolist()]))


@pytest.mark.parametrize("name", NAMES)
def test_transformers_says_the_same(
    name: str, models: dict[str, Model], directories: dict[str, Path]
) -> None:
    captured = models[name].capture(STORY)
    ids = torch.tensor([[token.id for token in captured.tokens.tokens]])
    theirs = tiny.eager(directories[name], ids).attentions
    assert models[name].parity.failure is None
    for layer, weights in enumerate(theirs):
        assert (captured[layer] - weights[0]).abs().max() < 2e-4  # scores reach 500


def test_every_head_has_its_place(models: dict[str, Model]) -> None:
    shape = models["llama"].shape
    assert (shape.n_layers, shape.n_heads, shape.kind) == (2, 6, "GQA")
    assert models["gpt2"].shape.kind == "MHA"
    for layer, heads in enumerate(planted.HEADS):
        for head in heads:
            assert head.name in TARGETS
        for group in range(0, len(heads), planted.KV_GROUP):
            assert len({head.key for head in heads[group : group + planted.KV_GROUP]}) == 1
        assert len(heads) == shape.n_heads
        assert all(Head(layer, n) in planted.labels() for n in range(shape.n_heads))


@pytest.mark.parametrize("name", NAMES)
def test_the_middle_of_the_vocabulary_is_words(name: str, models: dict[str, Model]) -> None:
    reader, size = models[name].reader, models[name].shape.vocab_size
    assert size == planted_words.SMALLEST
    middle = [reader.piece(id_) for id_ in range(size // 4, size - size // 4)]
    assert all(piece.isalpha() for piece in middle)
    assert len({reader.piece(id_) for id_ in range(size)}) == size


def test_codes_are_told_apart() -> None:
    codes = planted_words.codes(planted_words.LARGEST)
    assert (codes.abs() == 1).all()
    products = codes @ codes.T
    assert (products.diagonal() == 64).all()
    assert (products - 64 * torch.eye(len(codes))).abs().max() == 16


def test_clocks_tell_every_two_places_apart() -> None:
    apart = torch.arange(1, planted.POSITIONS)[:, None]
    agreement = (apart * planted.SPEEDS).cos().mean(-1)
    assert agreement.argmax() == 0  # neighbours
    assert agreement.max() < 0.759
    assert agreement.min() > -0.882


def test_too_many_words_are_refused() -> None:
    with pytest.raises(ValueError, match="too many"):
        planted_words.vocabulary([" ".join(f"word{n}" for n in range(5000))], [])
