"""Logits in slices: the loss is transformers' own, and no more than a slice ever exists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from transformers import AutoModelForCausalLM

from attnscope.api import load
from attnscope.errors import CheckpointError, UsageError
from attnscope.models import unembedding
from attnscope.scoring.losses import predictions
from attnscope.types import TokenBatch
from tests import tiny

NAMES = {
    "gpt2": {},
    "llama": {},
    "llama-gqa": {"tie_word_embeddings": True},
    "gemma2": {"final_logit_softcapping": 3.0},
    "granite-multipliers": {},
    "cohere": {},
    "opt": {},
    "phi": {},
    "gpt_oss": {},
}


@pytest.fixture(scope="module")
def predictors(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            config = tiny.CONFIGS[name]()
            for key, value in NAMES.get(name, {}).items():
                setattr(config, key, value)
            directory = tmp_path_factory.mktemp(f"lm-{name}")
            made[name] = tiny.save(config, directory, causal_lm=True)
        return made[name]

    return get


def batch_of_ids(ids: Tensor) -> TokenBatch:
    nothing = torch.zeros_like(ids, dtype=torch.bool)
    return TokenBatch(ids, ~nothing, nothing, nothing)


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_is_transformers_own(
    name: str, predictors: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unembedding, "SLICE_NUMBERS", 7 * tiny.VOCABULARY)
    directory = predictors(name)
    model = load(str(directory), logits=True)
    ids = torch.randint(5, tiny.VOCABULARY, (3, 30), generator=torch.Generator().manual_seed(2))
    hidden = model.run(batch_of_ids(ids))
    ours = predictions(model.predictor(), hidden, ids).loss
    theirs: Any = AutoModelForCausalLM.from_pretrained(
        directory, attn_implementation="eager", dtype=torch.float32
    ).eval()
    with torch.no_grad():
        for text in range(3):
            one = ids[text : text + 1]
            whole = theirs(input_ids=one, labels=one)
            assert float(ours[0, text].mean()) == pytest.approx(float(whole.loss), abs=2e-4)


def test_kl_is_that_of_the_two_distributions(predictors: Callable[[str], Path]) -> None:
    model = load(str(predictors("gemma2")), logits=True)
    ids = torch.randint(5, tiny.VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(2))
    hidden = model.run(batch_of_ids(ids))
    other = hidden + 0.3 * torch.randn(hidden.shape, generator=torch.Generator().manual_seed(3))
    found = predictions(model.predictor(), torch.cat([hidden, other]), ids, runs=2)
    first, second = (
        model.predictor()(part[:, :-1].flatten(0, 1)).log_softmax(-1) for part in (hidden, other)
    )
    wanted = (first.exp() * (first - second)).sum(-1).view(2, -1).double()
    assert wanted.min() > 0.01
    torch.testing.assert_close(found.kl[1], wanted, atol=1e-4, rtol=1e-3)
    assert not found.kl[0].any()


class Logits(TorchDispatchMode):
    """The most numbers of any tensor made within it that has one for every token."""

    numbers = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor) and tensor.shape[-1:] == (tiny.VOCABULARY,):
                matrix = tensor.shape == (32, tiny.VOCABULARY)  # W_U, transposed
                self.numbers = max(self.numbers, 0 if matrix else tensor.numel())
        return result


def test_no_more_logits_than_a_slice_ever_exist(
    predictors: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(str(predictors("llama")), logits=True)
    ids = torch.randint(5, tiny.VOCABULARY, (4, 100), generator=torch.Generator().manual_seed(2))
    monkeypatch.setattr(unembedding, "SLICE_NUMBERS", 20 * tiny.VOCABULARY)
    with Logits() as seen:
        hidden = model.run(batch_of_ids(ids))
        assert seen.numbers == 0
        predictions(model.predictor(), torch.cat([hidden, hidden]), ids, runs=2)
    assert seen.numbers == 20 * tiny.VOCABULARY


def test_positions_that_are_not_asked_cost_nothing(predictors: Callable[[str], Path]) -> None:
    model = load(str(predictors("gpt2")), logits=True)
    ids = torch.randint(5, tiny.VOCABULARY, (2, 10), generator=torch.Generator().manual_seed(2))
    hidden = model.run(batch_of_ids(ids))
    asked = torch.zeros(2, 9, dtype=torch.bool)
    asked[0, 4] = asked[1, 8] = True
    whole, some = (predictions(model.predictor(), hidden, ids, asked=a) for a in (None, asked))
    torch.testing.assert_close(some.loss[0][asked], whole.loss[0][asked], rtol=1e-6, atol=5e-6)
    assert some.loss.count_nonzero() == 2


def test_a_model_without_its_head_says_so(checkpoint: Callable[[str], Path]) -> None:
    model = load(str(checkpoint("llama-gqa")))
    with pytest.raises(UsageError, match="logits=True"):
        model.induction()


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert", "distilbert"])
def test_encoders_are_refused_before_their_weights_are_read(
    name: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    other = tmp_path / "without weights"
    other.mkdir()
    for file in checkpoint(name).iterdir():
        if file.suffix == ".json":
            (other / file.name).write_bytes(file.read_bytes())
    with pytest.raises(CheckpointError, match="reads both ways"):
        load(str(other), logits=True, predicts=True)


def test_a_scaled_head_is_measured(predictors: Callable[[str], Path]) -> None:
    scales = {"granite-multipliers": 0.5, "cohere": 0.0625, "gemma2": 1.0, "gpt2": 1.0}
    for name, scale in scales.items():
        model = load(str(predictors(name)), logits=True)
        assert model.predictor().scale() == pytest.approx(scale, rel=1e-4)
