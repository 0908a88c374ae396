"""What a checkpoint may hold and how it may be damaged: right numbers, or a refusal by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AlbertConfig,
    AutoModel,
    BloomConfig,
    DeepseekV2Config,
    FalconConfig,
    Ministral3Config,
    OlmoConfig,
    T5Config,
)

import attnscope
from attnscope.api import Model
from attnscope.errors import CheckpointError, UsageError
from tests import tiny

Checkpoint = Callable[[str], Path]
T = 40


def ids_of(length: int = T, seed: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, tiny.VOCABULARY, (length,), generator=generator).tolist()


def weights(directory: Path | Model, ids: list[int] | None = None) -> Tensor:
    """Every layer's weights over some ids, (L, H, T, T), as attnscope gives them."""
    model = attnscope.load(str(directory)) if isinstance(directory, Path) else directory
    captured = model.capture_ids(ids or ids_of())
    return torch.stack([captured[layer] for layer in range(model.shape.n_layers)])


def oracle(directory: Path, ids: list[int] | None = None) -> Tensor:
    """The same from transformers."""
    return torch.cat(tiny.eager(directory, torch.tensor([ids or ids_of()])).attentions)


def copy(source: Path, to: Path, drop: tuple[str, ...] = (), **changes: Any) -> Path:
    """A copy of a checkpoint with its config.json edited by hand, as older files have it."""
    shutil.copytree(source, to)
    config = json.loads((to / "config.json").read_text())
    for key in drop:
        del config[key]
    (to / "config.json").write_text(json.dumps(config | changes))
    return to


def same(first: Tensor, second: Tensor) -> None:
    assert first.shape == second.shape
    assert (first - second).abs().max() <= 1e-5


# Rotary embedding: what older files say


@pytest.mark.parametrize(
    ("modern", "flat"),
    [
        ("llama-base", {"rope_theta": 5e5}),
        ("llama-linear", {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 4.0}}),
        ("llama-dynamic", {"rope_scaling": {"type": "dynamic", "factor": 4.0}}),
    ],
)
def test_flat_rotary_settings_of_older_files(
    modern: str, flat: dict[str, Any], checkpoint: Checkpoint, tmp_path: Path
) -> None:
    old = copy(checkpoint(modern), tmp_path / "old", drop=("rope_parameters",), **flat)
    found = weights(old)
    same(found, oracle(old))
    same(found, weights(checkpoint(modern)))
    plain = copy(checkpoint(modern), tmp_path / "plain", drop=("rope_parameters",))
    assert (weights(plain) - found).abs().max() > 0.1  # the fallback would be far off


@pytest.mark.parametrize("length", [12, 30])
def test_dynamic_scaling_does_not_remember_a_longer_text(
    length: int, checkpoint: Checkpoint
) -> None:
    """The angles of a text depend on its length, and on nothing that was read before it."""
    model = attnscope.load(str(checkpoint("llama-dynamic")))
    weights(model, ids_of(T))
    ids = ids_of(length)
    same(weights(model, ids), oracle(checkpoint("llama-dynamic"), ids))


# Scale and heads


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama-gqa"])
def test_scores_are_divided_by_the_root_of_the_head_width(
    name: str, checkpoint: Checkpoint
) -> None:
    model = attnscope.load(str(checkpoint(name)))
    assert [spec.scaling for spec in model.specs] == [pytest.approx(8**-0.5)] * 3


def test_granite_scales_by_its_own_number(checkpoint: Checkpoint) -> None:
    model = attnscope.load(str(checkpoint("granite-multipliers")))
    assert [spec.scaling for spec in model.specs] == [0.6] * 3


@pytest.mark.parametrize(("name", "groups"), [("llama-gqa", 2), ("llama-mqa", 1)])
def test_grouped_heads_equal_their_mha_twin(
    name: str, groups: int, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    twin = copy(checkpoint(name), tmp_path / "twin", num_key_value_heads=4)
    tensors = load_file(twin / "model.safetensors")
    for key, tensor in tensors.items():
        if "k_proj" in key or "v_proj" in key:
            heads = tensor.view(groups, 8, 32)  # (G, D, C)
            tensors[key] = heads.repeat_interleave(4 // groups, 0).reshape(32, 32).contiguous()
    save_file(tensors, twin / "model.safetensors", metadata={"format": "pt"})
    grouped = attnscope.load(str(checkpoint(name)))
    shared = 4 // groups
    assert [grouped.specs[0].kv_head(h) for h in range(4)] == [h // shared for h in range(4)]
    same(weights(grouped), weights(twin))


@pytest.mark.parametrize(
    ("shared", "stored", "kind"),
    [(4, "llama-mha", "MHA"), (1, "llama-mqa", "MQA"), (None, "llama-mha", "MHA"),
     ("absent", "llama-mha", "MHA")],
)  # fmt: skip
def test_odd_key_value_counts(
    shared: object, stored: str, kind: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    drop = ("num_key_value_heads",) if shared == "absent" else ()
    changes = {} if shared == "absent" else {"num_key_value_heads": shared}
    directory = copy(checkpoint(stored), tmp_path / "it", drop, head_dim=None, **changes)
    model = attnscope.load(str(directory))
    assert model.shape.kind == kind
    same(weights(model), oracle(directory))


@pytest.mark.parametrize("shared", [3, 8, 0])
def test_key_value_heads_that_do_not_divide_are_refused_by_number(
    shared: int, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    directory = copy(checkpoint("llama-mha"), tmp_path / "it", num_key_value_heads=shared)
    with pytest.raises(CheckpointError) as caught:
        attnscope.load(str(directory))
    assert "num_attention_heads 4" in str(caught.value)
    assert f"num_key_value_heads {shared}" in " ".join(str(caught.value).split())


# Masks and modes


def test_a_causal_model_looks_back_only(checkpoint: Checkpoint) -> None:
    found = weights(checkpoint("llama-gqa"))
    later = torch.ones(T, T, dtype=torch.bool).triu(1)
    assert not found[..., later].any()
    assert (found.sum(-1) - 1).abs().max() <= 1e-6
    assert (found >= 0).all()


def test_dropout_of_the_config_is_not_applied(checkpoint: Checkpoint, tmp_path: Path) -> None:
    directory = copy(
        checkpoint("gpt2"), tmp_path / "it", attn_pdrop=0.1, resid_pdrop=0.1, embd_pdrop=0.1
    )
    model = attnscope.load(str(directory))
    first, second = weights(model), weights(model)
    assert torch.equal(first, second)
    same(first, oracle(directory))


@pytest.mark.parametrize(
    ("name", "changes", "causal"),
    [("llama-gqa", {"is_causal": False}, False), ("bert", {"is_decoder": True}, True)],
)
def test_causality_is_what_the_network_does(
    name: str, changes: dict[str, Any], causal: bool, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    directory = copy(checkpoint(name), tmp_path / "it", **changes)
    model = attnscope.load(str(directory))
    found, theirs = weights(model), oracle(directory)
    assert bool(theirs.triu(1).any()) is not causal
    assert model.shape.causal is causal
    same(found, theirs)


@pytest.mark.parametrize("key", ["_attn_implementation", "attn_implementation"])
@pytest.mark.parametrize("named", ["flash_attention_2", "sdpa"])
def test_an_attention_backend_in_the_config_changes_nothing(
    key: str, named: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    directory = copy(checkpoint("llama-gqa"), tmp_path / "it", **{key: named})
    assert torch.equal(weights(directory), weights(checkpoint("llama-gqa")))


# Damage


@pytest.fixture(scope="module")
def sharded(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """llama-gqa in several files with an index."""
    directory = tmp_path_factory.mktemp("sharded") / "it"
    source = checkpoint("llama-gqa")
    shutil.copytree(source, directory)
    (directory / "model.safetensors").unlink()
    AutoModel.from_pretrained(source).save_pretrained(directory, max_shard_size="20KB")
    assert len(list(directory.glob("model-*-of-*.safetensors"))) >= 3
    return directory


def test_shards_are_one_checkpoint(sharded: Path, checkpoint: Checkpoint) -> None:
    assert torch.equal(weights(sharded), weights(checkpoint("llama-gqa")))


def test_a_missing_shard_is_named(sharded: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(sharded, tmp_path / "it"))
    shard = sorted(directory.glob("model-00002-of-*.safetensors"))[0]
    shard.unlink()
    with pytest.raises(CheckpointError, match=shard.name):
        attnscope.load(str(directory))


def test_a_missing_tensor_is_named(checkpoint: Checkpoint, tmp_path: Path) -> None:
    directory = copy(checkpoint("llama-gqa"), tmp_path / "it")
    tensors = load_file(directory / "model.safetensors")
    gone = "layers.1.self_attn.q_proj.weight"
    del tensors[next(key for key in tensors if key.endswith(gone))]
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=gone.replace(".", r"\.")):
        attnscope.load(str(directory))


def test_a_tensor_of_another_shape_is_named(checkpoint: Checkpoint, tmp_path: Path) -> None:
    directory = copy(checkpoint("llama-gqa"), tmp_path / "it")
    tensors = load_file(directory / "model.safetensors")
    key = next(key for key in tensors if key.endswith("layers.1.self_attn.q_proj.weight"))
    tensors[key] = tensors[key][:16].contiguous()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"layers\.1\.self_attn\.q_proj"):
        attnscope.load(str(directory))


@pytest.mark.parametrize(
    "name", ["model-00099-of-00099.safetensors", "other.safetensors", "model.safetensors"]
)
def test_only_indexed_files_are_used(name: str, sharded: Path, tmp_path: Path) -> None:
    expected = weights(sharded)
    directory = Path(shutil.copytree(sharded, tmp_path / "it"))
    stray: dict[str, Tensor] = {}
    for shard in directory.glob("model-*.safetensors"):
        stray |= {key: tensor * 0.5 for key, tensor in load_file(shard).items()}
    save_file(stray, directory / name, metadata={"format": "pt"})
    assert torch.equal(weights(directory), expected)


def test_a_truncated_file_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    directory = copy(checkpoint("llama-gqa"), tmp_path / "it")
    whole = (directory / "model.safetensors").read_bytes()
    (directory / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError):
        attnscope.load(str(directory))


def test_weights_that_are_no_numbers_are_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    directory = copy(checkpoint("gpt2"), tmp_path / "it")
    tensors = load_file(directory / "model.safetensors")
    key = next(key for key in tensors if key.endswith("h.1.attn.c_attn.weight"))
    tensors[key][0, 0] = torch.nan
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="layer 1"):
        attnscope.load(str(directory))


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("{", "config.json"),
        ("[]", "config.json"),
        ('{"model_type": "no-such-thing"}', "no-such-thing"),
        ('{"model_type": "x", "auto_map": {"AutoModel": "x.X"}}', "never runs code"),
        ("{}", "model type"),
    ],
)
def test_configs_that_cannot_be_used(
    config: str, told: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    directory = copy(checkpoint("llama-gqa"), tmp_path / "it")
    (directory / "config.json").write_text(config)
    with pytest.raises(CheckpointError, match=told):
        attnscope.load(str(directory))


def test_no_tokenizer_is_no_invented_tokenizer(checkpoint: Checkpoint, tmp_path: Path) -> None:
    directory = copy(checkpoint("bert"), tmp_path / "it")
    (directory / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="tokenizer"):
        attnscope.load(str(directory))


def test_another_tokenizer_can_be_named(checkpoint: Checkpoint, tmp_path: Path) -> None:
    directory = copy(checkpoint("gpt2"), tmp_path / "it")
    (directory / "tokenizer.json").unlink()
    model = attnscope.load(str(directory), tokenizer=str(checkpoint("bert")))
    assert model.capture("the cat").tokens.tokens[0].text == "[CLS]"


def test_fewer_positions_than_the_proof_would_like(tmp_path: Path) -> None:
    config = tiny.CONFIGS["gpt2"]()
    config.n_positions = 16
    directory = tiny.save(config, tmp_path)
    same(weights(directory, ids_of(16)), oracle(directory, ids_of(16)))


def test_a_token_without_an_embedding_is_told(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """The tokenizer knows more tokens than the model: the text that uses one cannot be read."""
    directory = copy(checkpoint("gpt2"), tmp_path / "it")
    tokenizer = tiny.byte_tokenizer()
    tokenizer.add_tokens(["zebra"])
    assert len(tokenizer) > tiny.VOCABULARY
    tokenizer.save_pretrained(directory)
    model = attnscope.load(str(directory))
    assert model.capture("the cat")[0].shape == (4, 2, 2)
    with pytest.raises((CheckpointError, UsageError), match=r"zebra|320"):
        model.capture("the zebra")


@pytest.mark.parametrize(
    ("option", "value"), [("dtype", "int8"), ("device", "nowhere"), ("device", "cuda:99")]
)
def test_unknown_options_are_usage_errors(option: str, value: str, checkpoint: Checkpoint) -> None:
    with pytest.raises(UsageError, match=value):
        attnscope.load(str(checkpoint("gpt2")), **{option: value})


def test_half_precision_weights_are_scored_in_float32(checkpoint: Checkpoint) -> None:
    model = attnscope.load(str(checkpoint("llama-gqa")), dtype="bfloat16")
    found = weights(model)
    assert found.dtype == torch.float32
    assert (found.sum(-1) - 1).abs().max() <= 1e-6


# What no layout or spec describes is refused, never approximated

SMALL: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (lambda: T5Config(vocab_size=320, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4,
                          decoder_start_token_id=0), "encoder-decoder"),
        # Its layers share one module, which does more than attend.
        (lambda: AlbertConfig(**SMALL, embedding_size=32), "albertattention"),
        # Keys and values of another width (MLA).
        (lambda: DeepseekV2Config(**SMALL, q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4,
                                  qk_nope_head_dim=8, v_head_dim=8, n_routed_experts=2,
                                  num_experts_per_tok=1, first_k_dense_replace=2), "another width"),
        # Attention of its own, which no seam reaches.
        (lambda: BloomConfig(vocab_size=320, hidden_size=32, n_layer=2, n_head=4), "0 of 2 layers"),
        (lambda: FalconConfig(**SMALL), "0 of 2 layers"),
        # Values that are clipped: small ones hide it.
        (lambda: OlmoConfig(**SMALL, clip_qkv=8.0), "large numbers"),
        # A query scale that grows with the position: the first tokens hide it.
        (lambda: Ministral3Config(**SMALL, rope_parameters={
            "rope_type": "default", "rope_theta": 1e4, "original_max_position_embeddings": 16,
            "llama_4_scaling_beta": 0.1}), "far into a text"),
    ],
    ids=["t5", "albert", "mla", "bloom", "falcon", "clipped", "scaled-by-position"],
)  # fmt: skip
def test_what_is_not_supported_is_refused(
    config: Callable[[], Any], told: str, tmp_path: Path
) -> None:
    directory = tiny.save(config(), tmp_path / told.replace(" ", "-"))
    with pytest.raises(CheckpointError) as caught:
        attnscope.load(str(directory))
    assert told in str(caught.value).lower()
