"""The story of a model's induction: who attends, who copies, who feeds whom, what breaks without.

Each sentence says what was measured. What the weights say joins in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnscope.errors import AttnscopeError
from attnscope.experiments.circuits import circuits
from attnscope.experiments.induction_result import COUNTS, InductionResult
from attnscope.models.load import Model
from attnscope.plain import number, signed
from attnscope.types import Head

_MANY = 8  # heads that are named; the rest are counted
Pairs = Sequence[Mapping[str, Any]]  # the `composition` entries of a circuits document


def weights_say(model: Model, heads: Sequence[Head]) -> Pairs | None:
    """What the weights alone say feeds these heads' keys, strongest first.

    None where the weights cannot be followed from head to head.
    """
    if not heads:
        return None
    try:
        found = circuits(model, target=heads, kinds=("K",), heads_from_battery=False)
    except AttnscopeError:
        return None
    pairs: Pairs = found.to_json()["composition"]
    return pairs


def tell(result: InductionResult, pairs: Pairs | None = None) -> tuple[str, ...]:
    """The sentences, in the order in which they follow from each other."""
    return tuple(_sentences(result, pairs))


def _sentences(result: InductionResult, pairs: Pairs | None) -> Iterator[str]:
    run = result.first
    first, second = float(run.loss.first.value), float(run.loss.second.value)
    fall = f"{first:.1f} nats the first time, {second:.1f} when it comes again"
    copies = "the model copies" if run.loss.falls else "the model does not copy"
    yield f"A random token costs {fall}: {copies}."
    if not run.found:
        yield nobody(result)
        return
    named = [f"{head} ({number(run.matching(head))})" for head in run.found]
    yield f"{_count(len(named))} from a repeated token to its targets: {_listed(named)}."
    yield from _copying(result)
    yield from _feeding(result)
    if pairs:
        best = pairs[0]
        yield (
            f"By the weights alone, what {best['source']} writes is what the keys of "
            f"{best['target']} read most of (z {best['z']:.1f})."
        )
    yield from _breaking(result)


def nobody(result: InductionResult) -> str:
    """What to say where no head is labelled."""
    if result.first.loss.falls:
        return "It copies, but not through heads this profile sees."
    return "No head is labelled induction, and the loss does not fall: there is no sign of copying."


def _copying(result: InductionResult) -> Iterator[str]:
    run = result.first
    if run.copying is None:
        return
    direct = {head: float(run.copying.value[head.layer, head.head]) for head in run.found}
    raising = sorted((h for h in direct if direct[h] >= COUNTS), key=lambda h: -direct[h])
    silent = [head for head in direct if abs(direct[head]) < COUNTS]
    if raising:
        named = [f"{head} (+{direct[head]:.2f})" for head in raising]
        yield f"By themselves these raise the right token's logit: {_listed(named)}."
    if silent:
        yield (
            f"{_listed([str(head) for head in silent])} hardly touch it directly: what they find "
            "reaches the logits through later layers, if at all."
        )


def _feeding(result: InductionResult) -> Iterator[str]:
    found = result.feeding
    if found is None:
        yield "No head below them looks the fixed way back that they would need."
        return
    before = sum(found.clean.values()) / len(found.clean)
    after = sum(found.without.values()) / len(found.without)
    feeders = _listed([str(head) for head in found.feeders])
    one = len(found.feeders) == 1
    looks, those = ("looks", "it") if one else ("look", "these")
    verdict = "it is fed from there" if found.feeds else "it is fed from elsewhere"
    moves = "falls" if after < before else "goes"
    yield (
        f"Below, {feeders} {looks} a fixed way back; without {those} the mean share {moves} from "
        f"{number(before)} to {number(after)}: {verdict}."
    )


def _breaking(result: InductionResult) -> Iterator[str]:
    if result.ablation is None:
        yield "Whether the model needs them was not tested: --ablate switches them off."
        return
    effect = result.ablation.main
    sentence = (
        f"Without them a repeated token costs {effect.ablated:.1f} nats instead of "
        f"{effect.clean:.1f}"
    )
    control = effect.control
    if control is not None:
        sentence += (
            f"; {control.draws} random sets of as many heads of the same layers cost "
            f"{signed(control.mean)} ({signed(control.low)} to {signed(control.high)})"
        )
    yield f"{sentence}."


def _listed(names: Sequence[str]) -> str:
    shown = list(names[:_MANY])
    if len(names) > _MANY:
        shown.append(f"{len(names) - _MANY} more")
    return ", ".join(shown)


def _count(n: int) -> str:
    return "One head looks" if n == 1 else f"{n} heads look"
