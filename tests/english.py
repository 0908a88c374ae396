"""Tiny checkpoints that know the words of the bundled passages, so that the battery reads them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import (
    AutoModel,
    BertConfig,
    GPT2Config,
    LlamaConfig,
    PreTrainedTokenizerFast,
)

from attnscope.models.quiet import quiet_transformers
from attnscope.scoring.passages import bundled_passages
from tests import tiny
from tests.planted_words import BOS, UNKNOWN, vocabulary, word_tokenizer

TEXT = "The chef dropped the glass bowl on a tile floor, because it was slippery."
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
POSITIONS = 256


@cache
def words(*special: str) -> list[str]:
    """The vocabulary of the passages and of TEXT."""
    return vocabulary([*(passage.text for passage in bundled_passages()), TEXT], special)


def _gpt2(size: int) -> GPT2Config:
    return GPT2Config(
        vocab_size=size, n_embd=32, n_layer=3, n_head=4, n_positions=POSITIONS,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip


def _llama(size: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=size, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=POSITIONS,
        bos_token_id=1, eos_token_id=None,
    )  # fmt: skip


def _bert(size: int) -> BertConfig:
    return BertConfig(
        vocab_size=size, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, max_position_embeddings=POSITIONS,
    )  # fmt: skip


def _marked_tokenizer(known: list[str]) -> PreTrainedTokenizerFast:
    """One token a word, [CLS] and [SEP] around them."""
    ids = {word: id_ for id_, word in enumerate(known)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        pad_token="[PAD]",
    )  # fmt: skip


CONFIGS: dict[str, Callable[[int], object]] = {"gpt2": _gpt2, "llama": _llama, "bert": _bert}


def save(
    name: str,
    directory: Path,
    *,
    seed: int = 0,
    std: float | None = 0.25,
    change: Callable[[nn.Module], None] | None = None,
) -> Path:
    """A random checkpoint of this architecture; std None leaves its own initialisation.

    `change` may edit the network before it is written.
    """
    quiet_transformers()
    special = {"gpt2": [UNKNOWN], "llama": [UNKNOWN, BOS], "bert": SPECIAL}[name]
    known = words(*special)
    torch.manual_seed(seed)
    network = AutoModel.from_config(CONFIGS[name](len(known)))
    if std is not None:
        tiny.randomise(network, seed, std)
    if change is not None:
        with torch.no_grad():
            change(network)
    network.save_pretrained(directory)
    tokenizer = _marked_tokenizer(known) if name == "bert" else word_tokenizer(known)
    tokenizer.save_pretrained(directory)
    return directory
