"""Induction on checkpoints whose copying is known: exact, shifted, avoided, none."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnscope.api import Model, load
from attnscope.errors import UsageError
from attnscope.experiments.ablation import ablate
from attnscope.experiments.ablation_result import Control
from attnscope.experiments.feeding import Feeding
from attnscope.experiments.induction import parse_lengths
from attnscope.experiments.story import tell
from attnscope.scoring.profile import SHIFTS
from attnscope.scoring.stimuli import middle_ids
from attnscope.types import Head
from tests import tiny
from tests.planted_copying import planted_copier

COPIER = Head(1, 0)
FEW = {"length": 20, "sequences": 6}


@pytest.fixture(scope="module")
def copiers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    kinds: dict[str, dict[str, Any]] = {
        "exact": {}, "shifted": {"shifted": True}, "negative": {"sign": -1.0}
    }  # fmt: skip
    return {
        name: load(str(planted_copier(tmp_path_factory.mktemp(name), **kind)), logits=True)
        for name, kind in kinds.items()
    }


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    directory = tiny.save(tiny.CONFIGS["llama-gqa"](), tmp_path_factory.mktemp("r"), causal_lm=True)
    return load(str(directory), logits=True)


@pytest.mark.parametrize("repeats", [2, 3])
def test_an_exact_induction_head_scores_one_and_copies(
    copiers: dict[str, Model], repeats: int
) -> None:
    result = copiers["exact"].induction(**FEW, repeats=repeats)
    run = result.first
    assert run.found == [COPIER]
    assert run.label(COPIER) == "induction"
    assert run.matching(COPIER) == pytest.approx(1.0, abs=1e-5)
    assert float(run.loss.first.value) == pytest.approx(math.log(2000), abs=0.01)
    assert float(run.loss.second.value) < 1e-3
    assert float(run.loss.unrepeated.value) == pytest.approx(math.log(2000), abs=0.01)
    assert run.loss.falls
    assert run.copying is not None
    assert run.copying.value[1, 0] > 20
    assert np.abs(run.copying.value).sum() == pytest.approx(run.copying.value[1, 0], rel=0.01)
    assert result.feeding is not None
    assert result.feeding.feeders == result.feeding.of(COPIER) == [Head(0, 0)]
    assert result.feeding.feeds
    assert result.feeding.without[COPIER] < 0.01
    assert run.profile(COPIER)[0] == pytest.approx(1, abs=1e-4)
    assert all(abs(weight) < 0.01 for k, weight in run.profile(COPIER).items() if k)


@pytest.mark.parametrize("method", ["zero", "mean", "resample", "rest"])
@pytest.mark.parametrize("head", [Head(0, 0), COPIER])
def test_without_either_head_the_second_half_is_lost_and_without_others_nothing(
    copiers: dict[str, Model], method: str, head: Head
) -> None:
    found = ablate(copiers["exact"], [head], method=method, length=20, sequences=4)
    first, second = found.effects
    assert [first.on, second.on] == ["first half", "second half"]
    assert second.clean < 1e-3
    assert second.delta > 7
    assert second.kl > 7
    # What 0.0 hands on in another text is now and then a token of this one: a false match.
    assert abs(first.delta) < (0.15 if method == "resample" else 0.02) * second.delta
    assert second.control is not None
    assert second.control.draws == 5  # all the other heads of the layer
    assert second.control.high < 0.01


def test_frozen_patterns_need_no_head_below(copiers: dict[str, Model]) -> None:
    """Keys found with 0.0 stay found without it; what 1.0 writes is lost in either mode."""
    model = copiers["exact"]
    kept = ablate(model, [Head(0, 0)], mode="frozen", length=20, sequences=4, controls=2)
    assert abs(kept.main.delta) < 0.01
    lost = ablate(model, [COPIER], mode="frozen", length=20, sequences=4, controls=2)
    assert lost.main.delta > 7


def test_a_shifted_pair_is_found_with_its_shift(copiers: dict[str, Model]) -> None:
    result = copiers["shifted"].induction(**FEW, ablate=True)
    run = result.first
    assert run.found == [COPIER]
    assert (run.label(COPIER), run.shift(COPIER)) == ("shifted-induction", 5)
    assert run.matching(COPIER) == pytest.approx(1.0, abs=1e-3)
    assert run.scores["induction"].raw[1, 0] < 0.01
    assert run.copiers.fed_by(COPIER) == {"key": [Head(0, 1)], "value": [Head(0, 0)]}
    assert float(run.loss.second.value) < 1e-3
    assert result.ablation is not None
    assert result.ablation.main.delta > 7
    assert max(run.profile(COPIER), key=run.profile(COPIER).__getitem__) == 5


def test_a_head_that_avoids_the_copy_is_anti_induction(copiers: dict[str, Model]) -> None:
    result = copiers["negative"].induction(**FEW)
    run = result.first
    assert run.label(COPIER) == "anti-induction"
    assert run.found == []
    assert run.copying is not None
    assert run.copying.value[1, 0] < -20
    assert not run.loss.falls
    assert float(run.loss.second.value) > float(run.loss.first.value)


@pytest.mark.parametrize("name", ["llama-gqa", "gpt2", "gemma2"])
def test_random_weights_have_no_induction_heads(name: str, tmp_path: Path) -> None:
    directory = tiny.save(tiny.CONFIGS[name](), tmp_path, causal_lm=True)
    result = load(str(directory), logits=True).induction(length=20, sequences=8, ablate=True)
    assert result.first.labelled("induction", "shifted-induction", "anti-induction") == []
    assert result.ablation is None
    assert result.feeding is None
    assert not result.first.loss.falls
    story = " ".join(tell(result))
    assert "no sign of copying" in story
    assert "Nothing was switched off" in " ".join(result.notes)


def test_a_model_that_copies_through_no_head_in_sight_is_told(copiers: dict[str, Model]) -> None:
    """A head nine past the target lies outside the profile; here the profile is made narrower."""
    import attnscope.scoring.profile as profile

    kept = profile.SHIFTS
    profile_shifts = tuple(k for k in kept if k < 5)
    with pytest.MonkeyPatch.context() as patch:
        for module in ("profile",):
            patch.setattr(f"attnscope.scoring.{module}.SHIFTS", profile_shifts)
        for module in ("induction", "induction_result"):
            patch.setattr(f"attnscope.experiments.{module}.SHIFTS", profile_shifts)
        result = copiers["shifted"].induction(**FEW)
        assert result.first.found == []
        assert result.first.loss.falls
        assert "copies, but not through heads this profile sees" in " ".join(tell(result))
    assert kept == SHIFTS


def test_the_document_has_the_agreed_keys(copiers: dict[str, Model]) -> None:
    result = copiers["exact"].induction(length="20,10", sequences=4, ablate=True)
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert document["schema"] == "attnscope.induction/1"
    stimulus = document["stimulus"]
    assert {"length": 20, "repeats": 2, "sequences": 4, "seed": 0, "bos": "<s>"}.items() <= (
        stimulus.items()
    )
    assert {"first", "second"} <= set(document["loss"])
    entry = document["heads"][6]
    assert {
        "layer", "head", "kv_head", "prefix_matching", "copying", "shift", "profile",
        "previous_token", "duplicate_token", "label",
    } <= set(entry)  # fmt: skip
    assert set(entry["profile"]) == {str(k) for k in range(-8, 9)}
    assert {"raw", "chance", "lift", "low", "high", "n"} <= set(entry["prefix_matching"])
    ablation = document["ablation"]
    assert ablation["heads"] == ["1.0"]
    assert {"method", "first_delta", "second_delta"} <= set(ablation)
    assert set(ablation["control_second_delta"]) == {"mean", "low", "high", "draws"}
    assert [other["stimulus"]["length"] for other in document["lengths"]] == [10]
    frame = result.to_frame()
    assert len(frame) == 2 * 12
    assert frame["length"].tolist() == [20] * 12 + [10] * 12


def test_labels_are_those_of_heads() -> None:
    """The same tokens, rules and bounds, where the settings are the battery's."""
    model = load("demo-gpt2", logits=True)
    here = model.induction().first
    battery = model.heads("The queen washed the cake.").random
    assert battery is not None
    for role in ("induction", "duplicate_token", "previous_token"):
        ours, theirs = here.scores[role], battery.evidence.scores[role]
        for name in ("raw", "chance", "low", "high", "bound"):
            np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), atol=1e-6)


def test_two_other_conventions_score_a_perfect_head_as_they_do(copiers: dict[str, Model]) -> None:
    """S = 20 behind BOS: the diagonal has 22 entries, one of them no target; there are 41 rows."""
    conventions = copiers["exact"].induction(**FEW).first.conventions
    assert conventions["diagonal"][1, 0] == pytest.approx(21 / 22, abs=0.01)
    assert conventions["ratio"][1, 0] == pytest.approx(20 / 41, abs=1e-3)


def test_one_sequence_has_no_interval(copiers: dict[str, Model]) -> None:
    result = copiers["exact"].induction(length=10, sequences=1)
    assert result.first.label(COPIER) == "induction"
    assert result.to_json()["heads"][6]["prefix_matching"]["low"] is None
    assert any("One sequence is weak evidence" in note for note in result.notes)


def test_the_seed_decides(copiers: dict[str, Model], random_model: Model) -> None:
    one, again, other = (
        random_model.induction(length=8, sequences=2, seed=seed).first.scores["induction"].raw
        for seed in (0, 0, 1)
    )
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


def test_what_makes_no_sense_is_refused(random_model: Model) -> None:
    for options in ({"length": 1}, {"length": 0}, {"repeats": 1}, {"sequences": 0}):
        with pytest.raises(UsageError):
            random_model.induction(**options)
    with pytest.raises(UsageError, match="as lengths"):
        parse_lengths("50,fifty")
    assert parse_lengths("16, 50") == [16, 50]


def test_positions_that_are_too_few(tmp_path: Path) -> None:
    config = tiny.CONFIGS["gpt2"]()
    config.n_positions = 20
    model = load(str(tiny.save(config, tmp_path, causal_lm=True)), logits=True)
    result = model.induction(sequences=2)
    assert result.first.stimulus.length == 9
    shortened = "Shortened from 50 to 9 random tokens: the model has 20 positions."
    assert shortened in result.notes
    with pytest.raises(UsageError, match="--repeats 15 leaves no room"):
        model.induction(sequences=2, repeats=15)


def test_a_small_vocabulary_is_named_as_the_bound(tmp_path: Path) -> None:
    config = tiny.CONFIGS["gpt2"]()
    config.n_positions = 512
    model = load(str(tiny.save(config, tmp_path, causal_lm=True)), logits=True)
    usable = len(middle_ids(model))
    result = model.induction(length=usable, sequences=2)
    assert result.first.stimulus.length == usable // 2
    assert f"{usable} tokens may be drawn" in result.notes[0]


@pytest.mark.parametrize("name", ["mistral-window", "gpt_oss", "gemma2", "opt-norm-after", "phi"])
def test_odd_checkpoints_give_finite_numbers(name: str, tmp_path: Path) -> None:
    directory = tiny.save(tiny.CONFIGS[name](), tmp_path, causal_lm=True)
    model = load(str(directory), logits=True)
    result = model.induction(length=8, sequences=3)
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert document["loss"]["first"] > 0
    copying = [entry["copying"] for entry in document["heads"]]
    assert (copying[0] is None) == (name == "opt-norm-after")
    for method in ("zero", "mean", "resample", "rest"):
        found = ablate(model, [Head(1, 1)], method=method, length=3, sequences=2, controls=2)
        assert np.isfinite([effect.delta for effect in found.effects]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"controls": -1}, "--controls is how many"),
        ({"method": "q"}, "Unknown method"),
        ({"mode": "q"}, "Unknown mode"),
        ({"seed": -1}, "--seed is a whole number"),
        ({"repeats": 1}, "2 at least"),
        ({"sequences": 0}, "1 at least"),
        ({"length": 1}, "2 at least"),
    ],
)
def test_the_library_refuses_what_the_command_does(
    copiers: dict[str, Model], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        copiers["exact"].induction(**options)
    with pytest.raises(UsageError, match=message):
        copiers["exact"].ablate(heads="1.0", **options)


def test_only_what_a_head_needs_by_itself_feeds_it() -> None:
    above, one, other = COPIER, Head(0, 0), Head(0, 1)
    control = Control(0.9, 0.9, 0.9, 5)
    alone = {one: {above: 0.1}, other: {above: 0.85}}
    found = Feeding((one, other), {above: 0.9}, {above: 0.1}, alone, control)
    assert found.feeders == found.of(above) == [one]
    assert found.to_json()["heads"] == ["0.0"]
    assert found.to_json()["candidates"] == ["0.0", "0.1"]
    stand_in = {one: {above: 0.88}, other: {above: 0.89}}
    spare = Feeding((one, other), {above: 0.9}, {above: 0.1}, stand_in, control)
    assert spare.feeders == [one, other]
    assert spare.of(above) == []
    idle = Feeding((one, other), {above: 0.9}, {above: 0.89}, stand_in, control)
    assert (idle.feeds, idle.feeders) == (False, [])


def test_what_feeds_stands_beside_random_heads(copiers: dict[str, Model]) -> None:
    feeding = copiers["exact"].induction(**FEW).feeding
    assert feeding is not None
    assert feeding.control is not None
    assert feeding.control.draws == 5
    assert feeding.control.low > 0.99
    assert feeding.alone[Head(0, 0)][COPIER] == pytest.approx(feeding.without[COPIER], abs=1e-6)
