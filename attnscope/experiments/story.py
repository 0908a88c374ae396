"""The story of a model's induction: who attends, who copies, who feeds whom, what breaks without.

Each sentence says what was measured. What the weights say joins in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnscope.errors import AttnscopeError
from attnscope.experiments.circuits import circuits
from attnscope.experiments.feeding import Feeding, mean
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
        return (
            "It copies, but not through heads this profile sees: none looks at a fixed place from "
            "8 before to 8 past what followed the earlier copy. Who raises the right token: "
            "copying."
        )
    return "No head is labelled induction, and the loss does not fall: there is no sign of copying."


def _copying(result: InductionResult) -> Iterator[str]:
    run = result.first
    if run.copying is None:
        return
    direct = {head: float(run.copying.value[head.layer, head.head]) for head in run.found}
    raising = sorted((h for h in direct if direct[h] >= COUNTS), key=lambda h: -direct[h])
    quiet = [head for head in direct if abs(direct[head]) < COUNTS]
    if raising:
        named = _listed([f"{head} (+{direct[head]:.2f})" for head in raising])
        if len(raising) == 1:
            yield f"By itself {named} raises the right token's logit."
        else:
            yield f"By themselves these raise the right token's logit: {named}."
    last = int(run.copiers.shifts.shape[0]) - 1
    for silent in ([h for h in quiet if h.layer < last], [h for h in quiet if h.layer == last]):
        if not silent:
            continue
        touches = "touches" if len(silent) == 1 else "touch"
        rest = "what is found reaches the logits through later layers, if at all"
        if silent[0].layer == last:
            rest = "no later layer could use what is found"
        yield f"{_listed([str(head) for head in silent])} hardly {touches} it directly: {rest}."


def _feeding(result: InductionResult) -> Iterator[str]:
    found = result.feeding
    if found is None:
        yield "No head below looks the fixed way back that is needed."
        return
    before, after = mean(found.clean), mean(found.without)
    one = len(found.candidates) == 1
    moves = "falls" if after < before else "goes"
    fed = "they are" if len(found.clean) > 1 else "it is"
    verdict = f"{fed} fed from {'there' if found.feeds else 'elsewhere'}"
    sentence = (
        f"Below, {_listed([str(head) for head in found.candidates])} {'looks' if one else 'look'} "
        f"the way back that {'they need' if len(found.clean) > 1 else 'it needs'}; without "
        f"{'it' if one else 'all of these'} the mean share {moves} from {number(before)} to "
        f"{number(after)}"
    )
    if found.control is not None:
        random = f"{number(found.control.low)} to {number(found.control.high)}"
        sentence += f" (without as many random heads of the same layers: {random})"
    yield f"{sentence}: {verdict}."
    if not one:
        yield from _feeding_alone(found)


def _feeding_alone(found: Feeding) -> Iterator[str]:
    needed = {one: [h for h in found.clean if one in found.of(h)] for one in found.feeders}
    told = [
        f"{one} to {_listed([str(head) for head in heads])} (mean share "
        f"{number(mean(found.alone[one]))} without it)"
        for one, heads in needed.items()
        if heads
    ]
    if told:
        yield f"One by one, a tenth of a share or more comes from {'; '.join(told)}."
    else:
        yield "One by one, none of them matters: each stands in for the others."


def _breaking(result: InductionResult) -> Iterator[str]:
    if result.ablation is None:
        yield "Whether the model needs them was not tested: --ablate switches them off."
        return
    effect = result.ablation.main
    those = "them" if len(result.ablation.heads) > 1 else "it"
    n, all_ = result.ablation.n_texts, result.first.stimulus.sequences
    where = f", on {n} of the {all_} texts" if n < all_ else ""
    sentence = (
        f"Without {those} a repeated token costs {effect.ablated:.1f} nats instead of "
        f"{effect.clean:.1f}{where}"
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
