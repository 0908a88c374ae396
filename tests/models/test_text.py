"""Tokens as people read them, and ids exactly as the tokenizer gives them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, RobertaConfig

import attnscope
from attnscope.errors import CheckpointError, UsageError
from attnscope.models.text import Reader, Tokens, batch_of
from tests import tiny

SENTENCE = "café 東京 🤗\t\n  the  cat \u00a0."


def texts(tokens: Tokens) -> list[str]:
    return [token.text for token in tokens.tokens]


def ids(tokens: Tokens) -> list[int]:
    return [token.id for token in tokens.tokens]


def special(tokens: Tokens) -> list[str]:
    return [token.text for token in tokens.tokens if token.special]


@pytest.fixture(scope="module")
def byte_reader() -> Reader:
    return Reader(tiny.byte_tokenizer())


@pytest.fixture(scope="module")
def bert_reader() -> Reader:
    return Reader(tiny.wordpiece_tokenizer())


@pytest.fixture(scope="module")
def roberta_reader() -> Reader:
    return Reader(roberta_tokenizer())


def roberta_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level, with <s> a </s> </s> b </s> for a pair and no segments."""
    tokenizer = tiny.byte_tokenizer(pad_token="<pad>", sep_token="</s>", cls_token="<s>")
    tokenizer.add_special_tokens({"eos_token": "</s>", "mask_token": "<mask>"})
    inner = tokenizer.backend_tokenizer
    inner.post_processor = processors.RobertaProcessing(
        ("</s>", tokenizer.convert_tokens_to_ids("</s>")), ("<s>", 0), add_prefix_space=False
    )
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tokenizer


def original_bytes(tokens: Tokens) -> bytes:
    """Undo what makes tokens readable; possible for texts without those marks."""
    marks = {"·": " ", "⇥": "\t", "↵": "\n", "⍽": "\u00a0", "␍": "\r"}
    data = b""
    for text in texts(tokens):
        parts = re.split(r"(<[0-9A-F]{2}>|\\x[0-9a-f]{2}|\\u\{[0-9a-f]+\})", text)
        for part in parts:
            if re.fullmatch(r"<[0-9A-F]{2}>", part):
                data += bytes.fromhex(part[1:-1])
            elif part.startswith("\\x"):
                data += chr(int(part[2:], 16)).encode()
            elif part.startswith("\\u{"):
                data += chr(int(part[3:-1], 16)).encode()
            else:
                data += "".join(marks.get(c, c) for c in part).encode()
    return data


def test_byte_level_tokens_are_readable(byte_reader: Reader) -> None:
    read = byte_reader.read(SENTENCE)
    assert ids(read) == byte_reader.tokenizer(SENTENCE)["input_ids"]
    assert len(texts(read)) == len(ids(read))
    assert original_bytes(read).decode() == SENTENCE
    assert "Ġ" not in "".join(texts(read))
    assert "Ã" not in "".join(texts(read))
    assert "·the" in texts(read)
    assert "⇥" in "".join(texts(read))
    assert "↵" in "".join(texts(read))


def test_parts_of_a_character_are_told_apart(byte_reader: Reader) -> None:
    """東 is three tokens here: each shows its own byte, and no two that differ read alike."""
    read = byte_reader.read("東")
    assert texts(read) == ["<E6>", "<9D>", "<B1>"]
    shown = [texts(byte_reader.from_ids([id_]))[0] for id_ in range(byte_reader.size)]
    single = [text for text in shown if len(text) == 4 and text[0] == "<" and text[-1] == ">"]
    assert len(single) == len(set(single)) == 256 - 128  # every byte above ASCII


@settings(max_examples=60, deadline=None)
@given(
    st.text(st.characters(exclude_characters="·⇥↵⍽␍<\\", exclude_categories=("Cs",)), min_size=1)
)
def test_any_text_has_one_label_per_id(text: str) -> None:
    if not text.strip():
        return
    reader = BYTE_READER
    read = reader.read(text)
    assert ids(read) == reader.tokenizer(text)["input_ids"]
    assert [token.index for token in read.tokens] == list(range(len(read)))
    assert all(texts(read))
    assert original_bytes(read).decode() == text


BYTE_READER = Reader(tiny.byte_tokenizer())


def test_ids_stay_exact_in_the_document(byte_reader: Reader) -> None:
    read = byte_reader.read("the cat the cat the")
    document = read.to_json()
    assert [entry["id"] for entry in document] == ids(read)
    assert [entry["text"] for entry in document] == ["the", "·cat", "·the", "·cat", "·the"]
    assert [entry["index"] for entry in document] == [0, 1, 2, 3, 4]
    assert set(document[0]) == {"index", "id", "text", "special"}


def test_sentencepiece_and_unknown_ids() -> None:
    vocabulary = {"<unk>": 0, "<s>": 1, "▁the": 2, "▁": 3, "<0xE6>": 4, "cat": 5}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    reader = Reader(PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>"))
    assert texts(reader.from_ids([1, 2, 3, 4, 5])) == ["<s>", "·the", "·", "<0xE6>", "cat"]
    assert [token.special for token in reader.from_ids([1, 2]).tokens] == [True, False]
    [beyond] = reader.from_ids([999]).tokens
    assert "999" in beyond.text


# Pairs and typed markers


def test_a_pair_for_bert(bert_reader: Reader) -> None:
    first, second = "the cat", "the dog , the floor"
    read = bert_reader.read(first, second)
    theirs = bert_reader.tokenizer(first, second)
    assert ids(read) == theirs["input_ids"]
    assert read.segments == tuple(theirs["token_type_ids"])
    assert 0 in read.segments
    assert 1 in read.segments
    assert special(read) == ["[CLS]", "[SEP]", "[SEP]"]


def test_a_pair_for_roberta(roberta_reader: Reader) -> None:
    read = roberta_reader.read("the cat", "the dog")
    assert ids(read) == roberta_reader.tokenizer("the cat", "the dog")["input_ids"]
    assert special(read) == ["<s>", "</s>", "</s>", "</s>"]
    assert not any(read.segments or ())


def test_markers_typed_in_the_text_are_special(bert_reader: Reader) -> None:
    text = "the [MASK] cat [SEP] the dog"
    read = bert_reader.read(text)
    assert ids(read) == bert_reader.tokenizer(text)["input_ids"]
    assert special(read) == ["[CLS]", "[MASK]", "[SEP]", "[SEP]"]


def test_a_pair_needs_a_tokenizer_that_separates(byte_reader: Reader) -> None:
    with pytest.raises(UsageError, match="--pair"):
        byte_reader.read("the cat", "the dog")


def test_a_pair_through_the_model(checkpoint: Callable[[str], Path]) -> None:
    """The segments reach the network: the numbers are those of tokenizer(a, b)."""
    directory = checkpoint("bert")
    model = attnscope.load(str(directory))
    first, second = "the cat", "the dog , the floor"
    captured = model.capture(first, pair=second)
    encoded = tiny.wordpiece_tokenizer()(first, second, return_tensors="pt")
    theirs = tiny.eager(
        directory, encoded["input_ids"], token_type_ids=encoded["token_type_ids"]
    ).attentions
    blind = tiny.eager(directory, encoded["input_ids"]).attentions
    for layer in range(3):
        assert (captured[layer] - theirs[layer][0]).abs().max() <= 1e-5
    assert (captured[2] - blind[2][0]).abs().max() > 1e-2


def test_a_roberta_reads_a_pair(tmp_path: Path) -> None:
    """Its positions start after the padding id, and it knows one kind of segment only."""
    tokenizer = roberta_tokenizer()
    pad = tokenizer.pad_token_id
    config = RobertaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=pad + 1 + 24, pad_token_id=pad,
        type_vocab_size=1,
    )  # fmt: skip
    directory = tiny.save(config, tmp_path)
    tokenizer.save_pretrained(directory)
    model = attnscope.load(str(directory))
    captured = model.capture("the cat", pair="the dog")
    theirs = tiny.eager(directory, tokenizer("the cat", "the dog", return_tensors="pt").input_ids)
    for layer in range(2):
        assert (captured[layer] - theirs.attentions[layer][0]).abs().max() <= 1e-5


def test_a_roberta_has_fewer_positions_than_its_table(tmp_path: Path) -> None:
    """Two rows of the table (those up to the padding id) are no positions."""
    tokenizer = roberta_tokenizer()
    pad = tokenizer.pad_token_id
    assert pad > 0
    config = RobertaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=4, max_position_embeddings=pad + 1 + 24, pad_token_id=pad,
        type_vocab_size=1,
    )  # fmt: skip
    directory = tiny.save(config, tmp_path)
    tokenizer.save_pretrained(directory)
    model = attnscope.load(str(directory))
    assert len(model.capture("the" + " cat" * 21).tokens) == 24
    with pytest.raises(UsageError, match=r"25 tokens.* 24 positions"):
        model.capture("the" + " cat" * 22)


# BOS


def test_bos_by_default_is_what_the_tokenizer_does(
    byte_reader: Reader, bert_reader: Reader
) -> None:
    assert byte_reader.bos_policy() == {"token": None, "by": "tokenizer"}
    assert bert_reader.bos_policy() == {"token": "[CLS]", "by": "tokenizer"}


def test_bos_by_option() -> None:
    reader = Reader(tiny.byte_tokenizer(), add_bos=True)
    assert texts(reader.read("the cat")) == ["<s>", "the", "·cat"]
    assert reader.bos_policy() == {"token": "<s>", "by": "option"}
    without = Reader(tiny.wordpiece_tokenizer(), add_bos=False)
    read = without.read("the cat", "the dog")
    assert texts(read) == ["the", "cat", "[SEP]", "the", "dog", "[SEP]"]
    assert read.segments == (0, 0, 0, 1, 1, 1)
    assert without.bos_policy() == {"token": None, "by": "option"}


def test_an_unknown_word_is_no_bos() -> None:
    """The policy is what stands before a text, not what becomes of the text it is asked with."""
    inner = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1, "cat": 2}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    reader = Reader(PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]"))
    assert texts(reader.read("the cat")) == ["the", "cat"]
    assert reader.bos_policy()["token"] is None


def test_bos_that_does_not_exist_is_refused() -> None:
    inner = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1}, unk_token="[UNK]"))
    reader = Reader(PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]"), None, True)
    with pytest.raises(UsageError, match="BOS"):
        reader.read("the")


# Length and padding


def test_a_text_that_is_too_long_is_an_error_with_both_counts() -> None:
    reader = Reader(tiny.byte_tokenizer(), max_positions=3)
    with pytest.raises(UsageError, match=r"5 tokens.* 3 positions.*\s.*--truncate"):
        reader.read("the cat the cat the")
    cut = reader.read("the cat the cat the", truncate=True)
    assert texts(cut) == ["the", "·cat", "·the"]
    assert cut.cut == 2


@pytest.mark.parametrize("add_bos", [None, True, False])
def test_truncation_keeps_the_wrapping(add_bos: bool | None) -> None:
    reader = Reader(tiny.wordpiece_tokenizer(), max_positions=5, add_bos=add_bos)
    cut = reader.read("the cat the cat the dog", truncate=True)
    assert len(cut) <= 5
    assert cut.tokens[-1].text == "[SEP]"
    assert (cut.tokens[0].text == "[CLS]") is (add_bos is not False)
    assert len(reader.read("the cat the cat the dog", truncate=True).tokens) + cut.cut == (
        8 if add_bos is not False else 7
    )


@pytest.mark.parametrize("truncation", [None, 4])
def test_padding_and_truncation_stored_with_a_tokenizer_are_not_applied(
    truncation: int | None,
) -> None:
    """sentence-transformers store both in tokenizer.json: a text must not be filled or cut."""
    tokenizer = tiny.wordpiece_tokenizer()
    expected = tokenizer("the cat the cat the")["input_ids"]
    tokenizer.backend_tokenizer.enable_padding(length=16, pad_id=0, pad_token="[PAD]")
    if truncation:
        tokenizer.backend_tokenizer.enable_truncation(truncation)
    assert ids(Reader(tokenizer).read("the cat the cat the")) == expected


def test_texts_side_by_side_are_padded_on_the_right() -> None:
    reader = Reader(tiny.wordpiece_tokenizer())
    short, long = reader.read("the cat ."), reader.read("the cat , the dog")
    batch = batch_of([short, long], pad_id=7)
    assert batch.ids[0].tolist() == [*ids(short), *[7] * (len(long) - len(short))]
    assert batch.valid.sum(-1).tolist() == [len(short), len(long)]
    assert not (batch.special & ~batch.valid).any()
    assert not (batch.punctuation & ~batch.valid).any()
    assert batch.punctuation[0].nonzero().flatten().tolist() == [3]
    assert batch.segments is None
    pair = reader.read("the", "cat")
    assert batch_of([short, pair]).segments.tolist() == [[0] * 5, list(pair.segments)]


# Punctuation


@pytest.mark.parametrize(
    ("text", "marked"),
    [("the cat .", [".", ]), ("the , dog !", [",", "!"]), ("the cat", [])],
)  # fmt: skip
def test_punctuation(text: str, marked: list[str], bert_reader: Reader) -> None:
    read = bert_reader.read(text)
    found = [
        token.text for token, is_mark in zip(read.tokens, read.punctuation, strict=True) if is_mark
    ]
    assert found == marked  # not [CLS], whose brackets are punctuation too


def test_punctuation_with_a_leading_space(byte_reader: Reader) -> None:
    read = byte_reader.read("the , cat")
    assert read.punctuation == (False, True, False)


# Empty input


@pytest.mark.parametrize("text", ["", " ", "\n", "\t \r\n", "\u3000"])
def test_blank_texts_are_refused(text: str, byte_reader: Reader, bert_reader: Reader) -> None:
    for reader in (byte_reader, bert_reader):
        with pytest.raises(UsageError, match="empty"):
            reader.read(text)
    with pytest.raises(UsageError, match="empty"):
        bert_reader.read("the cat", text)


def test_a_text_of_which_nothing_is_left_is_refused() -> None:
    """BERT's normaliser drops control characters: [CLS] [SEP] alone is no text."""
    from tokenizers import normalizers

    tokenizer = tiny.wordpiece_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.BertNormalizer()
    with pytest.raises(UsageError, match="no tokens"):
        Reader(tokenizer).read("\u200b\u0001")


def test_a_surrogate_is_refused(byte_reader: Reader) -> None:
    with pytest.raises(UsageError, match="Unicode"):
        byte_reader.read("caf\udce9")


# Opening


def test_a_damaged_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    with pytest.raises(CheckpointError, match="tokenizer"):
        Reader.open(tmp_path)


def test_added_tokens_read_as_they_were_added() -> None:
    tokenizer = tiny.byte_tokenizer()
    tokenizer.add_tokens([AddedToken("[red]"), AddedToken("<|im_start|>", special=True)])
    read = Reader(tokenizer).read("<|im_start|>the[red]")
    assert texts(read) == ["<|im_start|>", "the", "[red]"]
    assert special(read) == ["<|im_start|>"]


def test_generator_of_ids_is_not_tokenised_again(checkpoint: Callable[[str], Path]) -> None:
    model: Any = attnscope.load(str(checkpoint("gpt2")))
    wanted = torch.arange(5, 25).tolist()
    assert ids(model.capture_ids(wanted).tokens) == wanted
