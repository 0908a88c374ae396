"""From text to token ids and back: readable labels, BOS policy, sentence pairs, batches."""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from attnscope.errors import CheckpointError, UsageError
from attnscope.plain import visible, visible_token
from attnscope.types import Token, TokenBatch

# transformers invents a tokenizer when a checkpoint has none; these are the files that hold one.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
)


@dataclass(frozen=True)
class Tokens:
    """One text as the model reads it. `cut` is how many tokens `--truncate` dropped.

    offsets are the characters [start, end) that each token covers, (0, 0) for one that is not in
    the text; None where the tokenizer cannot tell.
    """

    tokens: tuple[Token, ...]
    punctuation: tuple[bool, ...]
    segments: tuple[int, ...] | None = None
    cut: int = 0
    offsets: tuple[tuple[int, int], ...] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def to_json(self) -> list[dict[str, Any]]:
        """The `tokens` entry of a document."""
        return [
            {"index": t.index, "id": t.id, "text": t.text, "special": t.special}
            for t in self.tokens
        ]


@dataclass
class Reader:
    """A checkpoint's tokenizer, and what its tokens mean to a person."""

    tokenizer: Any
    max_positions: int | None = None
    add_bos: bool | None = None  # None: what the tokenizer does
    vocab_size: int | None = None  # rows of the embedding; a tokenizer may know more tokens
    _pieces: dict[int, str] = field(default_factory=dict)

    @classmethod
    def open(cls, directory: Path) -> Reader:
        """Load the tokenizer of a directory. Raises CheckpointError when there is none."""
        from transformers import AutoTokenizer

        shown = visible(str(directory))
        if not any((directory / name).is_file() for name in TOKENIZER_FILES):
            raise CheckpointError(
                f"{shown} has no tokenizer (none of {', '.join(TOKENIZER_FILES[:4])}). "
                "Name one with --tokenizer."
            )
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                directory, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # damaged files surface as many kinds
            first = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise CheckpointError(
                f"The tokenizer in {shown} cannot be loaded: {visible(first)}"
            ) from error
        return cls(tokenizer)

    @property
    def size(self) -> int:
        """How many tokens the vocabulary has."""
        return min(len(self.tokenizer), self.vocab_size or len(self.tokenizer))

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text: BOS, or [CLS] where the tokenizer has that instead."""
        found = self.tokenizer.bos_token_id
        if found is None:
            found = getattr(self.tokenizer, "cls_token_id", None)
        return None if found is None else int(found)

    def bos_policy(self) -> dict[str, Any]:
        """What stands before a text, and who decided so."""
        first = self.read("a").tokens[0]
        return {
            "token": first.text if first.special else None,
            "by": "tokenizer" if self.add_bos is None else "option",
        }

    def read(
        self, text: str, pair: str | None = None, *, truncate: bool = False, what: str = "text"
    ) -> Tokens:
        """Tokenise one text (or two, joined as the tokenizer joins them).

        Raises UsageError when it is blank, not valid Unicode, or longer than the model's positions
        (which `truncate` allows: the end is cut).
        """
        for part in (text, pair):
            if part is not None and not part.strip():
                raise UsageError(f"The {what} is empty: give at least one word.")
            _check_unicode(part or "", what)
        encoded = self._encode(text, pair, None)
        ids, cut = encoded["input_ids"], 0
        limit = self.max_positions
        if limit is not None and len(ids) > limit:
            if not truncate:
                raise UsageError(
                    f"The {what} has {len(ids)} tokens, the model has {limit} positions. "
                    "Shorten it, or add --truncate to cut it."
                )
            cut = len(ids) - limit
            encoded = self._encode(text, pair, limit)
            ids = encoded["input_ids"]
        special = self._special_ids()
        if all(id_ in special for id_ in ids) and not _names_special(text, self.tokenizer):
            raise UsageError(f"The {what} has no tokens of its own: the tokenizer drops all of it.")
        beyond = next((id_ for id_ in ids if id_ >= (self.vocab_size or id_ + 1)), None)
        if beyond is not None:
            raise CheckpointError(
                f"The tokenizer has a token {visible(self.piece(beyond))!r} ({beyond}), the model "
                f"only {self.vocab_size}: they do not belong together."
            )
        segments = encoded.get("token_type_ids") if pair is not None else None
        read = self.from_ids(ids, segments, cut)
        offsets = encoded.get("offset_mapping")
        return read if offsets is None else replace(read, offsets=tuple(map(tuple, offsets)))

    def from_ids(
        self, ids: Sequence[int], segments: Sequence[int] | None = None, cut: int = 0
    ) -> Tokens:
        """Token ids with what a person reads. Nothing is decoded and tokenised again."""
        special = self._special_ids()
        tokens = tuple(
            Token(index, int(id_), visible_token(self.piece(int(id_))), int(id_) in special)
            for index, id_ in enumerate(ids)
        )
        punctuation = tuple(
            not token.special and _is_punctuation(self.piece(token.id)) for token in tokens
        )
        return Tokens(tokens, punctuation, None if segments is None else tuple(segments), cut)

    def piece(self, id_: int) -> str:
        """The text of one token id; bytes that are no whole character as `<E6>`."""
        if id_ not in self._pieces:
            self._pieces[id_] = self._decode(id_)
        return self._pieces[id_]

    def _encode(self, text: str, pair: str | None, limit: int | None) -> dict[str, list[Any]]:
        room = limit
        if limit is not None and self.add_bos is not None:
            room = limit + self._begins_with_bos() - self.add_bos
        encoded = self.tokenizer(
            text,
            pair,
            truncation=limit is not None,
            max_length=room,
            return_attention_mask=False,
            return_offsets_mapping=self.tokenizer.is_fast,
            verbose=False,
        )
        if pair is not None and not self._separates():
            raise UsageError(
                "This checkpoint's tokenizer has no way to join two texts: --pair cannot be used."
            )
        return self._with_bos({name: list(values) for name, values in encoded.items()})

    def _with_bos(self, encoded: dict[str, list[Any]]) -> dict[str, list[Any]]:
        if self.add_bos is None:
            return encoded
        if self.bos_id is None:
            raise UsageError("This tokenizer has no BOS token: leave --add-bos/--no-add-bos out.")
        begins = encoded["input_ids"][:1] == [self.bos_id]
        if self.add_bos and not begins:
            first: dict[str, Any] = {"input_ids": self.bos_id, "offset_mapping": (0, 0)}
            return {name: [first.get(name, 0), *values] for name, values in encoded.items()}
        if not self.add_bos and begins:
            return {name: values[1:] for name, values in encoded.items()}
        return encoded

    def _begins_with_bos(self) -> bool:
        first = self.tokenizer("a", return_attention_mask=False)["input_ids"][:1]
        return bool(first == [self.bos_id])

    def _separates(self) -> bool:
        one, two = self.tokenizer("a")["input_ids"], self.tokenizer("a", "a")["input_ids"]
        special = self._special_ids()
        return sum(i in special for i in two) > sum(i in special for i in one)

    def _special_ids(self) -> set[int]:
        added = self.tokenizer.added_tokens_decoder
        marked = {int(id_) for id_, token in added.items() if token.special}
        named = {int(id_) for id_ in self.tokenizer.all_special_ids}
        unknown = self.tokenizer.unk_token_id  # stands for a word, unless it has another part too
        others = [self.tokenizer.bos_token_id, self.tokenizer.eos_token_id]
        others += [getattr(self.tokenizer, "pad_token_id", None)]
        return (marked | named) - ({unknown} - set(others))

    def _decode(self, id_: int) -> str:
        added = self.tokenizer.added_tokens_decoder.get(id_)
        if added is not None:
            return str(added.content)
        token = self.tokenizer.convert_ids_to_tokens(id_)
        if token is None:
            return f"<id {id_}>"
        decoder = repr(getattr(self.tokenizer, "backend_tokenizer", self.tokenizer).decoder)
        if "ByteLevel" in decoder:
            return _from_bytes(bytes(_BYTE_OF.get(c, ord(" ")) for c in token))
        return str(token) if "WordPiece" in decoder else str(token).replace("▁", " ")


def batch_of(texts: Sequence[Tokens], pad_id: int = 0) -> TokenBatch:
    """Texts side by side, padded on the right."""
    size = (len(texts), max(len(text) for text in texts))
    ids = torch.full(size, pad_id, dtype=torch.int64)
    valid, special, punctuation = (torch.zeros(size, dtype=torch.bool) for _ in range(3))
    paired = any(text.segments is not None for text in texts)
    segments = torch.zeros(size, dtype=torch.int64) if paired else None
    for row, text in enumerate(texts):
        n = len(text)
        ids[row, :n] = torch.tensor([token.id for token in text.tokens])
        special[row, :n] = torch.tensor([token.special for token in text.tokens])
        punctuation[row, :n] = torch.tensor(text.punctuation)
        valid[row, :n] = True
        if segments is not None and text.segments is not None:
            segments[row, :n] = torch.tensor(text.segments)
    return TokenBatch(ids, valid, special, punctuation, segments)


def _names_special(text: str, tokenizer: Any) -> bool:
    """Did the text itself ask for special tokens, as in `[MASK]`?"""
    return any(str(token) in text for token in tokenizer.all_special_tokens)


def _check_unicode(text: str, what: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"The {what} is not valid Unicode at character {error.start}: save it as UTF-8."
        ) from error


def _is_punctuation(piece: str) -> bool:
    text = piece.strip()
    return bool(text) and all(
        c in string.punctuation or unicodedata.category(c)[0] == "P" for c in text
    )


def _byte_characters() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for.

    Printable bytes stand for themselves, the others for the characters from U+0100 on
    (Radford et al. 2019, the encoder published with GPT-2).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(0x100) if byte not in set(printable))
    return table | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_characters()


def _from_bytes(data: bytes) -> str:
    """UTF-8 text, with each byte that belongs to no whole character written as `<E6>`."""
    text = ""
    while data:
        try:
            return text + data.decode("utf-8")
        except UnicodeDecodeError as error:
            text += data[: error.start].decode("utf-8")
            text += "".join(f"<{byte:02X}>" for byte in data[error.start : error.end])
            data = data[error.end :]
    return text
