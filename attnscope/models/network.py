"""The network as transformers loads it: its config, every weight from the checkpoint, its place."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from attnscope.errors import CheckpointError, UsageError
from attnscope.models.config_file import why_invalid
from attnscope.models.sources import Source
from attnscope.plain import visible

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def read_config(source: Source) -> Any:
    """The checkpoint's config through its own class, after the questions that need no weights."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    shown, path = visible(source.name), source.directory / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(raw, dict):
            raise ValueError("not an object")
    except RecursionError as error:
        raise CheckpointError(f"{shown}: config.json is nested too deeply.") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{shown}: config.json cannot be read ({error}).") from error
    model_type = str(raw.get("model_type", ""))
    if model_type not in CONFIG_MAPPING:
        if "auto_map" in raw:
            raise CheckpointError(
                f"{shown} needs Python code of its own to load ({visible(model_type)!r}); "
                "attnscope never runs code from a checkpoint."
            )
        raise CheckpointError(
            f"{shown}: model type {visible(model_type)!r} is not one that the installed "
            "transformers knows."
        )
    quantised = raw.get("quantization_config")
    if isinstance(quantised, dict):
        method = visible(str(quantised.get("quant_method", "an unnamed method")))
        raise CheckpointError(
            f"{shown} is quantised with {method}, whose kernels hide the weights from attnscope: "
            "load the checkpoint it was made from, or a .gguf of it."
        )
    heads, shared = raw.get("num_attention_heads"), raw.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(shared, int) and (shared < 1 or heads % shared):
        raise CheckpointError(
            f"{shown}: num_attention_heads {heads} is not a multiple of num_key_value_heads "
            f"{shared}, so query heads cannot share key/value heads evenly."
        )
    try:
        config = AutoConfig.from_pretrained(
            source.directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # whatever its class makes of a damaged config
        raise CheckpointError(
            f"{shown}: config.json is not valid ({why_invalid(error, raw)})."
        ) from error
    if getattr(config, "is_encoder_decoder", False):
        raise CheckpointError(
            f"{shown} is an encoder-decoder ({model_type}): attnscope inspects encoders "
            "and decoders, not both in one."
        )
    return config


def read_network(
    source: Source,
    config: Any,
    dtype: torch.dtype | str,
    device: torch.device,
    device_map: str | None,
    logits: bool,
) -> nn.Module:
    """transformers' network with every weight from the checkpoint, none invented."""
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

    shown = visible(source.name)
    directory, sharded = source.directory, _check_shards(source.directory, shown)
    kind: Any = AutoModel
    if logits:
        kind = AutoModelForMaskedLM if reads_both_ways(config) else AutoModelForCausalLM
    try:
        with _only(directory, sharded) as files:
            network, report = kind.from_pretrained(
                files,
                config=config,
                dtype=dtype,
                attn_implementation="eager",
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are reported, and refused below
                **({"device_map": device_map} if device_map else {}),
            )
    except Exception as error:  # damaged files surface as many kinds
        raise CheckpointError(f"{shown} cannot be loaded: {_first_line(error)}") from error
    missing = sorted(name for name in report["missing_keys"] if ".pooler." not in f".{name}")
    if missing:
        raise CheckpointError(
            f"{shown} lacks {len(missing)} of its tensors, {visible(missing[0])} among them: "
            "the checkpoint is incomplete."
        )
    mismatched = sorted(report["mismatched_keys"], key=str)
    if mismatched:
        name, stored, wanted = mismatched[0]
        raise CheckpointError(
            f"{shown} has {len(mismatched)} tensors of another shape than its config says, "
            f"{visible(name)} among them: {tuple(stored)}, not {tuple(wanted)}."
        )
    if any(".pooler." in f".{name}" for name in report["missing_keys"]):
        network.base_model.pooler = None  # it would be random; nothing here reads it
    network = _text_part(network, shown, logits).requires_grad_(False).eval()
    ready: nn.Module = network if device_map else network.to(device)
    return ready


def reads_both_ways(config: Any) -> bool:
    """Is it an encoder, which predicts masked tokens and no next ones?"""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

    masked = type(config) in MODEL_FOR_MASKED_LM_MAPPING
    return masked and not getattr(config, "is_decoder", False)


def reads_both(name: str) -> CheckpointError:
    """The refusal of a model that reads both ways, where next tokens are to be predicted."""
    shown = visible(name)
    return CheckpointError(
        f"{shown} reads both ways: it predicts no next token, so induction and what heads cost "
        "cannot be measured.\n"
        f"`attnscope heads TEXT --model {shown}` shows its duplicate-token heads, and others."
    )


def _text_part(network: Any, shown: str, logits: bool) -> nn.Module:
    """The network itself, or what reads text in one that also sees or hears."""
    if network.config.get_text_config() is network.config:
        return cast(nn.Module, network)
    part = network.get_decoder()
    if part is network:
        raise CheckpointError(f"{shown} reads more than text, and its text part cannot be told.")
    if logits:
        raise CheckpointError(f"{shown} reads more than text: its logits cannot be asked for.")
    return cast(nn.Module, part)


@contextmanager
def _only(directory: Path, sharded: list[str]) -> Iterator[Path]:
    """The directory, without a stray file that transformers would load instead of the shards."""
    if not sharded or not (directory / "model.safetensors").exists():
        yield directory
        return
    with tempfile.TemporaryDirectory() as name:
        for file in ("config.json", "model.safetensors.index.json", *sharded):
            (Path(name) / file).symlink_to((directory / file).resolve())
        yield Path(name)


def _check_shards(directory: Path, shown: str) -> list[str]:
    """The files that an index names, all of them there; empty without an index."""
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return []
    try:
        files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{shown}: {index.name} cannot be read.") from error
    absent = [name for name in files if not (directory / name).is_file()]
    if absent:
        raise CheckpointError(
            f"{shown}: {visible(absent[0])} is missing ({len(absent)} of {len(files)} shards). "
            "Copy the checkpoint again."
        )
    return files


def positions(network: nn.Module, config: Any) -> int | None:
    """How many tokens a text may have; None where nothing limits it.

    A learned table that keeps rows for padding (RoBERTa) has so many fewer.
    """
    most = getattr(config, "max_position_embeddings", None)
    if not isinstance(most, int) or most < 1:
        return None
    for name, module in network.named_modules():
        learned = isinstance(module, nn.Embedding) and name.endswith("position_embeddings")
        if learned and module.padding_idx is not None:
            return most - int(module.padding_idx) - 1
    return most


def pick_device(device: str) -> torch.device:
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    known = "Use auto, cpu, cuda, cuda:N or mps."
    try:
        place = torch.device(device)
    except RuntimeError as error:  # with a list of all that torch was ever built for
        raise UsageError(
            f"Cannot use device {visible(device)!r}: there is none. {known}"
        ) from error
    try:
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = _first_line(error).rstrip(".")
        raise UsageError(f"Cannot use device {visible(device)!r}: {reason}. {known}") from error
    return place


def pick_dtype(dtype: str | None, device: torch.device) -> torch.dtype | str:
    if dtype is None:
        return torch.float32 if device.type == "cpu" else "auto"
    if dtype != "auto" and dtype not in DTYPES:
        raise UsageError(f"Unknown dtype {visible(dtype)!r}: choose {', '.join(DTYPES)} or auto.")
    return "auto" if dtype == "auto" else DTYPES[dtype]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return visible(lines[0][:200]) if lines else type(error).__name__
