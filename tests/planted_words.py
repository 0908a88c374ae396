"""The words of the planted checkpoints: vocabulary, tokenizer and codes."""

from __future__ import annotations

import itertools
import string
import unicodedata
from collections.abc import Sequence

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast

UNKNOWN, BOS = "[UNK]", "<s>"
SMALLEST, LARGEST = 2000, 4000
LONG_WORD = 7  # letters; made-up words have six, special tokens fewer
BITS = 6
CODE_WIDTH = 1 << BITS
_FIELD = 0b1000011  # x⁶ + x + 1: counting modulo it makes a field of 64 elements


def vocabulary(texts: Sequence[str], special: Sequence[str]) -> list[str]:
    """Every word and sign of the texts: special tokens, punctuation, then words in order.

    Made-up words fill it up to 2000, so that its middle half holds nothing but words.
    Raises ValueError for more than 4000.
    """
    splitter = pre_tokenizers.BertPreTokenizer()
    found = {piece for text in texts for piece, _ in splitter.pre_tokenize_str(text)}
    signs = sorted({*string.punctuation, *filter(is_punctuation, found)} - {*special})
    words = {piece for piece in found if not is_punctuation(piece)} - {*special}
    made_up = ("".join(syllables) for syllables in itertools.product(_SYLLABLES, repeat=3))
    missing = SMALLEST - len(special) - len(signs) - len(words)
    words |= set(itertools.islice((w for w in made_up if w not in words), max(missing, 0)))
    size = len(special) + len(signs) + len(words)
    if size > LARGEST or (len(special) + len(signs)) * 4 > size:
        raise ValueError(f"{size} tokens, {len(signs)} of them punctuation: too many.")
    return [*special, *signs, *sorted(words)]


_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]


def is_punctuation(piece: str) -> bool:
    """Is this nothing but punctuation?"""
    return all(c in string.punctuation or unicodedata.category(c)[0] == "P" for c in piece)


def is_long(piece: str) -> bool:
    """Is this a long word? About every fifth in English texts, however long they are."""
    return len(piece) >= LONG_WORD


def word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """One token for a word or a punctuation sign; BOS first if it is in the vocabulary."""
    ids = {word: id_ for id_, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if BOS not in ids:
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=UNKNOWN)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, ids[BOS])]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=UNKNOWN, bos_token=BOS)


def codes(n_codes: int) -> Tensor:
    """Vectors of 64 numbers ±1, (n, 64); the product of two is within ±16.

    Dual of a two-error-correcting BCH code: (-1)^(a·x + b·x³) over the field's elements x, with a
    and b the bits of the code's number. Weil's bound holds the sum of any but zero to 16.
    """
    assert n_codes < 1 << 2 * BITS  # number 0, all ones, is left out
    numbers = torch.arange(1, n_codes + 1)
    elements = torch.tensor([x | _times(x, _times(x, x)) << BITS for x in range(CODE_WIDTH)])
    parity = (_bits(numbers) @ _bits(elements).T) % 2  # (n, 64)
    return 1.0 - 2.0 * parity


def _bits(numbers: Tensor) -> Tensor:
    return ((numbers[:, None] >> torch.arange(2 * BITS)) & 1).float()  # (n, 12)


def _times(a: int, b: int) -> int:
    """Product in the field of 64 elements."""
    product = 0
    for bit in range(BITS):
        product ^= (a << bit) if b >> bit & 1 else 0
    for bit in reversed(range(BITS, 2 * BITS)):
        product ^= (_FIELD << bit - BITS) if product >> bit & 1 else 0
    return product
