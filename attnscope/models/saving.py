"""Saving a model with other attention layers in its own format, for transformers to load."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.attention.linear import bias_of, weight_of
from attnscope.attention.multihead import MultiHeadAttention
from attnscope.errors import RunError, UsageError
from attnscope.models.layouts import Stored, find_attention
from attnscope.models.load import Model
from attnscope.models.network import read_config, read_network
from attnscope.plain import visible

_FIELD = "num_key_value_heads"
_OS_ERROR = re.compile(r"(?:os error|code:) (\d+)")
_WRITTEN = ("separate q/k/v", "fused qkv_proj")  # layouts


def check_format(name: str, config: Any) -> None:
    """Raise UsageError where the format has no place for a number of key/value heads."""
    if not hasattr(config, _FIELD):
        raise _no_place(name, config.model_type)


def check_directory(directory: Path) -> None:
    """Raise before any work when the place is taken, or cannot be written."""
    shown = visible(str(directory))
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{shown} is there already: name a new directory.")
    if not directory.parent.is_dir():
        raise RunError(f"Cannot write {shown}: there is no {visible(str(directory.parent))}.")
    if not os.access(directory.parent, os.W_OK):
        raise RunError(f"Cannot write {shown}: no permission in its parent.")


def check_saving(model: Model, directory: Path) -> None:
    """Raise before any work when the format has no key/value heads, or the place is taken."""
    config: Any = model.network.config
    check_format(model.id, config)
    if not model.layout.startswith(_WRITTEN):
        raise _no_place(model.id, config.model_type)
    check_directory(directory)


def save_converted(
    model: Model, layers: Sequence[MultiHeadAttention], directory: str | Path
) -> torch.dtype:
    """Write the model with these layers and its tokenizer, whole or not at all.

    The weights are in the checkpoint's own number format, which is returned; a .gguf file has none
    of transformers', so float32. Raises UsageError where the checkpoint's format has no place for
    the number of key/value heads.
    """
    directory = Path(directory).absolute()
    check_saving(model, directory)
    source = model.source
    own: torch.dtype | str = torch.float32 if source.kind == "gguf" else "auto"
    network: Any = read_network(
        source, read_config(source), own, torch.device("cpu"), None, model.has_logits
    )
    stored = find_attention(network)
    for place, attention in zip(stored, layers, strict=True):
        _write_layer(place, attention)
    network.config.num_key_value_heads = layers[0].spec.kv_heads
    shown, scratch = visible(str(directory)), None
    try:
        scratch = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name[:40]}-"))
        network.save_pretrained(scratch)
        model.tokenizer.save_pretrained(scratch)
        mask = os.umask(0)
        os.umask(mask)
        scratch.chmod(0o777 & ~mask)
        if directory.exists():
            directory.rmdir()
        scratch.rename(directory)
    except Exception as error:  # a full disk is told by whichever library was writing
        raise RunError(f"Cannot write {shown}: {_reason(error)}.") from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
    dtype: torch.dtype = network.dtype
    return dtype


def _no_place(name: str, model_type: str) -> UsageError:
    return UsageError(
        f"The format of {visible(name)} ({visible(model_type)}) has no number of key/value "
        "heads: it can be measured, and not saved."
    )


def _reason(error: Exception) -> str:
    """Why the system refused, without the name of a file that no one asked for."""
    code = error.errno if isinstance(error, OSError) else None
    if code is None and (told := _OS_ERROR.search(str(error))):
        code = int(told[1])  # as libraries written in Rust tell it
    if code is not None:
        return os.strerror(code)
    return visible((str(error).strip() or type(error).__name__).splitlines()[0][:100].rstrip("."))


def _write_layer(place: Stored, attention: MultiHeadAttention) -> None:
    """Put a layer's weights where transformers' own module keeps them."""
    parts = dict(place.module.named_children())
    query, key, value = attention.W_Q, attention.W_K, attention.W_V
    fused = parts.get("qkv_proj")
    if fused is not None:
        biases = [bias_of(one) for one in (query, key, value)]
        joined = None if biases[0] is None else torch.cat([b for b in biases if b is not None])
        _set(fused, torch.cat([weight_of(one) for one in (query, key, value)]), joined)
    else:
        for name, module in (("q_proj", query), ("k_proj", key), ("v_proj", value)):
            _set(parts[name], weight_of(module), bias_of(module))
    _set(place.mixer, weight_of(attention.W_O), bias_of(attention.W_O))
    for norm, made in zip(
        place.norms or (), (attention.query_norm, attention.key_norm), strict=False
    ):
        for name, parameter in () if made is None else made.named_parameters():
            _replace(norm, name, parameter.data)
    if place.sink is not None and attention.sink is not None:
        place.sink.data.copy_(attention.sink.data)


def _set(module: nn.Module, weight: Tensor, bias: Tensor | None) -> None:
    _replace(module, "weight", weight)
    if bias is not None:
        _replace(module, "bias", bias)


def _replace(module: nn.Module, name: str, tensor: Tensor) -> None:
    """In the number format of what stood there."""
    own: Any = getattr(module, name, None)
    dtype = own.dtype if own is not None else next(module.parameters()).dtype
    made = tensor.detach().cpu().to(dtype, copy=True)
    setattr(module, name, nn.Parameter(made, requires_grad=False))
