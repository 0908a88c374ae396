"""circuits: planted heads find each other, copying and positions are what they are, labels come."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import attnscope
from attnscope import api
from attnscope.api import CircuitsResult
from attnscope.errors import UsageError
from attnscope.experiments.own_weights import Distance, copying_scores, favoured_distances
from attnscope.types import Head
from tests import planted, tiny

Checkpoint = Callable[[str], Path]
TEXT = "The keeper of the lighthouse had a long night, and the wind, which rose, pushed the waves."


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CircuitsResult]:
    results = {}
    for name, write in (("gpt2", planted.planted_gpt2), ("llama", planted.planted_llama)):
        directory = tmp_path_factory.mktemp(name)
        write(directory, [TEXT])
        results[name] = api.load(str(directory)).circuits(top_k=200, kind=["K"])
    return results


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_planted_pair_stands_above_every_other(
    name: str, found: dict[str, CircuitsResult]
) -> None:
    """The previous-token head 0.0 feeds the keys of the induction head 1.0."""
    first, second, *rest = found[name].top
    assert (first.kind, first.source, first.target) == ("K", Head(0, 0), Head(1, 0))
    assert first.z > 80
    assert first.score > 2.5 * found[name].baseline
    # The other induction head reads a loud mark besides, and that most of all.
    assert (second.source, second.target) == (Head(0, 0), Head(1, 1))
    assert second.score < 0.4 * first.score
    assert all(pair.score < 0.01 * first.score for pair in rest)
    assert all(pair.z < 0 for pair in (second, *rest))


def test_the_planted_heads_places(found: dict[str, CircuitsResult]) -> None:
    """Positions alone say where previous, two back, seven back and itself look."""
    entries = {str(head): found["gpt2"].head_entry(head) for head in found["gpt2"].heads}
    for head, offset in (("0.0", -1), ("0.1", -2), ("0.3", -7), ("1.3", 0)):
        assert entries[head]["position_offset"] == offset
        assert entries[head]["position_share"] > 0.99
    assert entries["1.5"]["position_offset"] is None  # looks at everything alike
    assert entries["1.5"]["qk_norm"] == 0
    assert found["llama"].head_entry(Head(0, 0))["position_offset"] is None  # rotary


def test_positions_of_encoders() -> None:
    """Both ways, as the bundled encoder was trained: heads that look one back and one ahead."""
    result = attnscope.load("demo-bert").circuits()
    assert [distance and distance.offset for distance in result.own.distance[:2]] == [-1, 1]
    assert all(
        distance is not None and distance.share > 0.9 for distance in result.own.distance[:2]
    )


def test_favoured_distances_by_hand() -> None:
    clock = torch.arange(32)[:, None] * torch.tensor([0.7, 0.11])
    hands = torch.cat([clock.cos(), clock.sin()], -1)
    for causal, offsets in ((True, (0, 1, 5)), (False, (-4, 0, 3))):
        for back in offsets:
            query = torch.roll(hands, back, 0)[None]
            assert favoured_distances(query, hands[None], causal) == [
                Distance(-back, pytest.approx(1, abs=1e-6))
            ]
    assert favoured_distances(hands[None, :3], hands[None, :3], True) == [None]
    flat = favoured_distances(torch.ones(1, 16, 2), torch.ones(1, 16, 2), True)
    assert flat == [None]


@pytest.mark.parametrize("name", ["gpt2", "llama-gqa", "gemma2"])
def test_copying_is_what_whole_matrices_say(name: str, tmp_path: Path) -> None:
    """The (V, V) matrix from token to logit, by all of its eigenvalues."""
    tiny.save(tiny.CONFIGS[name](), tmp_path, causal_lm=True)
    model = api.load(str(tmp_path), logits=True)
    copying = model.circuits().own.copying
    embedding = model.network.get_input_embeddings().weight.double()
    unembedding = model.network.get_output_embeddings().weight.double()
    body, width = model.network.base_model, model.shape.d_model
    eye, centring = torch.eye(width).double(), torch.eye(width).double() - 1 / width
    last, layer = (body.ln_f, body.h[1]) if name == "gpt2" else (body.norm, body.layers[1])
    plus = int(name == "gemma2")
    middle = centring if name == "gpt2" else eye
    first = layer.ln_1 if name == "gpt2" else layer.input_layernorm
    behind = layer.post_attention_layernorm.weight.double() + 1 if plus else torch.ones(width)
    own = model.seats[1].attention
    for head in range(model.shape.n_heads):
        rows = slice(head * model.shape.d_head, (head + 1) * model.shape.d_head)
        group = head // (model.shape.n_heads // model.shape.n_kv_heads)
        shared = slice(group * model.shape.d_head, (group + 1) * model.shape.d_head)
        whole = unembedding @ torch.diag(last.weight.double() + plus) @ middle
        whole = whole @ torch.diag(behind.double()) @ own.W_O.weight.double()[:, rows]
        whole = whole @ (own.W_V.weight.double()[shared] * (first.weight.double() + plus)) @ middle
        eigenvalues = torch.linalg.eigvals(whole @ embedding.T)
        expected = float(eigenvalues.real.sum() / eigenvalues.abs().sum())
        assert copying[model.shape.n_heads + head] == pytest.approx(expected, abs=1e-4)


def test_copying_by_hand() -> None:
    eye = torch.eye(8)[None, :3]  # reads three features and writes them back
    assert copying_scores(eye, torch.eye(8), eye) == pytest.approx(1)
    assert copying_scores(eye, torch.eye(8), -eye) == pytest.approx(-1)
    assert copying_scores(eye, torch.eye(8), 0 * eye).isnan().all()
    turned = eye[:, [1, 0, 2]] * torch.tensor([1.0, -1.0, 0.0])[:, None]  # eigenvalues ±i and 0
    assert copying_scores(eye, torch.eye(8), turned) == pytest.approx(0, abs=1e-6)


def test_no_copying_without_an_unembedding(checkpoint: Checkpoint) -> None:
    for name, words in (
        ("gpt2", "no unembedding"),
        ("bert", "an encoder predicts"),
        ("bert-causal", "norms stand in the residual stream"),
    ):
        result = api.load(str(checkpoint(name))).circuits()
        assert all(score != score for score in result.own.copying)
        assert any(words in note for note in result.notes)


def test_labels_name_sources_and_targets() -> None:
    model = attnscope.load("demo-gpt2")
    without = model.circuits()
    assert without.labels is None
    assert "--heads-from-battery" in " ".join(without.notes)
    assert without.to_json()["induction_sources"] is None
    asked = model.circuits(heads_from_battery=True)
    (feeding, *_), (fed, *_) = asked.sources[Head(1, 0)], asked.targets[Head(0, 0)]
    assert (feeding.kind, feeding.source) == ("K", Head(0, 0))
    assert (fed.kind, fed.target) == ("K", Head(1, 0))
    assert feeding.z > 20
    kept = attnscope.load("demo-gpt2").circuits()  # where they are kept they are used
    assert kept.labels == asked.labels
    assert attnscope.load("demo-gpt2").circuits(heads_from_battery=False).labels is None
    assert kept.top == without.top


def test_a_tokenizer_that_does_not_fit_gives_no_labels(tmp_path: Path) -> None:
    planted.planted_gpt2(tmp_path, [TEXT])
    result = api.load(str(tmp_path)).circuits(heads_from_battery=True)
    assert result.labels is None
    assert any("without labels: the tokenizer does not know" in note for note in result.notes)


def test_filters(checkpoint: Checkpoint) -> None:
    model = api.load(str(checkpoint("llama-gqa")))
    every = model.circuits(top_k=1000).top
    assert len(every) == 3 * 48
    assert [pair.z for pair in every] == sorted((pair.z for pair in every), reverse=True)
    some = model.circuits(source="0.1,1.2", target="2.3", kind=["V", "Q"], top_k=1000).top
    sources = (Head(0, 1), Head(1, 2))
    kept = [p for p in every if p.source in sources and p.target == Head(2, 3) and p.kind != "K"]
    assert some == kept
    assert len(some) == 4
    assert model.circuits(top_k=3).top == every[:3]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"source": "2.0"}, "No pair is left"),
        ({"target": "0.0"}, "No pair is left"),
        ({"source": "1.0", "target": "1.1"}, "No pair is left"),
        ({"source": "3.0"}, "Unknown head '3.0'"),
        ({"kind": ["X"]}, "Unknown kind 'X'"),
        ({"kind": []}, "choose from Q, K, V"),
        ({"top_k": 0}, "at least one"),
        ({"offset": 1}, "a later token"),
        ({"offset": -128}, "128 positions"),
    ],
)
def test_used_wrongly(options: dict[str, object], words: str, checkpoint: Checkpoint) -> None:
    with pytest.raises(UsageError, match=words):
        api.load(str(checkpoint("llama-gqa"))).circuits(**options)


def test_a_chain_of_filters_with_gaps_finds_what_is_there(checkpoint: Checkpoint) -> None:
    """Sources above some targets are left out, not an error."""
    model = api.load(str(checkpoint("llama-gqa")))
    pairs = model.circuits(source="0.0,2.0", target="1.0,2.1", top_k=100).top
    assert {(str(p.source), str(p.target)) for p in pairs} == {("0.0", "1.0"), ("0.0", "2.1")}


def test_one_layer(tmp_path: Path) -> None:
    tiny.save(tiny._gpt2(n_layer=1), tmp_path)
    result = api.load(str(tmp_path)).circuits()
    assert result.top == []
    assert result.n_pairs == 0
    assert "One layer" in result.notes[0]
    assert all(norm > 0 for norm in result.own.qk_norm)
    json.dumps(result.to_json(), allow_nan=False)
    with pytest.raises(UsageError, match="nothing to draw"):
        result.plot(tmp_path / "x.png")


@pytest.mark.parametrize(
    "name", ["qwen3", "bert", "gpt_oss", "gemma2", "mistral-window", "smollm3", "mixtral", "ctrl"]
)
def test_documents_of_many_kinds(name: str, checkpoint: Checkpoint) -> None:
    result = api.load(str(checkpoint(name))).circuits(heads_from_battery=False)
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert document["schema"] == "attnscope.circuits/1"
    assert len(document["heads"]) == result.model["n_layers"] * result.model["n_heads"]
    assert len(document["composition"]) == 20
    normed = name == "qwen3"
    assert any("norms its queries and keys" in note for note in document["notes"]) is normed
    assert (document["heads"][0]["qk_norm"] is None) is normed


def test_frames(checkpoint: Checkpoint) -> None:
    result = api.load(str(checkpoint("llama-gqa"))).circuits(top_k=7)
    frame = result.to_frame()
    assert list(frame.columns) == ["kind", "source", "target", "score", "baseline", "z", "z_among"]
    assert len(frame) == 7
    assert frame["baseline"].unique() == pytest.approx([32**-0.5])
    heads = result.by_head().to_frame()
    assert len(heads) == 12
    assert heads["kv_head"].tolist() == [0, 0, 1, 1] * 3


@pytest.mark.real
def test_the_induction_heads_of_smollm2_read_a_previous_token_head(pulled: None) -> None:
    result = api.load("smollm2-135m-instruct").circuits(heads_from_battery=True)
    for head in ("17.3", "17.4", "17.5", "18.6", "18.7"):
        read = result.strongest(target=[Head.parse(head)], kinds=["K"], top_k=2)
        assert Head(16, 0) in [pair.source for pair in read]
        assert all(pair.z > 15 for pair in read)
    assert result.targets[Head(16, 0)][0].target in result.sources
