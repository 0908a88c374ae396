"""How stable the battery's labels are: `python -m tests.stability MODEL` prints what README says.

The same heads under another seed (other random tokens, other resamples), and under each half of the
passages. Needs the model; each seed reads its random tokens once.
"""

from __future__ import annotations

import sys
from collections import Counter
from itertools import chain

import attnscope
from attnscope.api import Model
from attnscope.scoring.battery import ERROR, Reading, estimate_roles, run_battery
from attnscope.scoring.labels import Evidence, HeadLabels, judge, labels_of
from attnscope.scoring.rules import read_rules

Labels = list[list[HeadLabels]]


def labels(model: Model, text: Evidence, random: Reading) -> Labels:
    """The labels that this evidence gives."""
    evidence = {"text": text, "random": random.evidence}
    return labels_of(judge(read_rules(), evidence, model.shape.causal), model.shape.grid)


def half(reading: Reading, which: int, seed: int) -> Evidence:
    """The evidence of every other pair of passages."""
    sums = reading.sums.take([n for n in range(len(reading.sums)) if n // 2 % 2 == which])
    scores = estimate_roles(sums, "text", seed, ERROR)
    return Evidence(scores, baselines=reading.evidence.baselines)


def agreement(one: Labels, other: Labels) -> tuple[float, str]:
    """Share of heads with the same set of labels, and the labels that came or went."""
    moved: Counter[str] = Counter()
    same = total = 0
    for ours, theirs in zip(chain(*one), chain(*other), strict=True):
        lost, won = set(ours.labels) - set(theirs.labels), set(theirs.labels) - set(ours.labels)
        moved.update([f"-{label}" for label in lost] + [f"+{label}" for label in won])
        same += not (lost or won)
        total += 1
    return same / total, ", ".join(f"{name} {n}" for name, n in sorted(moved.items()))


def main(name: str) -> None:
    """Measure one model."""
    model = attnscope.load(name)
    batteries = [run_battery(model, seed=seed) for seed in (0, 1, 2)]
    texts, randoms = [b.text for b in batteries], [b.random for b in batteries]
    assert texts[0] is not None
    assert randoms[0] is not None
    whole = labels(model, texts[0].evidence, randoms[0])
    counts = Counter(label for layer in whole for head in layer for label in head.labels)
    none = sum(not head.labels for layer in whole for head in layer)
    print(name, dict(counts.most_common()), "unclassified", none)
    for seed in (1, 2):
        text, random = texts[seed], randoms[seed]
        assert text is not None
        assert random is not None
        print(f"seed {seed}:", *agreement(whole, labels(model, text.evidence, random)))
    for which in (0, 1):
        found = labels(model, half(texts[0], which, 0), randoms[0])
        print(f"half {which + 1}:", *agreement(whole, found))


if __name__ == "__main__":
    main(sys.argv[1])
