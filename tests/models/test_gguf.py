"""GGUF files: written here with the gguf package, read back as checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, dequantize, quantize
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

from attnscope.errors import CheckpointError
from attnscope.models import gguf as ours
from attnscope.models.gguf import convert

BYTES = list(bytes_to_unicode().values())
TOKENS = [*BYTES, "ĠĠ", "he", "<|start|>", "<|end|>"]
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny_llama(**changes: Any) -> LlamaForCausalLM:
    """2 layers, 4 query heads over 2 key/value heads of width 8, weights far from default."""
    settings: dict[str, Any] = {
        "vocab_size": len(TOKENS),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    }
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def permute(weight: np.ndarray[Any, Any], n_heads: int) -> np.ndarray[Any, Any]:
    """llama.cpp's order of the rows of W_Q and W_K: the two halves of a head interleaved."""
    halves = weight.reshape(n_heads, 2, -1, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def gguf_name(name: str) -> str:
    for theirs, short in NAMES.items():
        name = name.replace(theirs, short)
    return name.replace("model.layers.", "blk.")


def write(
    path: Path,
    model: LlamaForCausalLM,
    *,
    architecture: str = "llama",
    pre: str | None = "smollm",
    tokenizer: str | None = "gpt2",
    add_bos: bool = False,
    drop: str = "",
    interleave: bool = True,
    as_type: GGMLQuantizationType = GGMLQuantizationType.F32,
    more: Callable[[GGUFWriter], None] = lambda writer: None,
) -> Path:
    """Write the model as llama.cpp's own converter does."""
    config = model.config
    writer = GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(8)
    writer.add_vocab_size(config.vocab_size)
    if tokenizer is not None:
        writer.add_tokenizer_model(tokenizer)
        writer.add_token_list(TOKENS)
        writer.add_token_types([1] * (len(TOKENS) - 2) + [3, 3])
        writer.add_token_merges(["Ġ Ġ", "h e"])
        writer.add_bos_token_id(len(TOKENS) - 2)
        writer.add_eos_token_id(len(TOKENS) - 1)
        writer.add_add_bos_token(add_bos)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    more(writer)
    for name, tensor in model.state_dict().items():
        if name == drop or (name == "lm_head.weight" and config.tie_word_embeddings):
            continue
        weight = tensor.numpy()
        if interleave and ("q_proj" in name or "k_proj" in name):
            heads = "num_attention_heads" if "q_proj" in name else "num_key_value_heads"
            weight = permute(weight, getattr(config, heads))
        kind = as_type if weight.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(gguf_name(name), quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    directory = tmp_path / "converted"
    directory.mkdir()
    return directory


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(torch.arange(40)[None]).logits


@pytest.mark.parametrize("tied", [False, True])
def test_gives_the_model_it_was_made_from(tmp_path: Path, place: Path, tied: bool) -> None:
    model = tiny_llama(tie_word_embeddings=tied)
    convert(write(tmp_path / "tiny.gguf", model), place)
    again = AutoModelForCausalLM.from_pretrained(place)
    torch.testing.assert_close(logits(again), logits(model), rtol=0, atol=1e-6)
    assert ("lm_head.weight" in load_file(place / "model.safetensors")) is not tied


def test_the_order_of_query_and_key_rows_shows(tmp_path: Path, place: Path) -> None:
    """The negative control of the test above: rows written in the other order give other logits."""
    model = tiny_llama()
    convert(write(tmp_path / "tiny.gguf", model, interleave=False), place)
    again = AutoModelForCausalLM.from_pretrained(place)
    assert (logits(again) - logits(model)).abs().max() > 0.1


@pytest.mark.parametrize("name", ["F16", "Q8_0", "Q4_0", "Q4_1"])
def test_quantised_blocks_become_exactly_their_values(
    name: str, tmp_path: Path, place: Path
) -> None:
    model, kind = tiny_llama(), GGMLQuantizationType[name]
    convert(write(tmp_path / "tiny.gguf", model, as_type=kind), place)
    weight = model.model.layers[1].self_attn.v_proj.weight.detach().numpy()
    stored = load_file(place / "model.safetensors")["model.layers.1.self_attn.v_proj.weight"]
    assert stored.dtype == torch.float32
    assert np.array_equal(stored.numpy(), dequantize(quantize(weight, kind), kind))
    assert not np.array_equal(stored.numpy(), weight)


def test_config_keeps_what_matters_and_nothing_of_the_file(tmp_path: Path, place: Path) -> None:
    convert(write(tmp_path / "tiny.gguf", tiny_llama()), place)
    config = json.loads((place / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["rope_parameters"]["rope_theta"] == 100000.0
    assert config["rms_norm_eps"] == pytest.approx(1e-5, rel=1e-6)
    assert (config["num_hidden_layers"], config["num_attention_heads"]) == (2, 4)
    assert config["num_key_value_heads"] == 2
    assert not {"quantization_config", "_model_name_or_path", "_name_or_path"} & set(config)


def test_steps_are_reported_and_the_terminal_stays_clean(
    tmp_path: Path, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    steps: list[tuple[str, int, int]] = []
    convert(write(tmp_path / "tiny.gguf", tiny_llama()), place, lambda *step: steps.append(step))
    assert capfd.readouterr() == ("", "")
    assert steps[0] == ("reading tiny.gguf", 0, 0)
    assert [done for what, done, total in steps if total == 21] == list(range(21))


def test_what_lies_beside_the_file_does_not_matter(tmp_path: Path, place: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "adapter_config.json"):
        (tmp_path / name).write_text('{"model_type": "bert"}')
    convert(write(tmp_path / "tiny.gguf", tiny_llama()), place)
    assert AutoTokenizer.from_pretrained(place)("he").input_ids == [TOKENS.index("he")]


def test_smollm_keeps_digits_from_the_spaces_before_them(tmp_path: Path, place: Path) -> None:
    convert(write(tmp_path / "tiny.gguf", tiny_llama(), pre="smollm"), place)
    tokenizer = AutoTokenizer.from_pretrained(place)
    assert tokenizer.tokenize("he  42") == ["he", "ĠĠ", "4", "2"]
    assert tokenizer("he").input_ids == [TOKENS.index("he")]  # no space, no BOS
    assert tokenizer.decode(tokenizer(" café\t42").input_ids) == " café\t42"
    assert tokenizer.tokenize("he<|end|>") == ["he", "<|end|>"]


def test_gpt2_joins_a_digit_to_the_space_before_it(tmp_path: Path, place: Path) -> None:
    convert(write(tmp_path / "tiny.gguf", tiny_llama(), pre="gpt-2"), place)
    assert AutoTokenizer.from_pretrained(place).tokenize("he  42") == ["he", "Ġ", "Ġ", "4", "2"]


@pytest.mark.parametrize("add_bos", [False, True])
def test_bos_comes_when_the_file_says_so(tmp_path: Path, place: Path, add_bos: bool) -> None:
    convert(write(tmp_path / "tiny.gguf", tiny_llama(), add_bos=add_bos), place)
    ids = AutoTokenizer.from_pretrained(place)("he").input_ids
    assert ids == [TOKENS.index("<|start|>")] * add_bos + [TOKENS.index("he")]


def test_llama3_frequencies_are_restored(tmp_path: Path, place: Path) -> None:
    rope = {"rope_theta": 500000.0, **ours._LLAMA3, "factor": 32.0}
    model = tiny_llama(rope_parameters=rope, max_position_embeddings=131072)
    plain = 500000.0 ** -(np.arange(4) / 4)
    factors = (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
    assert factors.max() == pytest.approx(32.0)
    file = write(
        tmp_path / "tiny.gguf",
        model,
        more=lambda writer: writer.add_tensor("rope_freqs.weight", factors),
    )
    convert(file, place)
    again = AutoModelForCausalLM.from_pretrained(place)
    torch.testing.assert_close(logits(again), logits(model), rtol=0, atol=1e-5)


REFUSED: dict[str, dict[str, Any]] = {
    "holds no tokenizer": {"tokenizer": None, "pre": None},
    "tokenizer.ggml.pre is 'falcon'": {"pre": "falcon"},
    "tokenizer.ggml.pre is None": {"pre": None},
    "type 'rwkv'": {"tokenizer": "rwkv"},
    "architecture 'rwkv7'": {"architecture": "rwkv7"},
    "among them model.layers.1.self_attn.k_proj.weight": {
        "drop": "model.layers.1.self_attn.k_proj.weight"
    },
    "lose its rotary scaling 'linear'": {
        "more": lambda writer: writer.add_string("llama.rope.scaling.type", "linear")
    },
    "lose its window of 16 tokens": {"more": lambda writer: writer.add_sliding_window(16)},
    "lose its scaled rotary frequencies": {
        "more": lambda writer: writer.add_tensor("rope_freqs.weight", np.float32([1, 2, 9, 4]))
    },
}


@pytest.mark.parametrize("what", REFUSED)
def test_refuses_by_name(tmp_path: Path, place: Path, what: str) -> None:
    file = write(tmp_path / "tiny.gguf", tiny_llama(), **REFUSED[what])
    with pytest.raises(CheckpointError) as caught:
        convert(file, place)
    assert what in str(caught.value)
    assert "tiny.gguf" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("kept", [0, 3, 24, 1000, 0.5, 0.999])
def test_a_damaged_file_is_refused(tmp_path: Path, place: Path, kept: float) -> None:
    file = write(tmp_path / "tiny.gguf", tiny_llama())
    whole = file.read_bytes()
    file.write_bytes(whole[: int(kept * len(whole)) if isinstance(kept, float) else kept])
    with pytest.raises(CheckpointError, match=r"tiny\.gguf is not a whole GGUF file"):
        convert(file, place)


def test_a_missing_package_is_named(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match=r"pip install 'attnscope\[gguf\]'"):
        convert(tmp_path / "tiny.gguf", place)


def test_a_full_disk_is_told_before_the_work(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "tiny.gguf", tiny_llama())
    monkeypatch.setattr(ours.shutil, "disk_usage", lambda directory: SimpleNamespace(free=1000))
    with pytest.raises(ours.RunError, match="ATTNSCOPE_CACHE"):
        convert(file, place)
    assert not list(place.iterdir())
