"""A shape out of a config.json: as the loaded and proven model has it, and without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from attnscope.errors import CheckpointError
from attnscope.models.load import load
from attnscope.models.shape_config import shape_from_config
from attnscope.models.shapes import AttentionShape
from tests import tiny

TYPES = [
    *("bert", "bert-causal", "cohere2", "esm", "eurobert", "gemma", "gemma2", "gemma3_text", "glm"),
    *("gpt2", "gpt_bigcode", "gpt_bigcode-mha", "gpt_neox", "gpt_oss", "llama", "llama-biases"),
    *("llama-mqa", "mistral-window", "mistral-open", "mixtral", "nomic_bert", "olmo2", "opt"),
    *("phi", "phi3", "qwen2", "qwen2-window-off", "qwen2-window-on", "qwen3", "qwen3_moe"),
    *("smollm3-window", "starcoder2"),
]
COUNTED = [
    *("gpt2", "gpt_neox", "llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3", "gemma"),
    *("gemma2", "gemma3_text"),
]
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 64,
}

FULL = {"vocab_size": 10, "intermediate_size": 8}
GEMMA = {**LLAMA, "model_type": "gemma3_text", "num_key_value_heads": 2, "head_dim": 16}
COUNTS = ("vocab_size", "intermediate_size", "max_position_embeddings")
POSITIONS = [
    (value, f"toy: max_position_embeddings is {told}, and must be a whole number")
    for value, told in (
        ("2048", "'2048'"),
        (2048.0, "2048.0"),
        (float("nan"), "nan"),
        ([1, 2], r"\[1, 2\]"),
        (-1, "-1"),
        (True, "True"),
    )
]


def read(tmp_path: Path, config: object) -> AttentionShape:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return shape_from_config(path, "toy")


@pytest.mark.parametrize("name", TYPES)
def test_it_is_the_shape_of_the_loaded_model(name: str, checkpoint: Callable[[str], Path]) -> None:
    directory = checkpoint(name)
    shape, model = shape_from_config(directory / "config.json", name), load(str(directory))
    spec = model.specs[0]
    assert shape.n_layers == len(model.specs)
    assert (shape.n_heads, shape.n_kv_heads) == (spec.n_heads, spec.kv_heads)
    assert (shape.d_head, shape.causal) == (spec.head_width, spec.causal)
    windows = Counter(each.window for each in model.specs)
    assert shape.sliding_layers == sum(n for window, n in windows.items() if window is not None)
    assert shape.window == next((window for window in windows if window is not None), None)
    projections = sum(
        parameter.numel()
        for seat in model.seats
        for part, parameter in seat.named_parameters()
        if "norm" not in part and "sink" not in part
    )
    assert shape.attention_parameters == projections


@pytest.mark.parametrize("name", COUNTED)
def test_parameters_are_counted_to_the_last(name: str, tmp_path: Path) -> None:
    config = tiny.CONFIGS[name]()
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config)
    shape = shape_from_config(tmp_path / "config.json", name)
    assert shape.parameters == sum(parameter.numel() for parameter in network.parameters())


def test_parameters_that_cannot_be_told_are_not_guessed(tmp_path: Path) -> None:
    assert read(tmp_path, LLAMA).parameters is None
    told = LLAMA | {"vocab_size": 10, "intermediate_size": 8}
    assert read(tmp_path, told).parameters is not None
    assert read(tmp_path, told | {"mlp_bias": True}).parameters is None


def test_what_a_file_leaves_out_its_class_decides(tmp_path: Path) -> None:
    """As the larger Gemma 3 files do: heads, widths and the pattern of windows are missing."""
    text = {"model_type": "gemma3_text", "num_hidden_layers": 34, "sliding_window": 1024}
    shape = read(tmp_path, {"model_type": "gemma3", "text_config": text | {"hidden_size": 2560}})
    assert (shape.n_heads, shape.n_kv_heads, shape.d_head) == (8, 4, 256)
    assert (shape.window, shape.sliding_layers) == (1024, 29)


def test_latent_attention(tmp_path: Path) -> None:
    ranks = {"kv_lora_rank": 512, "q_lora_rank": None, "qk_rope_head_dim": 64}
    widths = {"qk_nope_head_dim": 128, "v_head_dim": 128, "num_key_value_heads": 4}
    shape = read(tmp_path, {**LLAMA, "model_type": "deepseek_v3", **ranks, **widths})
    assert shape.latent is not None
    assert (shape.kind, shape.latent.kept, shape.d_head) == ("MLA", 576, 128)
    assert shape.parameters is None


@pytest.mark.parametrize(
    ("heads", "found"),
    [({}, 4), ({"num_key_value_heads": None}, 4), ({"num_key_value_heads": 1}, 1)],
)
def test_llama_without_key_value_heads_has_as_many_as_heads(
    heads: dict[str, Any], found: int, tmp_path: Path
) -> None:
    assert read(tmp_path, LLAMA | heads).n_kv_heads == found


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ([], "not an object"),
        ({"model_type": "mamba"}, "'mamba' is not known"),
        ({}, "'' is not known"),
        (LLAMA | {"num_key_value_heads": 3}, "num_attention_heads 4 .* num_key_value_heads 3"),
        (LLAMA | {"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        (LLAMA | {"num_hidden_layers": "2"}, "num_hidden_layers is '2', .* whole number"),
        ({"model_type": "gpt2", "n_layer": 2.0}, "n_layer is 2.0, .* whole number"),
        *((LLAMA | {"max_position_embeddings": value}, told) for value, told in POSITIONS),
        *((LLAMA | {key: -8}, f"{key} is -8, and must be") for key in COUNTS),
        (LLAMA | {"hidden_size": 10**30}, "hidden_size is 10+, and must be at most 1e12"),
        (LLAMA | {"mlp_bias": "no", **FULL}, "mlp_bias is 'no', and must be true or false"),
        (LLAMA | {"attention_bias": 0.0}, "attention_bias is 0.0"),
        (LLAMA | {"layer_types": "full_attention"}, "layer_types is 'full_attention', and must"),
        (LLAMA | {"layer_types": ["full_attention"]}, "a list of 1, and num_hidden_layers is 2"),
        (LLAMA | {"layer_types": ["linear_attention"] * 2}, "type linear_attention"),
        (LLAMA | {"layer_types": [["a"], 3]}, "layer_types has layers of type"),
        (
            {**GEMMA, "sliding_window": None, "layer_types": ["sliding_attention"] * 2},
            "sliding layers, and there is no sliding_window",
        ),
        (
            {**GEMMA, "sliding_window": 8, "sliding_window_pattern": 0},
            "sliding_window_pattern is 0",
        ),
        ({"model_type": "cohere2", "hidden_size": "64"}, "hidden_size is '64'"),
        ({"model_type": "cohere2", "layer_norm_eps": "x"}, r"not valid \(layer_norm_eps is 'x'\)"),
        (LLAMA | {"num_attention_heads": True}, "is True"),
        (LLAMA | {"num_attention_heads": 5}, "5 heads do not divide"),
        (LLAMA | {"head_dim": -1}, "head_dim is -1"),
        (
            LLAMA
            | {"model_type": "cohere2", "sliding_window": 8}
            | {"layer_types": ["linear_attention", "full_attention"]},
            "linear_attention",
        ),
        ({"model_type": "modernbert"}, "through a window"),
        (
            {"model_type": "gemma3_text", "use_bidirectional_attention": True},
            "through a window",
        ),
    ],
)
def test_what_cannot_be_told_is_refused_in_one_line(
    config: object, told: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=told) as refusal:
        read(tmp_path, config)
    assert len(str(refusal.value).splitlines()) == 1


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff{")
    for path in (tmp_path / "config.json", tmp_path, tmp_path / "none.json"):
        with pytest.raises(CheckpointError, match="cannot read"):
            shape_from_config(path, "toy")


def test_what_is_no_config_at_all_is_refused(tmp_path: Path) -> None:
    deep, pipe, large = tmp_path / "deep", tmp_path / "pipe", tmp_path / "large"
    deep.write_text("[" * 200_000)
    os.mkfifo(pipe)
    with large.open("wb") as file:
        file.truncate(60 * 10**6)
    for path, told in (
        (deep, "nested too deeply"),
        (pipe, "no regular file"),
        (Path("/dev/zero"), "no regular file"),
        (large, "60 MB large"),
    ):
        with pytest.raises(CheckpointError, match=told):
            shape_from_config(path, "toy")


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())
    assert shape_from_config(path, "toy").n_heads == 4


@pytest.mark.parametrize(
    ("config", "assumed"),
    [
        (LLAMA, ()),
        (
            {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4},
            ("num_hidden_layers",),
        ),
        (
            {**LLAMA, "model_type": "mistral", "num_key_value_heads": 2},
            ("sliding_window",),
        ),
        ({**GEMMA, "sliding_window": 8, "layer_types": ["full_attention"] * 2}, ()),
        (
            {
                "model_type": "gpt_bigcode",
                "n_layer": 2,
                "n_head": 4,
                "n_embd": 64,
                "multi_query": True,
            },
            (),
        ),
    ],
)
def test_what_transformers_filled_in_is_told(
    config: dict[str, Any], assumed: tuple[str, ...], tmp_path: Path
) -> None:
    assert read(tmp_path, config).assumed == assumed


def test_transformers_says_nothing_of_its_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    read(tmp_path, {"model_type": "gpt_bigcode", "n_embd": 96, "bos_token_id": 10**6})
    assert capfd.readouterr().err == ""


def test_a_file_that_says_everything_needs_no_torch(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    program = (
        "import sys\n"
        "import attnscope\n"
        f"result = attnscope.compare(config={str(path)!r})\n"
        "assert result.rows[0].n_heads == 4\n"
        "result.to_json()\n"
        "assert not {'torch', 'transformers', 'numpy', 'pandas'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
