"""The proof must see a fault: each one planted here is refused, and `verify` tells where it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel

import attnscope
from attnscope.attention.multihead import MultiHeadAttention
from attnscope.attention.rotary import Rotation
from attnscope.cli.app import run
from attnscope.models import load
from attnscope.models.seam import Seat, take_seats
from tests import tiny

Fault = Callable[[MultiHeadAttention], None]


def _spec(**changes: Any) -> Fault:
    def plant(attention: MultiHeadAttention) -> None:
        attention.spec = attention.spec.with_changes(**changes)

    return plant


def _swapped_query_and_key(attention: MultiHeadAttention) -> None:
    attention.W_Q, attention.W_K = attention.W_K, attention.W_Q


def _attend_with(change: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]) -> Fault:
    def plant(attention: MultiHeadAttention) -> None:
        real = attention.attend
        attention.attend = lambda query, key, value, *rest: real(  # type: ignore[method-assign]
            *change(query, key, value), *rest
        )

    return plant


def _interleaved(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Query head h reads key/value head h % G instead of h // R; here H = 4 and G = 2."""
    assert key.shape[1] == 2
    return query[:, [0, 2, 1, 3]], key, value


def _rotate_the_query_only(attention: MultiHeadAttention) -> None:
    real = attention.rotate
    attention.rotate = lambda query, key, rotation: (  # type: ignore[method-assign]
        real(query, key, rotation)[0],
        key,
    )


def _rotate_with(change: Callable[[Rotation], Rotation]) -> Fault:
    def plant(attention: MultiHeadAttention) -> None:
        real = attention.rotate
        attention.rotate = lambda query, key, rotation: real(  # type: ignore[method-assign]
            query, key, change(rotation)
        )

    return plant


def _another_base(rotation: Rotation) -> Rotation:
    angles = torch.atan2(rotation.sin, rotation.cos) * 0.9
    return Rotation(angles.cos(), angles.sin())


def _one_later(rotation: Rotation) -> Rotation:
    return Rotation(rotation.cos.roll(1, 1), rotation.sin.roll(1, 1))


def _without_sink(attention: MultiHeadAttention) -> None:
    attention.sink = None


def _norm_of_the_query_only(attention: MultiHeadAttention) -> None:
    attention.key_norm = nn.Identity()


def _norms_swapped(attention: MultiHeadAttention) -> None:
    attention.query_norm, attention.key_norm = attention.key_norm, attention.query_norm


FAULTS: dict[str, tuple[str, Fault]] = {
    "dropped norm by head": ("qwen3", _spec(qk_norm=None)),
    "dropped norm over the projection": ("olmo2", _spec(qk_norm=None)),
    "dropped norm of the key": ("gemma3_text", _norm_of_the_query_only),
    "norms swapped": ("qwen3", _norms_swapped),
    "norm after rotary": ("qwen3", _spec(norm_after_rotary=True)),
    "norm before rotary": ("hunyuan_v1_dense", _spec(norm_after_rotary=False)),
    "rotary turns neighbours": ("llama-gqa", _spec(rotary_pairs="neighbours")),
    "rotary turns halves": ("cohere", _spec(rotary_pairs="halves")),
    "rotary of another base": ("llama-gqa", _rotate_with(_another_base)),
    "rotary backwards": ("glm", _rotate_with(lambda r: Rotation(r.cos, -r.sin))),
    "rotary of other positions": ("phi", _rotate_with(_one_later)),
    "rotary in part": (
        "llama-gqa",
        _rotate_with(lambda r: Rotation(r.cos[..., :4], r.sin[..., :4])),
    ),
    "no rotary where only some layers have it": ("smollm3", _spec(rotary=False)),
    "lost window in some layers": ("gemma2", _spec(window=None)),
    "the window in every layer": ("gemma3_text", _spec(window=8)),
    "lost softcap": ("gemma2", _spec(softcap=None)),
    "lost multiplier": ("granite", _spec(scale=None)),
    "lost sink": ("gpt_oss", _without_sink),
    "scaled by the model's width": ("llama-gqa", _spec(scale=32**-0.5)),
    "not scaled": ("bert", _spec(scale=1.0)),
    "no rotary": ("llama-gqa", _spec(rotary=False)),
    "rotary on the query only": ("llama-gqa", _rotate_the_query_only),
    "query and key swapped": ("llama-mha", _swapped_query_and_key),
    "query and key swapped in BERT": ("bert", _swapped_query_and_key),
    "query and key swapped in GPT-2": ("gpt2", _swapped_query_and_key),
    "wrong head map": ("llama-gqa", _attend_with(_interleaved)),
    "groups reversed": ("llama-gqa", _attend_with(lambda q, k, v: (q, k.flip(1), v.flip(1)))),
    "lost causal mask": ("llama-mqa", _spec(causal=False)),
    "an encoder made causal": ("bert", _spec(causal=True)),
    "lost window": ("mistral-window", _spec(window=None)),
    "window one too wide": ("mistral-window", _spec(window=9)),
    "window one too narrow": ("mistral-window", _spec(window=7)),
    "values of the wrong head": ("gpt2", _attend_with(lambda q, k, v: (q, k, v.flip(1)))),
    "softcap that is not there": ("gpt2", _spec(softcap=1.0)),
}


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fault, int | None], None]:
    """Put a fault into one layer (or all) as the seats are taken."""

    def into(fault: Fault, layer: int | None) -> None:
        def with_fault(*arguments: Any) -> list[Seat]:
            seats = take_seats(*arguments)
            for seat in seats if layer is None else [seats[layer]]:
                fault(seat.attention)
            return seats

        monkeypatch.setattr(load, "take_seats", with_fault)

    return into


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_refused(
    name: str,
    plant: Callable[[Fault, int | None], None],
    checkpoint: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    stored, fault = FAULTS[name]
    plant(fault, None)
    directory = str(checkpoint(stored))
    assert run(["heads", "the cat", "--model", directory]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert directory in err
    assert "refused" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("window", [None, 4095, 4097, 24])
def test_a_wrong_window_longer_than_the_proof_is_refused(
    window: int | None,
    plant: Callable[[Fault, int | None], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No text of the proof's length shows it, so the mask is asked."""
    config = tiny.CONFIGS["mistral-window"]()
    config.sliding_window = 4096
    directory = tiny.save(config, tmp_path)
    assert attnscope.load(str(directory)).specs[0].window == 4096
    plant(_spec(window=window), 1)
    assert run(["heads", "the cat", "--model", str(directory)]) == 3
    assert "layer 1 " in capsys.readouterr().err


@pytest.mark.parametrize("layer", [0, 2])
def test_verify_shows_the_layer_and_ends_with_4(
    layer: int,
    plant: Callable[[Fault, int | None], None],
    checkpoint: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    plant(_spec(scale=32**-0.5), layer)
    assert run(["verify", "--model", str(checkpoint("llama-gqa")), "-F", "json"]) == 4
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["ok"] is False
    differ = [entry["max_abs_attention"] > document["tolerance"] for entry in document["layers"]]
    assert differ.index(True) == layer
    assert f"layer {layer}" in err


def test_a_fault_in_the_values_of_the_only_layer_shows_in_the_hidden_state(
    plant: Callable[[Fault, int | None], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny.CONFIGS["gpt2"]()
    config.n_layer = 1
    directory = tiny.save(config, tmp_path)
    plant(_attend_with(lambda q, k, v: (q, k, v.flip(1))), None)
    assert run(["heads", "the cat", "--model", str(directory)]) == 3
    assert "hidden state" in capsys.readouterr().err


def test_a_forgotten_output_bias_is_refused(
    plant: Callable[[Fault, int | None], None],
    checkpoint: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def without_bias(attention: MultiHeadAttention) -> None:
        bare = nn.Linear(32, 32, bias=False)
        bare.weight = attention.W_O.weight
        attention.W_O = bare

    plant(without_bias, None)
    assert run(["heads", "the cat", "--model", str(checkpoint("bert"))]) == 3
    assert "refused" in capsys.readouterr().err


def test_the_proof_and_our_run_share_one_set_of_weights(
    checkpoint: Callable[[str], Path],
) -> None:
    """Nothing is copied, and the witness is gone."""
    config = tiny.CONFIGS["llama-gqa"]()
    model = attnscope.load(str(checkpoint("llama-gqa")))
    stored = sum(p.numel() for p in AutoModel.from_config(config).parameters())
    assert sum(p.numel() for p in model.network.parameters()) == stored
    parity = model.parity
    assert 0 < parity.max_abs_attention <= 1e-5  # measured, not assumed
    assert parity.n_tokens == 24
