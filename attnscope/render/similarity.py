"""How alike heads are, as tables: one row a layer, the cheapest pairs, the groupings tried."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.text import Text

from attnscope.experiments.amounts import binary
from attnscope.experiments.similarity_result import QueryPair, SimilarityResult, Suggestion
from attnscope.plain import number, visible
from attnscope.render.conversion import texts_read
from attnscope.render.table import Column, lay_out, wrapped

PAIRS_SHOWN, GROUPS_SHOWN = 6, 4


def similarity_lines(result: SimilarityResult, width: int) -> list[Text]:
    """Query heads that share against those that do not, then key/value heads."""
    about = result.settings
    title = "How alike heads are"
    words = f"{title}  {texts_read(about)}, {about['tokens']} tokens"
    lines = [Text(line) for line in wrapped(words, width)]
    lines[0].stylize("bold", 0, len(title))
    lines += [*_layers(result, width), Text()]
    if result.shared:
        lines += [*_cheapest(result, width), Text()]
    if result.suggestions:
        lines += [*_suggestions(result, width), Text()]
    return lines + [
        Text(line, style="dim") for note in _notes(result) for line in wrapped(note, width)
    ]


def _layers(result: SimilarityResult, width: int) -> list[Text]:
    grouped = result.n_kv_heads < result.n_heads
    columns = [Column("layer", right=True)]
    if grouped:
        columns += [
            Column("sharing", right=True),
            Column("awake", right=True, keep=3),
            Column("labels", right=True, keep=5),
        ]
    if result.n_kv_heads > 1:
        columns += [
            Column("apart", right=True),
            Column("awake apart", right=True, keep=4),
            Column("labels apart", right=True, keep=6),
        ]
    if result.shared:
        columns += [Column("cheapest", keep=2), Column("lost", right=True, keep=1)]
    rows = []
    for layer in range(result.n_layers):
        cells = [str(layer)]
        if grouped:
            cells += _means(result.queries_of(layer, shares=True))
        if result.n_kv_heads > 1:
            cells += _means(result.queries_of(layer, shares=False))
        pair = result.cheapest(layer)
        if pair is not None:
            cells += [f"{pair.heads[0]} + {pair.heads[1]}", number(pair.mean)]
        rows.append([Text(cell) for cell in cells])
    return lay_out(columns, rows, width)


def _means(pairs: Sequence[QueryPair]) -> list[str]:
    awake = [pair.awake for pair in pairs if pair.awake is not None]
    same = sum(pair.same_labels for pair in pairs)
    return [
        number(statistics.fmean(pair.overlap for pair in pairs)) if pairs else "–",
        number(statistics.fmean(awake)) if awake else "–",
        f"{same} of {len(pairs)}",
    ]


def _cheapest(result: SimilarityResult, width: int) -> list[Text]:
    columns = [Column("cheapest to share"), *(Column(n, right=True) for n in ("keys", "values"))]
    pairs = sorted(result.shared, key=lambda pair: pair.mean)[:PAIRS_SHOWN]
    rows = [
        [
            Text(f"layer {pair.layer}: {pair.heads[0]} + {pair.heads[1]}"),
            Text(number(pair.key)),
            Text(number(pair.value)),
        ]
        for pair in pairs
    ]
    return lay_out(columns, rows, width)


def _suggestions(result: SimilarityResult, width: int) -> list[Text]:
    columns = (
        Column("kv heads", right=True),
        Column("groups"),
        Column("per token", right=True, keep=1),
        Column("lost", right=True),
        Column("loss", right=True),
    )
    rows = []
    for one in result.suggestions:
        for at, name in enumerate(("neighbours", "alike")):
            cells = [
                str(one.n_kv_heads),
                name,
                binary(one.kv_bytes_per_token),
                number(one.lost[at]),
                f"{one.deltas[at]:+.3f}".replace("-0.000", "0.000").replace("+0.000", "0.000"),
            ]
            rows.append([Text(cell) for cell in cells])
    lines = lay_out(columns, rows, width)
    first = result.suggestions[0]
    lines += [Text(), *_groups(first, width)]
    return lines


def _groups(one: Suggestion, width: int) -> list[Text]:
    words = f"alike, {one.n_kv_heads} key/value heads; --similarity -F json has every layer:"
    lines = [Text(line, style="dim") for line in wrapped(words, width)]
    for layer, groups in list(enumerate(one.groups))[:GROUPS_SHOWN]:
        drawn = "  ".join("+".join(map(str, group)) for group in groups)
        lines += [Text(line) for line in wrapped(f"layer {layer}: {drawn}", width, 2, 4)]
    return lines


def _notes(result: SimilarityResult) -> list[str]:
    notes = [
        "sharing, apart: the share of attention that two query heads put on the same keys (1 less "
        "the total variation distance), mean over pairs that read one key/value head, and that do "
        "not. awake: the same away from the first and special tokens. labels: pairs with equal "
        "labels."
    ]
    if result.shared:
        notes.append(
            "cheapest: the two key/value heads that lose least as one. lost: the share of two "
            "heads' keys and values (squared size) that one head in their place would lose, each "
            "turned as suits it; 0: they are the same, .50: they have nothing in common."
        )
    if result.suggestions:
        notes.append(
            "loss: what it adds, nats a token, best-aligned and untrained. alike exchanges heads "
            "until no exchange lowers the mean of lost; it need not lower the loss."
        )
    return [*notes, *(visible(note) for note in result.notes)]
