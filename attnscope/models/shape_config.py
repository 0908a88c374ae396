"""A checkpoint's attention shape out of its config.json, with no weights.

What a config leaves out, its class in transformers decides, and importing that takes seconds (it
brings torch). So a file that says everything by itself is read by itself; any other goes through
its class. What counts as everything is a table of model types, each with the keys it must hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from attnscope.errors import CheckpointError
from attnscope.models.config_file import NAMES, ConfigFile, names_of, why_invalid
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
_SIZES = ("n_layers", "n_heads", "d_model")
_GROUPED = (*_SIZES, "num_key_value_heads")
_SLIDING = (*_GROUPED, "head_dim", "sliding_window", "layer_types")
_COUNTED = ("vocab_size", "intermediate_size", "n_inner", "num_local_experts")
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
_KINDS = ("full_attention", "sliding_attention")  # of layers, as `layer_types` has them
_INWARD = ("glm", "glm4", "glm4_moe", "seed_oss")  # attention_bias says nothing of W_O


def shape_from_config(path: Path, name: str) -> AttentionShape:
    """The shape that a config.json describes. Raises CheckpointError where it cannot be told."""
    config = ConfigFile.read(path, name)
    text = config.raw.get("text_config")  # of a model that also sees
    if isinstance(text, dict):
        config = ConfigFile(name, text)
    model_type = str(config.raw.get("model_type", ""))
    if model_type not in SUPPORTED and model_type not in _LATENT:
        raise CheckpointError(
            f"{visible(name)}: the attention of model type {visible(model_type)!r} is not known. "
            "Those that are: `attnscope models list --architectures`, and DeepSeek-V2 and V3."
        )
    if config.flag("use_bidirectional_attention"):
        raise CheckpointError(f"{visible(name)} reads both ways through a window: no report yet.")
    if _is_whole(config, model_type):
        return _shape(config, model_type)
    filled = _filled(config, model_type)
    return _shape(filled, model_type, _assumed(config, filled))


def _is_whole(config: ConfigFile, model_type: str) -> bool:
    needed = _WHOLE.get(model_type)
    return needed is not None and all(config.holds(key) for key in needed)


def _filled(config: ConfigFile, model_type: str) -> ConfigFile:
    """The config through its own class, under the names that all classes answer to."""
    _check_given(config)
    from transformers import AutoConfig

    from attnscope.models.quiet import quiet_transformers

    quiet_transformers()
    raw = config.raw
    given = {key: value for key, value in raw.items() if key not in ("model_type", "auto_map")}
    try:
        made = AutoConfig.for_model(model_type, **given)
    except Exception as error:  # whatever its class makes of a damaged config
        raise CheckpointError(
            f"{visible(config.name)}: its config is not valid ({why_invalid(error, raw)})."
        ) from error
    wanted = {key for keys in (*NAMES.values(), *_WHOLE.values()) for key in keys}
    wanted |= {"multi_query", "is_decoder", "attention_bias"}
    held = {key: getattr(made, key, None) for key in wanted}
    return ConfigFile(
        config.name, {**raw, **{key: value for key, value in held.items() if value is not None}}
    )


def _check_given(config: ConfigFile) -> None:
    """Sizes that the file itself gives, before its class trips over them in words of its own."""
    for key in (*_GROUPED, "head_dim", "positions", *_RANKS, *_COUNTED):
        config.size_or_none(key)
    if config.get("sliding_window") is not None and config.raw.get("sliding_window_pattern") == 0:
        config.size("sliding_window_pattern")


def _assumed(given: ConfigFile, filled: ConfigFile) -> tuple[str, ...]:
    """What only the class decided, and the other numbers of the file do not imply."""
    keys = [*_GROUPED, "head_dim", "sliding_window", *_RANKS]
    if given.holds("multi_query"):
        keys.remove("num_key_value_heads")
    heads, width = filled.get("n_heads"), filled.get("d_model")
    implied = {"num_key_value_heads": heads, "head_dim": width // heads if heads and width else 0}
    found = []
    for key in keys:
        value = filled.get(key)
        if given.get(key) is None and value is not None and value != implied.get(key):
            found.append(names_of(key)[0])
    return tuple(found)


def _shape(config: ConfigFile, model_type: str, assumed: tuple[str, ...] = ()) -> AttentionShape:
    name = config.name
    layers, heads, width = (config.size(key) for key in _SIZES)
    shared = config.size_or_none("num_key_value_heads") or heads
    if model_type == "gpt_bigcode":
        shared = 1 if config.flag("multi_query") else heads
    if heads % shared:
        raise CheckpointError(
            f"{visible(name)}: num_attention_heads {heads} is not a multiple of "
            f"num_key_value_heads {shared}, so query heads cannot share key/value heads evenly."
        )
    latent = _latent(config) if model_type in _LATENT else None
    window, sliding = _windows(config, model_type, layers)
    causal = model_type not in _ENCODERS or config.flag("is_decoder")
    if window is not None and not causal:
        raise CheckpointError(f"{visible(name)} reads both ways through a window: no report yet.")
    qkv_bias, output_bias = _biases(config, model_type)
    shape = AttentionShape(
        name=name,
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=shared,
        d_head=_head_width(config, heads, width) if latent is None else latent.value,
        d_model=width,
        causal=causal,
        window=window,
        sliding_layers=sliding,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        latent=latent,
        positions=config.size_or_none("positions"),
        family=model_type,
        source=f"the config of {name}",
        assumed=tuple(key for key in assumed if key != "sliding_window" or sliding),
    )
    return count_parameters(shape, config)


def _head_width(config: ConfigFile, heads: int, width: int) -> int:
    if config.get("head_dim") is not None:
        return config.size("head_dim")
    if width % heads:
        raise CheckpointError(
            f"{visible(config.name)}: {heads} heads do not divide a hidden size of {width} evenly."
        )
    return width // heads


def _windows(config: ConfigFile, model_type: str, layers: int) -> tuple[int | None, int]:
    """The window, and how many layers have it. Windows may be in the file, and switched off."""
    types = _layer_types(config, layers)
    switched_off = model_type in _HAVE_SWITCH and not config.flag("use_sliding_window")
    if config.get("sliding_window") is None and "sliding_attention" in types and not switched_off:
        raise CheckpointError(
            f"{visible(config.name)}: layer_types has sliding layers, and there is no "
            "sliding_window that says how far they see."
        )
    if config.get("sliding_window") is None or model_type in ("llama", "gemma", *_LATENT):
        return None, 0
    if switched_off:
        return None, 0
    window = config.size("sliding_window")
    if types and model_type not in _NO_SWITCH:
        sliding = types.count("sliding_attention")
    elif model_type in ("qwen2", "qwen3"):
        sliding = max(layers - config.size("max_window_layers"), 0)
    else:
        sliding = layers
    return (window, sliding) if sliding else (None, 0)


def _layer_types(config: ConfigFile, layers: int) -> list[str]:
    """The kind of each layer, where the file lists them; only kinds that can be counted."""
    types = config.get("layer_types")
    if types is None:
        return []
    if not isinstance(types, list):
        raise config.refusal("layer_types", f"a list of {layers} kinds of layers")
    for other in types:
        if other not in _KINDS:
            raise CheckpointError(
                f"{visible(config.name)}: layer_types has layers of type {visible(str(other))}, "
                f"whose memory is not known: only {' and '.join(_KINDS)} are."
            )
    if len(types) != layers:
        raise CheckpointError(
            f"{visible(config.name)}: layer_types is a list of {len(types)}, and "
            f"num_hidden_layers is {layers}: they must agree."
        )
    return types


def _latent(config: ConfigFile) -> Latent:
    return Latent(
        kv_rank=config.size("kv_lora_rank"),
        rope=config.size("qk_rope_head_dim"),
        nope=config.size("qk_nope_head_dim"),
        value=config.size("v_head_dim"),
        q_rank=config.size_or_none("q_lora_rank"),
    )


def _biases(config: ConfigFile, model_type: str) -> tuple[bool, bool]:
    """Whether W_Q, W_K, W_V have biases, and whether W_O has one."""
    if model_type in _BIASED:
        return True, True
    if model_type in ("qwen2", "qwen2_moe"):
        return True, False
    bias = config.flag("attention_bias", model_type == "gpt_oss")
    return bias, bias and model_type not in _INWARD
