"""Tiny random checkpoints: weights so large that every part of attention shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    BertConfig,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

VOCABULARY, POSITIONS = 320, 128
TRAINING_TEXT = [
    "The chef dropped the glass bowl on the tile floor because it was slippery.",
    "the cat the cat the dog , and then she sang a song about the floor .",
]

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


def _llama(**changes: Any) -> LlamaConfig:
    return LlamaConfig(**(_SIZES | changes))


def _gpt2(**changes: Any) -> GPT2Config:
    sizes = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 3, "n_head": 4}
    return GPT2Config(
        **(sizes | {"n_positions": POSITIONS, "bos_token_id": 0, "eos_token_id": 0} | changes)
    )


def _bert(**changes: Any) -> BertConfig:
    return BertConfig(**(_SIZES | {"type_vocab_size": 2} | changes))


CONFIGS: dict[str, Callable[[], Any]] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "gpt2-scaled-by-layer": lambda: _gpt2(scale_attn_by_inverse_layer_idx=True),
    "llama-mha": lambda: _llama(num_key_value_heads=4),
    "llama-gqa": lambda: _llama(num_key_value_heads=2),
    "llama-mqa": lambda: _llama(num_key_value_heads=1),
    "llama-wide-heads": lambda: _llama(num_key_value_heads=2, head_dim=12),
    "llama-biases": lambda: _llama(num_key_value_heads=2, attention_bias=True),
    # Where the angles come from: another base, and every way to stretch them (lengths of 16, so
    # that 40 tokens lie beyond).
    "llama-base": lambda: _llama(rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
    "llama-linear": lambda: _llama(
        rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    ),
    "llama-dynamic": lambda: _llama(
        max_position_embeddings=16,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    ),
    "llama-llama3": lambda: _llama(
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    ),
    "llama-yarn": lambda: _llama(
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 8.0,
            "original_max_position_embeddings": 16,
        }
    ),
    "granite": lambda: GraniteConfig(
        **(
            _SIZES
            | {"num_key_value_heads": 2, "attention_multiplier": 0.6}
            | {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 2.0}
        )
    ),
    "mistral-window": lambda: MistralConfig(
        **(_SIZES | {"num_key_value_heads": 2, "sliding_window": 8, "head_dim": 8})
    ),
    "mistral-open": lambda: MistralConfig(
        **(_SIZES | {"num_key_value_heads": 2, "sliding_window": None, "head_dim": 8})
    ),
    "qwen2": lambda: Qwen2Config(**(_SIZES | {"num_key_value_heads": 2})),
    "qwen2-window-off": lambda: Qwen2Config(
        **(_SIZES | {"num_key_value_heads": 2, "sliding_window": 8, "use_sliding_window": False})
    ),
    "qwen2-window-on": lambda: Qwen2Config(
        **(
            _SIZES
            | {"num_key_value_heads": 2, "sliding_window": 8, "use_sliding_window": True}
            | {"num_hidden_layers": 4, "max_window_layers": 2}
        )
    ),
}


def randomise(network: nn.Module, seed: int = 0, std: float = 0.25) -> nn.Module:
    """Large weights, perturbed norms and biases: default ones hide even a missing rotary."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * std
            norm = "norm" in name.lower() or "ln_" in name
            parameter.copy_(1 + noise if norm and name.endswith("weight") else noise)
    return network.eval()


def save(config: Any, directory: Path, *, seed: int = 0, causal_lm: bool = False) -> Path:
    """A random checkpoint of this config with a tokenizer, as transformers stores it."""
    kind = AutoModelForCausalLM if causal_lm else AutoModel
    network = randomise(kind.from_config(config), seed)
    network.save_pretrained(directory)
    wordpiece = config.model_type == "bert"
    (wordpiece_tokenizer() if wordpiece else byte_tokenizer()).save_pretrained(directory)
    return directory


def byte_tokenizer(**special: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE that encodes any text; it adds no BOS by itself."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **({"bos_token": "<s>", "eos_token": "<s>"} | special)
    )


def wordpiece_tokenizer() -> PreTrainedTokenizerFast:
    """Whole words and single letters, with [CLS] and [SEP] around a text."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = sorted({word for text in TRAINING_TEXT for word in text.lower().split()})
    letters = [*"abcdefghijklmnopqrstuvwxyz.,![]()<>/:"]
    pieces = special + ["[unused1]", "red"] + letters + ["##" + letter for letter in letters]
    vocabulary = {piece: n for n, piece in enumerate(dict.fromkeys(pieces + words))}
    for n in range(len(vocabulary), VOCABULARY):
        vocabulary[f"filler{n}"] = n
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def eager(directory: Path, ids: torch.Tensor, **arguments: Any) -> Any:
    """transformers' own answer: attentions of every layer and the last hidden state."""
    network = AutoModel.from_pretrained(
        directory, attn_implementation="eager", dtype=torch.float32
    ).eval()
    with torch.no_grad():
        output = network(input_ids=ids, output_attentions=True, **arguments)
    assert len(output.attentions) == network.config.num_hidden_layers
    return output
