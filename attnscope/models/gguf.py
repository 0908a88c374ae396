"""GGUF files, dequantised once into a directory that loads like any other checkpoint."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from attnscope.errors import CheckpointError, RunError
from attnscope.plain import visible
from attnscope.types import Progress, no_progress

# How a byte-level vocabulary cuts text before it merges bytes, by `tokenizer.ggml.pre`, as in
# llama.cpp's src/llama-vocab.cpp. transformers knows a part of these names and reads every other
# one as GPT-2's, which cuts digits and the spaces before them in another way than some.
_GPT2 = {"exaone4", "gigachat", "gpt-2", "jais", "mellum", "mpt", "olmo", "phi-2", "trillion"}
_GPT2_AND_SINGLE_DIGITS = {
    "codeshell", "command-r", "exaone", "minerva-7b", "refact", "smollm", "starcoder"
}  # fmt: skip

# Of Llama 3.1, 3.2 and 3.3; a file states the factor alone, and that only in its effect.
_LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@dataclass(frozen=True)
class Header:
    """What the head of a GGUF file says, as far as it is needed before reading the weights."""

    architecture: str
    tokenizer: str | None  # tokenizer.ggml.model; None: the file has no tokenizer
    pre_tokenizer: str | None  # tokenizer.ggml.pre
    rope_scaling: str | None
    rope_factors: tuple[float, ...]  # what each rotary frequency is divided by; empty: nothing
    window: int  # keys a query sees; 0: all
    n_parameters: int


def convert(gguf_file: Path, directory: Path, progress: Progress = no_progress) -> None:
    """Write `gguf_file` into `directory` as config.json, model.safetensors and a tokenizer.

    Weights are float32: exactly the values that the quantised blocks stand for. Raises
    CheckpointError when the file is damaged, not supported, or a package is missing.
    """
    _require_packages()
    name = visible(gguf_file.name)
    progress(f"reading {name}", 0, 0)
    header = read_header(gguf_file)
    _require_space(directory, 4 * header.n_parameters, name)
    with _alone(gguf_file) as place, _heard_by(progress, f"converting {name}, tensor"):
        config = _read_config(place, header, name)
        _save_tokenizer(place, directory, header, name)
        _save_model(place, directory, config, name)


def read_header(gguf_file: Path) -> Header:
    """Read the head of a GGUF file and check that all its tensors are there."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(gguf_file)
        fields = reader.fields
        architecture = _text(fields, "general.architecture") or ""
        window = fields.get(f"{architecture}.attention.sliding_window")
        factors = [t.data.tolist() for t in reader.tensors if t.name.startswith("rope_f")]
        return Header(
            architecture=architecture,
            tokenizer=_text(fields, "tokenizer.ggml.model"),
            pre_tokenizer=_text(fields, "tokenizer.ggml.pre"),
            rope_scaling=_text(fields, f"{architecture}.rope.scaling.type"),
            rope_factors=tuple(factors[0]) if factors else (),
            window=0 if window is None else int(window.parts[window.data[0]][0]),
            n_parameters=sum(int(tensor.n_elements) for tensor in reader.tensors),
        )
    except MemoryError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(f"Cannot read {visible(str(gguf_file))}: {reason}.") from error
    except Exception as error:  # a damaged file can fail in any way inside the reader
        raise CheckpointError(
            f"{visible(str(gguf_file))} is not a whole GGUF file. Download it again."
        ) from error


def _text(fields: Mapping[str, Any], key: str) -> str | None:
    field = fields.get(key)
    return None if field is None else str(bytes(field.parts[field.data[0]]), encoding="utf-8")


def _require_packages() -> None:
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise CheckpointError(
            f"Reading a .gguf file needs the package {' and '.join(missing)}. "
            "Type `pip install 'attnscope[gguf]'`."
        )


def _require_space(directory: Path, needed: int, name: str) -> None:
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise RunError(
            f"{name} takes {needed / 1e9:.1f} GB when dequantised, and {visible(str(directory))} "
            f"has {free / 1e9:.1f} GB left. ATTNSCOPE_CACHE names another place."
        )


@contextlib.contextmanager
def _alone(gguf_file: Path) -> Iterator[Path]:
    """A directory that holds nothing but the file: transformers reads what lies beside it, too."""
    with tempfile.TemporaryDirectory(prefix="attnscope-") as name:
        place = Path(name) / "model.gguf"
        try:
            place.symlink_to(gguf_file.resolve())
        except OSError:  # Windows lets few users do that
            shutil.copyfile(gguf_file, place)
        yield place.parent


@contextlib.contextmanager
def _heard_by(progress: Progress, what: str) -> Iterator[None]:
    """transformers' bars and warnings kept from the terminal, and its steps reported instead.

    Its own switch does not reach the bar over the tensors of a GGUF file.
    """
    reader: Any = None
    with contextlib.suppress(ImportError):
        reader = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    bar = getattr(reader, "tqdm", None)
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()

    def report(tensors: list[Any], **_: Any) -> Iterator[Any]:
        for done, tensor in enumerate(tensors):
            progress(what, done, len(tensors))
            yield tensor

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if bar is not None:
        reader.tqdm = report
    try:
        yield
    finally:
        if bar is not None:
            reader.tqdm = bar
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _read_config(place: Path, header: Header, name: str) -> Any:
    with _refused(f"{name} is of the architecture {header.architecture!r}, which cannot be read"):
        config = AutoConfig.from_pretrained(place, gguf_file="model.gguf")
    _restore_attention(config, header, name)
    return config


def _save_tokenizer(place: Path, directory: Path, header: Header, name: str) -> None:
    if header.tokenizer is None:
        raise CheckpointError(f"{name} holds no tokenizer. Use the checkpoint it was made from.")
    with _refused(f"The tokenizer of {name} (type {header.tokenizer!r}) cannot be read"):
        tokenizer = AutoTokenizer.from_pretrained(place, gguf_file="model.gguf")
    backend, cut = tokenizer.backend_tokenizer, header.pre_tokenizer
    byte_level = ByteLevel(add_prefix_space=False, use_regex=True)
    if cut in _GPT2:
        backend.pre_tokenizer = byte_level
    elif cut in _GPT2_AND_SINGLE_DIGITS:
        backend.pre_tokenizer = Sequence([Digits(individual_digits=True), byte_level])
    elif header.tokenizer == "gpt2" and cut not in _known_to_transformers():
        raise CheckpointError(
            f"{name} cuts text in a way that is not known here (tokenizer.ggml.pre is {cut!r}). "
            "Use the checkpoint it was made from."
        )
    tokenizer.save_pretrained(directory)


def _known_to_transformers() -> set[str]:
    try:
        from transformers.integrations.gguf import gguf_tokenizer_mapping
    except ImportError:  # an older transformers
        return set()
    return set(getattr(gguf_tokenizer_mapping, "GGUF_PRE_TOKENIZER_SPLITS", ()))


def _save_model(place: Path, directory: Path, config: Any, name: str) -> None:
    with _refused(f"The weights of {name} cannot be read"):
        model, loading = AutoModelForCausalLM.from_pretrained(
            place,
            config=config,
            gguf_file="model.gguf",
            dtype=torch.float32,
            output_loading_info=True,
        )
    lacking = sorted(loading["missing_keys"])
    if lacking:  # transformers has filled them with random numbers
        raise CheckpointError(
            f"{name} lacks {len(lacking)} of the model's tensors, among them {lacking[0]}. "
            "Download it again."
        )
    weights = directory / "model.safetensors"
    save_file(_without_aliases(model.state_dict()), weights, {"format": "pt"})
    config = model.config
    config.architectures = [type(model).__name__]
    for stale in ("_model_name_or_path", "quantization_config"):
        if hasattr(config, stale):
            delattr(config, stale)
    config.name_or_path = ""
    config.save_pretrained(directory)
    # safetensors lets only the owner read; a cache may be shared.
    weights.chmod((directory / "config.json").stat().st_mode)


def _restore_attention(config: Any, header: Header, name: str) -> None:
    """Give `config` what transformers leaves out of a GGUF file, or refuse the file.

    Without it the weights load and every number is wrong. Only Llama 3's scaled rotary frequencies
    can be told for certain: the file has the factors that follow from its four numbers.
    """
    lost = None
    window = getattr(config, "sliding_window", None)
    if header.rope_factors:
        if not _restore_llama3(config, header):
            lost = "its scaled rotary frequencies"
    elif header.rope_scaling not in (None, "none"):
        lost = f"its rotary scaling {header.rope_scaling!r}"
    elif header.window != window and 0 < header.window < config.max_position_embeddings:
        lost = f"its window of {header.window} tokens"
    if lost is not None:
        raise CheckpointError(
            f"{name} cannot be read: transformers would lose {lost}. "
            "Use the checkpoint it was made from."
        )


def _restore_llama3(config: Any, header: Header) -> bool:
    """Whether the file's factors are those of Llama 3; `config` has its four numbers then."""
    if header.architecture != "llama":
        return False
    rope = dict(config.rope_parameters, **_LLAMA3, factor=max(header.rope_factors))
    expected = _llama3_factors(rope, len(header.rope_factors))
    if not np.allclose(expected, header.rope_factors, rtol=1e-4):
        return False
    config.rope_parameters = rope
    return True


def _llama3_factors(rope: dict[str, Any], count: int) -> list[float]:
    """What each of `count` rotary frequencies is divided by (Llama 3.1, as llama.cpp stores it)."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    factors = []
    for index in range(count):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (index / count)
        turns = rope["original_max_position_embeddings"] / wavelength
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - kept) / rope["factor"] + kept))
    return factors


def _without_aliases(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor once: a tied one is tied again when it is loaded."""
    kept: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in state.items():
        kept.setdefault(tensor.data_ptr(), (name, tensor.contiguous()))
    return dict(kept.values())


@contextlib.contextmanager
def _refused(what: str) -> Iterator[None]:
    """Turn any failure of a foreign reader into a CheckpointError that begins with `what`."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise CheckpointError(
            f"{what}: {visible(reason[0]) if reason else type(error).__name__}"
        ) from error
