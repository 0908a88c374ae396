"""Tiny random checkpoints: weights so large that every part of attention shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn
from transformers import (
    CONFIG_MAPPING,
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

from attnscope.models.quiet import quiet_transformers

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


def _named(model_type: str, **sizes: Any) -> Callable[[], Any]:
    return lambda: CONFIG_MAPPING[model_type](**sizes)


def _encoder(model_type: str, **changes: Any) -> Callable[[], Any]:
    return _named(model_type, **(_SIZES | changes))


def _decoder(model_type: str, **changes: Any) -> Callable[[], Any]:
    return _named(model_type, **(_SIZES | {"num_key_value_heads": 2} | changes))


_MASK = {"pad_token_id": 1}  # positions are counted from here on
_WIDE = {"head_dim": 12}  # not d_model / n_heads
_WINDOW = {"sliding_window": 8}
_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ROUTED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_GPT = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": POSITIONS,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
_ROTARY = {"rope_type": "default", "rope_theta": 1e4}
_PARTIAL = {"rope_parameters": {**_ROTARY, "partial_rotary_factor": 0.5}}

# One row for each model type in attnscope/models/supported.py, with what is special about it.
SUPPORTED: dict[str, Callable[[], Any]] = {
    "apertus": _decoder("apertus"),
    "arcee": _decoder("arcee"),
    "aria_text": _decoder("aria_text", moe_num_experts=4, moe_topk=2, moe_num_shared_experts=1),
    "bert": _bert,
    "bert-generation": _encoder("bert-generation"),
    "biogpt": _encoder("biogpt"),
    "camembert": _encoder("camembert", **_MASK),
    "codegen": _named("codegen", **_GPT, rotary_dim=4),
    "cohere": _decoder("cohere", use_qk_norm=True),
    "cohere2": _decoder("cohere2", **_WINDOW, layer_types=_MIXED),
    "ctrl": _named("ctrl", **_GPT, dff=48),
    "cwm": _decoder("cwm", **_WINDOW, **_WIDE),
    "data2vec-text": _encoder("data2vec-text", **_MASK),
    "distilbert": _named(
        "distilbert", vocab_size=VOCABULARY, dim=32, hidden_dim=48, n_heads=4, n_layers=3,
        max_position_embeddings=POSITIONS,
    ),
    "dots1": _decoder("dots1", **_WINDOW, **_ROUTED, layer_types=_MIXED),
    "electra": _encoder("electra", embedding_size=16),
    "ernie": _encoder("ernie"),
    "ernie4_5": _decoder("ernie4_5", **_WIDE),
    "ernie4_5_moe": _decoder("ernie4_5_moe", moe_num_experts=4, moe_k=2, moe_intermediate_size=24),
    "esm": _encoder("esm", position_embedding_type="rotary", token_dropout=False, **_MASK),
    "eurobert": _decoder("eurobert"),
    "exaone4": _decoder("exaone4", **_WINDOW, layer_types=_MIXED),
    "flex_olmo": _decoder("flex_olmo", num_experts=4, num_experts_per_tok=2),
    "gemma": _decoder("gemma", head_dim=12, num_hidden_layers=2),
    "gemma2": _decoder(
        "gemma2", **_WINDOW, **_WIDE, query_pre_attn_scalar=5, attn_logit_softcapping=5.0
    ),
    "gemma3_text": _decoder(
        "gemma3_text", **_WINDOW, head_dim=8, num_hidden_layers=6, query_pre_attn_scalar=40
    ),
    "glm": _decoder("glm", head_dim=8),
    "glm4": _decoder("glm4", head_dim=8),
    "glm4_moe": _decoder("glm4_moe", head_dim=8, use_qk_norm=True, **_ROUTED),
    "gpt2": _gpt2,
    "gpt_bigcode": _named("gpt_bigcode", **_GPT),
    "gpt_neox": _encoder("gpt_neox", **_PARTIAL),
    "gpt_oss": _decoder("gpt_oss", head_dim=8, **_WINDOW, **_LOCAL),
    "gptj": _named("gptj", **_GPT, rotary_dim=4),
    "granite": _decoder("granite", attention_multiplier=0.6),
    "granitemoe": _decoder("granitemoe", attention_multiplier=0.4, **_LOCAL),
    "granitemoeshared": _decoder("granitemoeshared", **_LOCAL, shared_intermediate_size=24),
    "gte": _encoder("gte"),
    "helium": _decoder("helium", head_dim=8),
    "hunyuan_v1_dense": _decoder("hunyuan_v1_dense", head_dim=8),
    "hunyuan_v1_moe": _decoder("hunyuan_v1_moe", head_dim=8, num_experts=4, moe_topk=2),
    "hyperclovax": _decoder("hyperclovax", attention_multiplier=0.7),
    "jais2": _decoder("jais2"),
    "jina_embeddings_v3": _encoder("jina_embeddings_v3", **_MASK),
    "llama": _decoder("llama", **_WIDE),
    "mellum": _decoder("mellum", head_dim=8, **_EXPERTS),
    "minimax_m2": _decoder("minimax_m2", head_dim=8, **_LOCAL),
    "ministral": _decoder("ministral", head_dim=8, **_WINDOW, layer_types=_MIXED),
    "mistral": _decoder("mistral", **_WINDOW, **_WIDE),
    "mixtral": _decoder("mixtral", head_dim=8, **_WINDOW, **_LOCAL),
    "modernbert": _encoder("modernbert", local_attention=8, cls_token_id=0, sep_token_id=0),
    "modernbert-decoder": _encoder(
        "modernbert-decoder", local_attention=8, cls_token_id=0, sep_token_id=0
    ),
    "nanochat": _decoder("nanochat"),
    "nemotron": _decoder("nemotron", **_PARTIAL),
    "nomic_bert": _encoder("nomic_bert"),
    "olmo": _decoder("olmo"),
    "olmo2": _decoder("olmo2"),
    "olmo3": _decoder("olmo3", **_WINDOW, layer_types=_MIXED),
    "olmoe": _decoder("olmoe", num_experts=4, num_experts_per_tok=2),
    "opt": _named(
        "opt", vocab_size=VOCABULARY, hidden_size=32, ffn_dim=48, num_hidden_layers=3,
        num_attention_heads=4, max_position_embeddings=POSITIONS, word_embed_proj_dim=32,
        bos_token_id=0, eos_token_id=0, pad_token_id=1,
    ),
    "persimmon": _encoder("persimmon", **_PARTIAL),
    "phi": _decoder("phi", **_PARTIAL, qk_layernorm=True),
    "phi3": _decoder("phi3", **_WINDOW),
    "phimoe": _decoder("phimoe", **_WINDOW, **_LOCAL),
    "qwen2": _decoder("qwen2"),
    "qwen2_moe": _decoder("qwen2_moe", **_EXPERTS, shared_expert_intermediate_size=24),
    "qwen3": _decoder("qwen3", **_WIDE),
    "qwen3_moe": _decoder("qwen3_moe", head_dim=8, **_EXPERTS),
    "roberta": _encoder("roberta", **_MASK),
    "roberta-prelayernorm": _encoder("roberta-prelayernorm", **_MASK),
    "seed_oss": _decoder("seed_oss", head_dim=8),
    "smollm3": _decoder("smollm3", no_rope_layer_interval=2),
    "solar_open": _decoder("solar_open", head_dim=8, **_ROUTED),
    "stablelm": _decoder("stablelm", **_PARTIAL),
    "starcoder2": _decoder("starcoder2", **_WINDOW),
    "vaultgemma": _decoder("vaultgemma", **_WINDOW, head_dim=8, query_pre_attn_scalar=40),
    "xlm-roberta": _encoder("xlm-roberta", **_MASK),
    "xlm-roberta-xl": _encoder("xlm-roberta-xl", **_MASK),
}  # fmt: skip

# More ways to configure some of them.
VARIANTS: dict[str, Callable[[], Any]] = {
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
    "granite-multipliers": lambda: GraniteConfig(
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

CONFIGS = SUPPORTED | VARIANTS


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
    quiet_transformers()
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
