"""When a head earns a label, and what a labels file may say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attnscope.errors import UsageError
from attnscope.render.palette import LABELS
from attnscope.scoring.estimate import Scores
from attnscope.scoring.labels import Evidence, Rule, label_heads, read_rules
from attnscope.scoring.roles import ROLES

RULE = """\
- label: previous-token
  role: previous_token
  minimum: 0.4
  evidence: [texts]
  source: a reason
"""


def scores(
    lift: list[float], low: list[float] | None = None, raw: list[float] | None = None
) -> Scores:
    """One layer; a number for each head."""

    def row(values: list[float] | None) -> np.ndarray:
        return np.array([values if values is not None else [np.nan] * len(lift)])

    n = np.ones((1, len(lift)), int)
    return Scores(row(raw or lift), row([0.0] * len(lift)), row(lift), row(low), row(low), n)


def rule(label: str = "previous-token", role: str = "previous_token", **changes: object) -> Rule:
    values: dict[str, object] = {"minimum": 0.4, "evidence": ("texts",), "source": "a reason"}
    return Rule(label=label, role=role, **(values | changes))  # type: ignore[arg-type]


def labels(
    rules: list[Rule], texts: Evidence, battery: Evidence | None = None, causal: bool = True
) -> list[tuple[str, ...]]:
    [layer] = label_heads(rules, texts, battery, causal)
    return [found.labels for found in layer]


# The file


def test_our_own_rules() -> None:
    rules = read_rules()
    assert {rule.label for rule in rules} <= set(LABELS)
    assert {rule.role for rule in rules} <= set(ROLES)
    assert all(rule.source.strip() for rule in rules)
    assert all(0 < rule.minimum < 1 for rule in rules)
    by_role = {rule.role: rule for rule in rules}
    assert set(by_role["previous_token"].evidence) == {"texts", "battery"}  # both, or it is content
    assert by_role["induction"].causal
    assert by_role["induction"].contrast
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
        (RULE.replace("[texts]", "[text]"), ["evidence"]),
        (RULE.replace("[texts]", "[]"), ["evidence"]),
        (RULE.replace("[texts]", "texts"), ["evidence"]),
        (RULE.replace("  source: a reason\n", ""), ["source"]),
        (RULE.replace("0.4", "high"), ["minimum", "high"]),
        (RULE.replace("0.4", ".nan"), ["minimum"]),
        (RULE + "  unless: [previus-token]\n", ["previus-token"]),
        ("label: x\n", ["not a list"]),
        ("- x\n", ["not a list"]),
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


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing\.yaml"):
        read_rules(tmp_path / "nothing.yaml")


# The rules


def test_the_lower_bound_decides_where_there_is_one() -> None:
    found = scores([0.6, 0.6, 0.3], low=[0.5, 0.39, 0.29])
    assert labels([rule()], Evidence({"previous_token": found})) == [("previous-token",), (), ()]


def test_without_a_bound_the_lift_decides() -> None:
    found = scores([0.4, 0.39, np.nan])
    assert labels([rule()], Evidence({"previous_token": found})) == [("previous-token",), (), ()]


def test_both_kinds_of_evidence_are_needed() -> None:
    both = rule(evidence=("texts", "battery"))
    texts = Evidence({"previous_token": scores([0.9, 0.9, 0.1])})
    battery = Evidence({"previous_token": scores([0.9, 0.1, 0.9])})
    assert labels([both], texts, battery) == [("previous-token",), (), ()]
    # Without a battery the texts must show it.
    assert labels([both], texts) == [("previous-token",), ("previous-token",), ()]


def test_the_contrast_with_unrepeated_tokens() -> None:
    """A head that scores as high without the repeat looks at a place, not at a copy."""
    induction = rule("induction", "induction", evidence=("battery",), contrast=True)
    battery = Evidence(
        {"induction": scores([0.9, 0.9, 0.9])},
        control={"induction": scores([0, 0, 0], raw=[0.01, 0.85, np.nan])},
    )
    texts = Evidence({"induction": scores([0, 0, 0])})
    assert labels([induction], texts, battery) == [("induction",), (), ("induction",)]


def test_causal_labels_are_not_given_to_encoders() -> None:
    induction = rule("induction", "induction", causal=True)
    texts = Evidence({"induction": scores([0.9])})
    assert labels([induction], texts, causal=True) == [("induction",)]
    assert labels([induction], texts, causal=False) == [()]


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
    [[found]] = label_heads(rules, texts, None, True)
    assert found.labels == ("current-token", "previous-token", "resting")
    assert found.rests_on == ("first-token", "punctuation")
    assert found.roles == ("current_token", "previous_token", "first_token")
