"""Induction in a real checkpoint, and in GPT-2 small where the hub can be reached."""

from __future__ import annotations

import pytest

from attnscope import api
from attnscope.experiments.induction import induction

NAME = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def found(pulled: None) -> api.InductionResult:
    return api.load(NAME, logits=True).induction(sequences=12, ablate=True)


@pytest.mark.real
def test_smollm2_has_its_induction_heads(found: api.InductionResult) -> None:
    run = found.first
    best = sorted(found.heads, key=lambda head: -run.scores["induction"].raw[head.layer, head.head])
    assert {str(head) for head in best[:4]} == {"18.6", "17.3", "17.4", "18.7"} or (
        {str(head) for head in best[:5]} == {"18.6", "17.3", "17.4", "18.7", "17.5"}
    )
    assert set(best[:4]) <= set(run.found)
    assert len(run.found) < 15
    assert {"11.1", "16.0"} <= {str(head) for head in run.labelled("previous-token")}
    assert float(run.loss.second.value) < float(run.loss.first.value) / 3
    assert found.feeding is not None
    assert found.feeding.feeds


@pytest.mark.real
def test_without_them_it_no_longer_copies(found: api.InductionResult) -> None:
    assert found.ablation is not None
    first, second = found.ablation.effects
    assert second.control is not None
    assert second.control.draws == 20
    assert second.delta > 3 * second.control.high
    assert abs(first.delta) < 0.1 * second.delta


@pytest.mark.network
def test_gpt2_small_has_its_known_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Published for S = 100 without BOS; tolerance .05."""
    monkeypatch.delenv("HF_HUB_OFFLINE")
    model = api.load("gpt2", logits=True, add_bos=False)
    run = induction(model, lengths=[100]).first
    published = {"5.1": 0.936, "5.5": 0.939, "6.9": 0.930, "7.2": 0.846, "7.10": 0.911}
    raw = {
        role: {f"{i}.{j}": value for i, row in enumerate(run.scores[role].raw)
               for j, value in enumerate(row)}
        for role in ("induction", "previous_token", "duplicate_token")
    }  # fmt: skip
    for head, value in published.items():
        assert raw["induction"][head] == pytest.approx(value, abs=0.05)
    assert raw["previous_token"]["4.11"] >= 0.95
    assert min(raw["duplicate_token"][head] for head in ("0.5", "3.0")) >= 0.60
    for head in ("4.11", "0.1", "0.5", "2.2", "3.0", "5.8", "5.9"):
        assert raw["induction"][head] < 0.05
    for head in ("0.1", "0.5", "3.0", "5.1", "5.5", "6.9"):
        assert raw["previous_token"][head] < 0.05
    assert max(raw["duplicate_token"][head] for head in ("4.11", "2.2")) < 0.05
    assert run.copying is not None
    for layer, head in ((10, 7), (11, 10)):
        assert raw["induction"][f"{layer}.{head}"] == pytest.approx(0.33, abs=0.05)
        assert run.copying.value[layer, head] < 0
    assert float(run.loss.first.value) == pytest.approx(12.07, abs=0.6)
    assert float(run.loss.second.value) == pytest.approx(0.44, abs=0.3)
