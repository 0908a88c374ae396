"""When a head earns a label, and what a labels file may say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attnscope.errors import UsageError
from attnscope.render.palette import LABELS
from attnscope.scoring.estimate import Scores
from attnscope.scoring.labels import Evidence, HeadLabels, judge, labels_of
from attnscope.scoring.roles import ROLES
from attnscope.scoring.rules import LABELS as ORDER
from attnscope.scoring.rules import UNCLASSIFIED, Rule, read_rules

RULE = """\
- label: previous-token
  role: previous_token
  minimum: 0.4
  evidence: [text]
  source: a reason
"""


def scores(
    lift: list[float],
    bound: list[float] | None = None,
    raw: list[float] | None = None,
    chance: float = 0.0,
    low: list[float] | None = None,
    n: int = 1,
) -> Scores:
    """One layer; a number for each head. `low` is the bound where it is not given."""

    def row(values: list[float] | None) -> np.ndarray:
        return np.array([values if values is not None else [np.nan] * len(lift)], dtype=float)

    some = row([chance] * len(lift))
    return Scores(
        raw=row(raw or lift), chance=some, lift=row(lift), low=row(low or bound),
        high=row(low or bound), bound=row(bound), sink_free=row(lift), sink_free_chance=some,
        live_mass=row([1.0] * len(lift)), n=np.full((1, len(lift)), n),
    )  # fmt: skip


def rule(label: str = "previous-token", role: str = "previous_token", **changes: object) -> Rule:
    values: dict[str, object] = {"minimum": 0.4, "evidence": ("text",), "source": "a reason"}
    return Rule(label=label, role=role, **(values | changes))  # type: ignore[arg-type]


def found_labels(
    rules: list[Rule], text: Evidence, random: Evidence | None = None, causal: bool = True
) -> list[HeadLabels]:
    evidence = {"text": text} if random is None else {"text": text, "random": random}
    [layer] = labels_of(judge(rules, evidence, causal), next(iter(text.scores.values())).lift.shape)
    return layer


def labels(
    rules: list[Rule], text: Evidence, random: Evidence | None = None, causal: bool = True
) -> list[tuple[str, ...]]:
    return [found.labels for found in found_labels(rules, text, random, causal)]


# The file


def test_our_own_rules() -> None:
    rules = read_rules()
    assert {rule.label for rule in rules} <= set(LABELS) - {UNCLASSIFIED}
    assert set(LABELS) >= set(ORDER)  # each has a colour
    assert {rule.role for rule in rules} <= set(ROLES)
    assert all(rule.source.strip() for rule in rules)
    assert all(0 < rule.minimum < 1 for rule in rules)
    by_role = {rule.role: rule for rule in rules}
    assert set(by_role["previous_token"].evidence) == {"text", "random"}  # both, or it is content
    assert by_role["induction"].causal
    assert by_role["induction"].contrast
    assert by_role["duplicate_token"].contrast
    assert by_role["coreference"].baselines
    assert by_role["broad"].minimum == 0.8
    assert all(rule.rests_on for rule in rules if rule.label == "resting")


def test_a_file_of_rules(tmp_path: Path) -> None:
    path = tmp_path / "labels.yaml"
    path.write_text(RULE)
    [found] = read_rules(path)
    assert found == rule(source="a reason")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (RULE + "  minimun: 0.5\n", ["minimun", "Did you mean 'minimum'"]),
        (RULE.replace("role: previous_token", "role: previus_token"),
         ["previus_token", "Did you mean 'previous_token'"]),
        (RULE.replace("label: previous-token", "label: previus-token"),
         ["previus-token", "Did you mean 'previous-token'"]),
        (RULE.replace("[text]", "[texts]"), ["evidence", "texts", "Did you mean 'text'"]),
        (RULE.replace("[text]", "[]"), ["evidence"]),
        (RULE.replace("[text]", "text"), ["evidence"]),
        (RULE.replace("  source: a reason\n", ""), ["source"]),
        (RULE.replace("0.4", "high"), ["minimum", "high"]),
        (RULE.replace("0.4", ".nan"), ["minimum"]),
        (RULE + "  unless: [previus-token]\n", ["previus-token"]),
        ("label: x\n", ["not a list"]),
        ("- x\n", ["rule 1", "not a rule"]),
        (RULE + RULE.replace("label", "lable"), ["rule 2", "lable", "Did you mean 'label'"]),
        (RULE + "  contrast: 1\n", ["contrast", "true or false"]),
        (RULE.replace("0.4", "true"), ["minimum"]),
        (RULE + "  rests_on: first\n", ["rests_on", "first"]),
        (RULE.replace("label: previous-token", "label: unclassified"), ["unclassified"]),
        ("", ["not a list"]),
        ("- {", ["Cannot read"]),
        ("\x00", ["Cannot read"]),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file_is_told(changed: str, told: list[str], tmp_path: Path) -> None:
    path = tmp_path / "labels.yaml"
    path.write_text(changed)
    with pytest.raises(UsageError) as caught:
        read_rules(path)
    assert str(path) in str(caught.value)
    for words in told:
        assert words in str(caught.value)


def test_a_rule_may_name_a_role_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "labels.yaml"
    path.write_text(RULE.replace("previous_token", "three").replace("previous-token", "three"))
    with pytest.raises(UsageError, match="three"):
        read_rules(path)
    [found] = read_rules(path, ["three"])
    assert (found.label, found.role) == ("three", "three")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing\.yaml"):
        read_rules(tmp_path / "nothing.yaml")


# The rules


def test_the_lower_bound_decides_where_there_is_one() -> None:
    """Not that of the head alone: the one that holds for all heads and roles at once."""
    found = scores([0.6, 0.6, 0.3], bound=[0.5, 0.39, 0.29], low=[0.55, 0.55, 0.55])
    assert labels([rule()], Evidence({"previous_token": found})) == [("previous-token",), (), ()]


def test_without_a_bound_the_lift_decides() -> None:
    found = scores([0.4, 0.39, np.nan])
    assert labels([rule()], Evidence({"previous_token": found})) == [("previous-token",), (), ()]


def test_both_kinds_of_evidence_are_needed() -> None:
    both = rule(evidence=("text", "random"))
    texts = Evidence({"previous_token": scores([0.9, 0.9, 0.1])})
    random = Evidence({"previous_token": scores([0.9, 0.1, 0.9])})
    assert labels([both], texts, random) == [("previous-token",), (), ()]
    # Without a battery the texts must show it.
    assert labels([both], texts) == [("previous-token",), ("previous-token",), ()]


def test_the_contrast_with_unrepeated_tokens() -> None:
    """A head that scores as high without the repeat looks at a place, not at a copy."""
    induction = rule("induction", "induction", evidence=("random",), contrast=True)
    random = Evidence(
        {"induction": scores([0.9, 0.9, 0.9])},
        control={"induction": scores([0, 0, 0], raw=[0.01, 0.85, np.nan])},
    )
    texts = Evidence({"induction": scores([0, 0, 0])})
    assert labels([induction], texts, random) == [("induction",), (), ("induction",)]


@pytest.mark.parametrize(("rows", "given"), [(7, ()), (8, ("induction",))])
def test_without_unrepeated_tokens_a_contrast_needs_rows(rows: int, given: tuple[str]) -> None:
    induction = rule("induction", "induction", evidence=("random",), contrast=True)
    texts = Evidence({"induction": scores([0.9], n=rows)})
    assert labels([induction], texts) == [given]


def test_every_baseline_must_be_beaten_by_the_lower_bound() -> None:
    """Bounds .7, .5 and .6 of lift are shares of .85, .75 and .8; the best rule is right in .8."""
    coreference = rule("coreference", "coreference", minimum=0.2, baselines=True)
    role = scores([0.9] * 3, bound=[0.7, 0.5, 0.6], raw=[0.95] * 3, chance=0.5)
    wrong = scores([0.5] * 3, bound=[-0.5] * 3, low=[0.01] * 3, chance=0.5)
    each = {"coreference": role, "coreference_nearest_wrong": wrong}
    rules = {"coreference": {"nearest": 0.5, "first": 0.8}}
    assert labels([coreference], Evidence(each, None, rules)) == [("coreference",), (), ()]


def test_a_head_must_win_where_the_nearest_candidate_is_wrong() -> None:
    coreference = rule("coreference", "coreference", minimum=0.2, baselines=True)
    role = scores([0.9] * 3, bound=[0.7] * 3, raw=[0.95] * 3, chance=0.5)
    wrong = scores([0.5] * 3, bound=[0.1] * 3, low=[0.01, 0.0, -0.2], chance=0.5)
    each = {"coreference": role, "coreference_nearest_wrong": wrong}
    evidence = Evidence(each, None, {"coreference": {"nearest": 0.5}})
    assert labels([coreference], evidence) == [("coreference",), (), ()]


def test_causal_labels_are_not_given_to_encoders() -> None:
    induction = rule("induction", "induction", causal=True)
    texts = Evidence({"induction": scores([0.9]), "previous_token": scores([0.1])})
    assert labels([induction, rule()], texts, causal=True) == [("induction",)]
    assert labels([induction, rule()], texts, causal=False) == [()]


def test_a_role_that_was_not_asked_gives_no_label() -> None:
    texts = Evidence({"previous_token": scores([0.9])})
    assert labels([rule(), rule("next-token", "next_token")], texts) == [("previous-token",)]


def test_unless_leaves_out_what_is_said_already() -> None:
    rules = [rule("local", "local", unless=("previous-token",)), rule()]
    texts = Evidence({"previous_token": scores([0.9, 0.1]), "local": scores([0.95, 0.95])})
    assert labels(rules, texts) == [("previous-token",), ("local",)]


def test_strongest_first_and_resting_last() -> None:
    rules = [
        rule("resting", "first_token", rests_on="first-token"),
        rule("resting", "punctuation", rests_on="punctuation"),
        rule(),
        rule("current-token", "current_token"),
    ]
    texts = Evidence(
        {
            "first_token": scores([0.99]),
            "punctuation": scores([0.5]),
            "previous_token": scores([0.45]),
            "current_token": scores([0.6]),
        }
    )
    [found] = found_labels(rules, texts)
    assert found.labels == ("current-token", "previous-token", "resting")
    assert found.rests_on == ("first-token", "punctuation")
    assert found.roles == ("current_token", "previous_token", "first_token")
