"""A head's direct logits, against the final norm and the unembedding written out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnscope.api import Model, load
from attnscope.attention.lens import Lens
from attnscope.models.direct import FrozenNorm, find_direct_path
from attnscope.scoring.copying import Copying
from attnscope.types import TokenBatch
from tests import tiny

T = 18
# layers norm what attention gives before they add it; what the layer multiplies it by
PATHS = {
    "gpt2": (False, 1.0),
    "llama-gqa": (False, 1.0),
    "gemma2": (True, 1.0),
    "granite-multipliers": (False, 0.4),
    "olmo2": (True, 1.0),
    "gptj": (False, 1.0),
    "cohere": (False, 1.0),
    "opt": (False, 1.0),
    "smollm3": (False, 1.0),
}


def predictor(name: str, directory: Path) -> Model:
    return load(str(tiny.save(tiny.CONFIGS[name](), directory, causal_lm=True)), logits=True)


def batch(n: int = 2) -> TokenBatch:
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(5, tiny.VOCABULARY, (n, T), generator=generator)
    nothing = torch.zeros_like(ids, dtype=torch.bool)
    return TokenBatch(ids, ~nothing, nothing, nothing)


@pytest.mark.parametrize("name", PATHS)
def test_the_way_to_the_logits_is_found(name: str, tmp_path: Path) -> None:
    path = find_direct_path(predictor(name, tmp_path), batch())
    assert path is not None
    normed, factor = PATHS[name]
    for write in path.writes:
        assert (write.norm is not None) == normed
        assert write.factor == pytest.approx(factor, rel=1e-3)


@pytest.mark.parametrize("name", ["opt-norm-after", "bert-causal"])
def test_layers_that_norm_their_sums_have_none(name: str, tmp_path: Path) -> None:
    assert find_direct_path(predictor(name, tmp_path), batch()) is None


def run(model: Model, given: TokenBatch) -> tuple[dict[int, Tensor], Tensor, dict[int, Tensor]]:
    """z of each layer, what enters the final norm, and what each layer's attention puts out."""
    z: dict[int, Tensor] = {}
    output: dict[int, Tensor] = {}
    entering: list[Tensor] = []

    def record(layer: int, around: Mapping[str, Tensor]) -> None:
        z[layer] = around["z"]

    body: Any = getattr(model.network, "base_model", model.network)
    final = body.norm if hasattr(body, "norm") else body.ln_f
    hooks = [final.register_forward_pre_hook(lambda _, args: entering.append(args[0]))]
    for layer, seat in enumerate(model.seats):
        hooks.append(
            seat.attention.W_O.register_forward_hook(
                lambda _, __, result, layer=layer: output.update({layer: result})
            )
        )
    model.run(given, Lens(recorders=(record,)))
    for hook in hooks:
        hook.remove()
    return z, entering[0], output


@pytest.mark.parametrize("name", ["gpt2", "llama-gqa", "gemma2", "granite-multipliers", "olmo2"])
def test_copying_is_the_direct_logit_less_its_mean(name: str, tmp_path: Path) -> None:
    model, given = predictor(name, tmp_path), batch()
    rows = torch.arange(5, T - 1)
    path = find_direct_path(model, given)
    assert path is not None
    copying = Copying(model, path, given, rows)
    with copying.listening():
        model.run(given, Lens(recorders=(copying.record,)))
    found = copying.totals()  # (B, L, H)
    z, entering, output = run(model, given)
    network: Any = model.network
    body: Any = network.base_model
    unembedding = network.get_output_embeddings().weight.double()  # (V, C)
    for layer in range(model.shape.n_layers):
        attention = model.seats[layer].attention
        for head in range(model.shape.n_heads):
            alone = torch.zeros_like(z[layer])
            alone[:, head] = z[layer][:, head]
            written = attention.mix(attention.merge(alone)) - attention.mix(
                attention.merge(torch.zeros_like(alone))
            )  # (B, T, C)
            written = written.double()
            if name == "gemma2":
                norm = body.layers[layer].post_attention_layernorm
                size = (output[layer].double().square().mean(-1, keepdim=True) + norm.eps).sqrt()
                written = written / size * (1 + norm.weight.double())
            if name == "olmo2":
                norm = body.layers[layer].post_attention_layernorm
                x = output[layer].double()
                size = (x.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()
                written = written / size * norm.weight.double()
            x = entering.double()
            if name == "gpt2":
                size = (x.var(-1, keepdim=True, unbiased=False) + body.ln_f.eps).sqrt()
                centred = written - written.mean(-1, keepdim=True)
                direct = centred / size * body.ln_f.weight.double() @ unembedding.T
            else:
                gain = body.norm.weight.double()
                eps = getattr(body.norm, "variance_epsilon", None) or body.norm.eps
                size = (x.square().mean(-1, keepdim=True) + eps).sqrt()
                gain = 1 + gain if name == "gemma2" else gain
                direct = written / size * gain @ unembedding.T
            if name == "granite-multipliers":
                direct = 0.4 * direct / 2.0
            following = given.ids[:, 1:]
            right = direct[:, :-1].gather(-1, following[..., None])[..., 0]  # (B, T - 1)
            wanted = (right - direct[:, :-1].mean(-1))[:, rows].sum(-1)  # (B,)
            torch.testing.assert_close(found[:, layer, head], wanted, atol=2e-3, rtol=2e-3)
    assert found.abs().max() > 0.5


@pytest.mark.parametrize("width", [7, 8, 64])
def test_a_frozen_norm_is_the_norm_at_its_own_input(width: int) -> None:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(2, 3, width, generator=generator) + 0.7
    for norm in (torch.nn.LayerNorm(width), torch.nn.RMSNorm(width, eps=1e-5)):
        with torch.no_grad():
            for parameter in norm.parameters():
                parameter.copy_(1 + 0.3 * torch.randn(width, generator=generator))
            found = FrozenNorm.of(norm, width, x)
            assert found is not None
            assert found.centred == isinstance(norm, torch.nn.LayerNorm)
            torch.testing.assert_close(
                found.apply(x, found.scales(x)) + found.bias, norm(x), atol=1e-4, rtol=1e-4
            )


def test_what_is_no_norm_is_not_taken_for_one() -> None:
    assert FrozenNorm.of(torch.nn.Tanh(), 8, torch.zeros(1)) is None
