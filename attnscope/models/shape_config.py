"""A checkpoint's attention shape out of its config.json, with no weights.

What a config leaves out, its class in transformers decides, and importing that takes seconds (it
brings torch). So a file that says everything by itself is read by itself; any other goes through
its class. What counts as everything is a table of model types, each with the keys it must hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attnscope.errors import CheckpointError
from attnscope.models.parameters import count_parameters
from attnscope.models.shapes import AttentionShape, Latent
from attnscope.models.supported import SUPPORTED
from attnscope.plain import visible

_LATENT = ("deepseek_v2", "deepseek_v3")
_ENCODERS = {
    *("bert", "bert-generation", "camembert", "data2vec-text", "distilbert", "electra", "ernie"),
    *("esm", "eurobert", "gte", "jina_embeddings_v3", "modernbert", "nomic_bert", "roberta"),
    *("roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl"),
}
_NAMES = MappingProxyType(
    {
        "n_layers": ("num_hidden_layers", "n_layer", "n_layers"),
        "n_heads": ("num_attention_heads", "n_head", "n_heads"),
        "d_model": ("hidden_size", "n_embd", "dim"),
        "positions": ("max_position_embeddings", "n_positions"),
    }
)
_SIZES = ("n_layers", "n_heads", "d_model")
_GROUPED = (*_SIZES, "num_key_value_heads")
_SLIDING = (*_GROUPED, "head_dim", "sliding_window", "layer_types")
_RANKS = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
# Files of these types are read by themselves when they hold these keys.
_WHOLE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gpt2": _SIZES,
        "gpt_neox": _SIZES,
        "bert": _SIZES,
        "roberta": _SIZES,
        "distilbert": _SIZES,
        "llama": _SIZES,  # without num_key_value_heads it has as many as heads
        "mistral": (*_GROUPED, "sliding_window"),
        "mixtral": (*_GROUPED, "sliding_window"),
        "phi3": (*_GROUPED, "sliding_window"),
        "qwen2": (*_GROUPED, "use_sliding_window"),
        "qwen3": (*_GROUPED, "head_dim", "use_sliding_window"),
        "qwen3_moe": (*_GROUPED, "head_dim", "use_sliding_window"),
        "gemma": (*_GROUPED, "head_dim"),
        "gemma2": _SLIDING,
        "gemma3_text": _SLIDING,
        "gpt_oss": _SLIDING,
        **dict.fromkeys(_LATENT, (*_SIZES, *_RANKS)),
    }
)
_HAVE_SWITCH = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3")
_NO_SWITCH = ("mistral", "mixtral", "phi3")  # every layer slides, whatever else the file says
_BIASED = {
    *("gpt2", "gpt_neox", "gpt_bigcode", "opt", "biogpt", "ctrl", "phi", "starcoder2"),
    *("persimmon", *_ENCODERS),
} - {"eurobert", "nomic_bert"}
_INWARD = ("glm", "glm4", "glm4_moe", "seed_oss")  # attention_bias says nothing of W_O


def shape_from_config(path: Path, name: str) -> AttentionShape:
    """The shape that a config.json describes. Raises CheckpointError where it cannot be told."""
    raw = _read(path, name)
    text = raw.get("text_config")  # of a model that also sees
    if isinstance(text, dict):
        raw = text
    model_type = str(raw.get("model_type", ""))
    if model_type not in SUPPORTED and model_type not in _LATENT:
        raise CheckpointError(
            f"{visible(name)}: the attention of model type {visible(model_type)!r} is not known. "
            "Those that are: `attnscope models list --architectures`, and DeepSeek-V2 and V3."
        )
    if raw.get("use_bidirectional_attention"):
        raise CheckpointError(f"{visible(name)} reads both ways through a window: no report yet.")
    if not _is_whole(raw, model_type):
        raw = _filled(raw, model_type, name)
    return _shape(raw, model_type, name)


def _read(path: Path, name: str) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(f"{visible(name)}: cannot read its config ({reason}).") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{visible(name)}: its config is not an object.")
    return raw


def _get(raw: Mapping[str, Any], key: str) -> Any:
    return next((raw[n] for n in _NAMES.get(key, (key,)) if raw.get(n) is not None), None)


def _is_whole(raw: Mapping[str, Any], model_type: str) -> bool:
    needed = _WHOLE.get(model_type)
    return needed is not None and all(
        any(name in raw for name in _NAMES.get(key, (key,))) for key in needed
    )


def _filled(raw: dict[str, Any], model_type: str, name: str) -> dict[str, Any]:
    """The config through its own class, under the names that all classes answer to."""
    from transformers import AutoConfig

    given = {key: value for key, value in raw.items() if key not in ("model_type", "auto_map")}
    try:
        config = AutoConfig.for_model(model_type, **given)
    except Exception as error:  # whatever its class makes of a damaged config
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(f"{visible(name)}: its config is not valid ({reason}).") from error
    wanted = {key for keys in (*_NAMES.values(), *_WHOLE.values()) for key in keys}
    wanted |= {"multi_query", "is_decoder", "attention_bias"}
    held = {key: getattr(config, key, None) for key in wanted}
    return {**raw, **{key: value for key, value in held.items() if value is not None}}


def _shape(raw: Mapping[str, Any], model_type: str, name: str) -> AttentionShape:
    layers, heads, width = (_positive(raw, key, name) for key in _SIZES)
    grouped = None if raw.get("num_key_value_heads") is None else "num_key_value_heads"
    shared = heads if grouped is None else _positive(raw, grouped, name)
    if model_type == "gpt_bigcode":
        shared = 1 if raw.get("multi_query") else heads
    if heads % shared:
        raise CheckpointError(
            f"{visible(name)}: num_attention_heads {heads} is not a multiple of "
            f"num_key_value_heads {shared}, so query heads cannot share key/value heads evenly."
        )
    latent = _latent(raw, name) if model_type in _LATENT else None
    window, sliding = _windows(raw, model_type, layers, name)
    causal = model_type not in _ENCODERS or bool(raw.get("is_decoder"))
    if window is not None and not causal:
        raise CheckpointError(f"{visible(name)} reads both ways through a window: no report yet.")
    qkv_bias, output_bias = _biases(raw, model_type)
    shape = AttentionShape(
        name=name,
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=shared,
        d_head=_head_width(raw, heads, width, name) if latent is None else latent.value,
        d_model=width,
        causal=causal,
        window=window,
        sliding_layers=sliding,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        latent=latent,
        positions=_get(raw, "positions"),
        family=model_type,
        source=f"the config of {name}",
    )
    return count_parameters(shape, raw)


def _positive(raw: Mapping[str, Any], key: str, name: str) -> int:
    value = _get(raw, key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        said = "/".join(_NAMES.get(key, (key,))[:2])
        raise CheckpointError(
            f"{visible(name)}: {said} is {visible(repr(value))}, and must be 1 or more."
        )
    return value


def _head_width(raw: Mapping[str, Any], heads: int, width: int, name: str) -> int:
    if raw.get("head_dim") is not None:
        return _positive(raw, "head_dim", name)
    if width % heads:
        raise CheckpointError(
            f"{visible(name)}: {heads} heads do not divide a hidden size of {width} evenly."
        )
    return width // heads


def _windows(
    raw: Mapping[str, Any], model_type: str, layers: int, name: str
) -> tuple[int | None, int]:
    """The window, and how many layers have it. Windows may be in the file, and switched off."""
    if raw.get("sliding_window") is None or model_type in ("llama", "gemma", *_LATENT):
        return None, 0
    if model_type in _HAVE_SWITCH and not raw.get("use_sliding_window"):
        return None, 0
    window = _positive(raw, "sliding_window", name)
    types = raw.get("layer_types")
    if isinstance(types, list) and model_type not in _NO_SWITCH:
        for other in set(map(str, types)) - {"sliding_attention", "full_attention"}:
            raise CheckpointError(
                f"{visible(name)}: layers of type {visible(other)} are not known."
            )
        sliding = types.count("sliding_attention")
    elif model_type in ("qwen2", "qwen3"):
        sliding = max(layers - _positive(raw, "max_window_layers", name), 0)
    else:
        sliding = layers
    return (window, sliding) if sliding else (None, 0)


def _latent(raw: Mapping[str, Any], name: str) -> Latent:
    return Latent(
        kv_rank=_positive(raw, "kv_lora_rank", name),
        rope=_positive(raw, "qk_rope_head_dim", name),
        nope=_positive(raw, "qk_nope_head_dim", name),
        value=_positive(raw, "v_head_dim", name),
        q_rank=None if raw.get("q_lora_rank") is None else _positive(raw, "q_lora_rank", name),
    )


def _biases(raw: Mapping[str, Any], model_type: str) -> tuple[bool, bool]:
    """Whether W_Q, W_K, W_V have biases, and whether W_O has one."""
    if model_type in _BIASED:
        return True, True
    if model_type in ("qwen2", "qwen2_moe"):
        return True, False
    bias = bool(raw.get("attention_bias", model_type == "gpt_oss"))
    return bias, bias and model_type not in _INWARD
