"""How many parameters a model has, exactly, from its config; only for types whose parts we know."""

from __future__ import annotations

from dataclasses import replace

from attnscope.models.config_file import ConfigFile
from attnscope.models.shapes import AttentionShape

# Norms of a layer, in units of (d_model, d_head).
_NORMS = {
    "llama": (2, 0),
    "mistral": (2, 0),
    "mixtral": (2, 0),
    "phi3": (2, 0),
    "qwen2": (2, 0),
    "qwen3": (2, 2),
    "gemma": (2, 0),
    "gemma2": (4, 0),
    "gemma3_text": (4, 2),
}
_TIED = ("gemma", "gemma2", "gemma3_text")  # unless the config says otherwise


def count_parameters(shape: AttentionShape, config: ConfigFile) -> AttentionShape:
    """The shape with its `parameters`, where they can be told from the config.

    Raises CheckpointError for sizes that no model has.
    """
    vocabulary, inner, gpt2_inner = (
        config.size_or_none(key) for key in ("vocab_size", "intermediate_size", "n_inner")
    )
    if shape.family == "gpt2" and vocabulary and shape.positions:
        inner = gpt2_inner or 4 * shape.d_model
        embeddings = (vocabulary + shape.positions) * shape.d_model
        return replace(shape, parameters=embeddings + _plain_layers(shape, inner))
    if shape.family == "gpt_neox" and vocabulary and inner:
        copies = 1 if config.flag("tie_word_embeddings") else 2
        embeddings = copies * vocabulary * shape.d_model
        return replace(shape, parameters=embeddings + _plain_layers(shape, inner))
    if shape.family in _NORMS and vocabulary and inner and not config.flag("mlp_bias"):
        tied = config.flag("tie_word_embeddings", shape.family in _TIED)
        embeddings = (1 if tied else 2) * vocabulary * shape.d_model
        return replace(shape, parameters=embeddings + _gated_layers(shape, inner, config))
    return shape


def _plain_layers(shape: AttentionShape, inner: int) -> int:
    """Layers of attention, two projections with biases, two norms with biases; a last norm."""
    width = shape.d_model
    each = 2 * width * inner + inner + width + 4 * width
    return shape.attention_parameters + shape.n_layers * each + 2 * width


def _gated_layers(shape: AttentionShape, inner: int, config: ConfigFile) -> int:
    """Layers of attention, three projections (of each expert, with a router), and norms."""
    width, (norms, head_norms) = shape.d_model, _NORMS[shape.family]
    each = 3 * width * inner
    if shape.family == "mixtral":
        experts = config.size_or_none("num_local_experts") or 8
        each = experts * (each + width)
    each += norms * width + head_norms * shape.d_head
    return shape.attention_parameters + shape.n_layers * each + width
