"""Labels that a head has by its mean scores: all that its bounds give it, and perhaps more."""

from __future__ import annotations

import numpy as np

from attnscope.experiments.conversion_result import Conversion, ConvertedHead, Survival
from attnscope.scoring.estimate import Scores
from attnscope.scoring.labels import Evidence, by_mean, judge, labels_of
from attnscope.scoring.rules import read_rules


def _scores(lift: float, bound: float) -> Scores:
    one = {name: np.array([[lift]]) for name in Scores.__dataclass_fields__}
    return Scores(**{**one, "bound": np.array([[bound]]), "n": np.array([[100]])})  # type: ignore[arg-type]


def test_a_wide_bound_takes_the_label_and_leaves_the_mean() -> None:
    rules = [rule for rule in read_rules() if rule.rests_on == "first-token"]
    for bound, kept in ((0.5, ("resting",)), (0.1, ())):
        evidence = {"text": Evidence({"first_token": _scores(0.6, bound)})}
        reached = {kind: by_mean(one) for kind, one in evidence.items()}
        assert labels_of(judge(rules, evidence, True), (1, 1))[0][0].labels == kept
        assert labels_of(judge(rules, reached, True), (1, 1))[0][0].labels == ("resting",)


def test_what_is_reached_is_counted_beside_what_is_kept() -> None:
    heads = (
        ConvertedHead(0, 0, 0, 0.0, ("resting",), ("resting",), ("resting",)),
        ConvertedHead(0, 1, 0, 0.0, ("resting",), (), ("resting",)),
        ConvertedHead(0, 2, 0, 0.0, ("resting",), (), ()),
        ConvertedHead(0, 3, 0, 0.0, (), (), ("resting",)),  # had it not before
    )
    nothing = dict.fromkeys(Conversion.__dataclass_fields__)
    one = Conversion(**{**nothing, "heads": heads})  # type: ignore[arg-type]
    assert one.survival == {"resting": Survival(before=3, kept=1, after=1, reached=2)}
