"""Switching heads off: each method against what it says, and patterns that stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModel

import attnscope
from attnscope.api import Model
from attnscope.attention.ablation import METHODS, MODES, Ablation
from attnscope.attention.cores import Block
from attnscope.attention.lens import Lens
from attnscope.cli.options import Method, Mode
from attnscope.errors import UsageError
from attnscope.types import TokenBatch
from tests import tiny

Checkpoint = Callable[[str], Path]
OFF: Mapping[int, tuple[int, ...]] = {1: (0, 3)}
T = 20


def batch(ids: Tensor) -> TokenBatch:
    nothing = torch.zeros_like(ids, dtype=torch.bool)
    return TokenBatch(ids, ~nothing, nothing, nothing)


def ids_of(n: int = 2, seed: int = 0) -> Tensor:
    return torch.randint(5, tiny.VOCABULARY, (n, T), generator=torch.Generator().manual_seed(seed))


def run(model: Model, ids: Tensor, ablation: Ablation | None) -> tuple[Tensor, dict[str, Tensor]]:
    """The hidden states, and everything that stood around the weights, by name and layer."""
    seen: dict[str, Tensor] = {}

    def record(layer: int, around: Mapping[str, Tensor]) -> None:
        seen.update({f"{name} {layer}": value for name, value in around.items()})

    weights: dict[int, list[Tensor]] = {}

    def see(block: Block) -> None:
        rows = torch.zeros(*block.weights.shape[:3], T)
        rows[..., block.low : block.high] = block.weights
        weights.setdefault(block.layer, []).append(rows)

    hidden = model.run(batch(ids), Lens(observers=(see,), recorders=(record,), ablation=ablation))
    seen |= {f"weights {layer}": torch.cat(parts, 2) for layer, parts in weights.items()}
    return hidden, seen


def test_the_choices_of_the_command_line_are_the_tables() -> None:
    assert [method.value for method in Method] == list(METHODS)
    assert [mode.value for mode in Mode] == list(MODES)


@pytest.mark.parametrize("name", ["llama-gqa", "gpt2", "gemma2", "gpt_oss"])
def test_zero_is_what_transformers_computes_with_these_columns_of_w_o_zeroed(
    name: str, checkpoint: Checkpoint
) -> None:
    directory, ids = checkpoint(name), ids_of()
    model = attnscope.load(str(directory))
    hidden, _ = run(model, ids.repeat(2, 1), Ablation("zero", (OFF,)))
    theirs = AutoModel.from_pretrained(directory, attn_implementation="eager").eval()
    with torch.no_grad():
        torch.testing.assert_close(hidden[:2], theirs(ids).last_hidden_state, atol=1e-4, rtol=1e-4)
        block = theirs.h[1] if name == "gpt2" else theirs.layers[1]
        width = model.shape.d_head
        for head in OFF[1]:
            columns = slice(head * width, (head + 1) * width)
            if name == "gpt2":
                block.attn.c_proj.weight[columns] = 0
            else:
                block.self_attn.o_proj.weight[:, columns] = 0
        torch.testing.assert_close(hidden[2:], theirs(ids).last_hidden_state, atol=1e-4, rtol=1e-4)
    assert (hidden[:2] - hidden[2:]).abs().max() > 0.1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rows", [None, 6])
def test_only_the_heads_that_are_off_change(
    method: str, rows: int | None, checkpoint: Checkpoint
) -> None:
    """Siblings in the same group among them: keys and values are left alone."""
    model = attnscope.load(str(checkpoint("llama-gqa")))
    model.set_block_rows(rows)
    ids, other = ids_of(), ids_of(seed=1)
    means = torch.randn(3, 4, model.shape.d_head) if method == "mean" else None
    lent = [other] if method == "resample" else []
    _, seen = run(model, torch.cat([ids, ids, *lent]), Ablation(method, (OFF,), means))
    z = seen["z 1"]
    clean, edited = z[:2], z[2:4]
    for head in range(4):
        if head not in OFF[1]:
            assert torch.equal(edited[:, head], clean[:, head])
            continue
        if method == "zero":
            wanted = torch.zeros_like(clean[:, head])
        elif method == "mean":
            assert means is not None
            wanted = means[1, head].expand(2, T, -1)
        elif method == "resample":
            _, alone = run(model, other, None)
            wanted = alone["z 1"][:, head]
        else:
            wanted = seen["value 1"][2:4, head // 2, :1].expand(-1, T, -1)
        torch.testing.assert_close(edited[:, head], wanted, atol=1e-5, rtol=1e-5)


def test_rest_with_a_window_and_with_a_learned_sink(checkpoint: Checkpoint) -> None:
    """A window hides the first token: then the first key that is seen. A sink gives nothing."""
    ids = ids_of().repeat(2, 1)
    model = attnscope.load(str(checkpoint("mistral-window")))
    _, seen = run(model, ids, Ablation("rest", ({0: (1,)},)))
    first = [max(0, query - 7) for query in range(T)]
    torch.testing.assert_close(seen["z 0"][2:, 1], seen["value 0"][2:, 0][:, first])
    model = attnscope.load(str(checkpoint("gpt_oss")))
    _, seen = run(model, ids, Ablation("rest", ({0: (1,)},)))
    assert not seen["z 0"][2:, 1].any()


@pytest.mark.parametrize("name", ["llama-gqa", "gpt2", "gemma2", "gpt_oss", "bert"])
def test_frozen_keeps_every_pattern_and_full_does_not(name: str, checkpoint: Checkpoint) -> None:
    model, ids = attnscope.load(str(checkpoint(name))), ids_of().repeat(2, 1)
    last = model.shape.n_layers - 1
    off = ({0: (0, 1)},)
    _, seen = run(model, ids, Ablation("zero", off, frozen=True))
    for layer in range(last + 1):
        weights = seen[f"weights {layer}"]
        torch.testing.assert_close(weights[2:], weights[:2], atol=1e-6, rtol=0)
    assert (seen[f"z {last}"][2:] - seen[f"z {last}"][:2]).abs().max() > 1e-3
    _, seen = run(model, ids, Ablation("zero", off))
    assert (seen[f"weights {last}"][2:] - seen[f"weights {last}"][:2]).abs().max() > 1e-3


def test_what_is_lent_is_not_frozen(checkpoint: Checkpoint) -> None:
    model, ids, other = attnscope.load(str(checkpoint("llama-gqa"))), ids_of(), ids_of(seed=1)
    three = torch.cat([ids, ids, other])
    _, seen = run(model, three, Ablation("resample", (OFF,), frozen=True))
    _, alone = run(model, other, None)
    torch.testing.assert_close(seen["weights 2"][4:], alone["weights 2"], atol=1e-5, rtol=0)


def test_in_the_last_layer_frozen_and_full_are_one(checkpoint: Checkpoint) -> None:
    model, ids = attnscope.load(str(checkpoint("llama-gqa"))), ids_of().repeat(2, 1)
    off = ({2: (1,)},)
    frozen, _ = run(model, ids, Ablation("zero", off, frozen=True))
    full, _ = run(model, ids, Ablation("zero", off))
    torch.testing.assert_close(frozen, full, atol=1e-5, rtol=1e-5)


def test_sets_side_by_side_are_as_alone(checkpoint: Checkpoint) -> None:
    model, ids = attnscope.load(str(checkpoint("gpt2"))), ids_of()
    sets = ({0: (1,)}, {1: (0, 2), 2: (3,)}, {2: (0,)})
    together, _ = run(model, ids.repeat(4, 1), Ablation("zero", sets, frozen=True))
    for n, off in enumerate(sets, 1):
        alone, _ = run(model, ids.repeat(2, 1), Ablation("zero", (off,), frozen=True))
        torch.testing.assert_close(together[2 * n : 2 * n + 2], alone[2:], atol=2e-5, rtol=1e-4)


def test_means_go_with_the_mean(checkpoint: Checkpoint) -> None:
    with pytest.raises(UsageError, match="needs them"):
        Ablation("mean", (OFF,))
    with pytest.raises(UsageError, match="Unknown method 'half'"):
        Ablation("half", (OFF,))
