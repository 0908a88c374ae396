"""Checkpoints that also see: their text part is inspected, as what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModel

import attnscope
from attnscope.errors import CheckpointError
from tests import tiny
from tests.models.test_parity import T, ids_of

_TEXT: dict[str, Any] = tiny._SIZES | {"num_key_value_heads": 2}
_EYES = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 28, "patch_size": 14,
}  # fmt: skip
_QWEN_EYES = {
    "depth": 1, "hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 24, "num_heads": 2,
    "patch_size": 14,
}  # fmt: skip
_AXES = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}

CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gemma3": (
        {"model_type": "gemma3_text", "head_dim": 8, "sliding_window": 8},
        {**_EYES, "model_type": "siglip_vision_model"},
    ),
    "llava": ({"model_type": "llama"}, {**_EYES, "model_type": "clip_vision_model"}),
    "mistral3": (
        {"model_type": "mistral", "head_dim": 8, "sliding_window": 8},
        {**_EYES, "model_type": "pixtral"},
    ),
    "qwen2_vl": (
        {"model_type": "qwen2_vl_text", **_AXES},
        {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "patch_size": 14},
    ),
    "qwen2_5_vl": ({"model_type": "qwen2_5_vl_text", **_AXES}, _QWEN_EYES),
    "qwen3_vl": (
        {"model_type": "qwen3_vl_text", "head_dim": 8, **_AXES},
        {**_QWEN_EYES, "deepstack_visual_indexes": [0]},
    ),
}


def make(name: str, directory: Path) -> Path:
    text, eyes = CONFIGS[name]
    config = CONFIG_MAPPING[name](text_config=_TEXT | text, vision_config=eyes)
    return tiny.save(config, directory)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_text_part_is_inspected(name: str, tmp_path: Path) -> None:
    directory = make(name, tmp_path)
    model = attnscope.load(str(directory))
    assert model.family == CONFIGS[name][0]["model_type"]
    ids = ids_of(T, 1)
    whole = AutoModel.from_pretrained(directory, attn_implementation="eager").eval()
    with torch.no_grad():
        theirs = whole(input_ids=torch.tensor([ids]), output_attentions=True)
    captured = model.capture_ids(ids)
    for layer, weights in enumerate(theirs.attentions):
        assert (captured[layer] - weights[0]).abs().max() <= 1e-5, layer
    assert model.shape.n_layers == len(theirs.attentions)


def test_its_eyes_are_let_go(tmp_path: Path) -> None:
    model = attnscope.load(str(make("llava", tmp_path)))
    assert not any("vision" in name for name, _ in model.network.named_parameters())


def test_its_logits_are_not_there(tmp_path: Path) -> None:
    directory = make("llava", tmp_path)
    with pytest.raises(CheckpointError):
        attnscope.models.load.load(str(directory), logits=True)
