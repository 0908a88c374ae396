"""The words around the tables of `attnscope compare`: heading, who shares, legend, reports."""

from __future__ import annotations

from rich.text import Text

from attnscope.experiments.amounts import binary, grouped
from attnscope.experiments.compare_result import CompareResult, CompareRow
from attnscope.experiments.published import CAUTION, PUBLISHED
from attnscope.models.shapes import AttentionShape, Latent
from attnscope.plain import visible
from attnscope.render.table import Column, lay_out, wrapped
from attnscope.render.wiring import wiring

_KEPT = "\u00a0"  # keeps a number in one piece while lines are broken


def label(row: CompareRow) -> str:
    """MHA, GQA-8, MQA or MLA."""
    return f"GQA-{row.n_kv_heads}" if row.variant == "GQA" else row.variant


def marked(result: CompareResult, row: CompareRow) -> bool:
    """Whether this is the model as it is, among others that are not."""
    return row.as_is and not all(other.as_is for other in result.rows)


def heading(result: CompareResult, width: int) -> list[Text]:
    """Which model, and what is asked of it."""
    settings = result.settings
    contexts = " and ".join(_kept(grouped(context)) for context in settings.contexts)
    batch = f"batch{_KEPT}{_kept(grouped(settings.batch))}"
    at = f"{contexts} tokens, {batch}, {settings.kept.name}{_KEPT}cache"
    if len(result.shapes) > 1:
        name, about = (
            f"{len(result.shapes)} models",
            f"as they are, {at}" if all(row.as_is for row in result.rows) else at,
        )
    else:
        shape = result.shapes[0]
        name = visible(shape.name)
        heads = f"{shape.n_heads} query heads of width {shape.d_head}"
        about = f"{shape.n_layers} layers, {heads}, {at}"
    lines = [Text(line) for line in _lines(f"{name}  {about}", width)]
    lines[0].stylize("bold", 0, len(name))
    return lines


def sharing(result: CompareResult, width: int) -> list[Text]:
    """For each variant, which query heads read which key/value head."""
    title = "who shares: query heads, and the key/value head that each reads"
    lines = [Text(line, style="dim") for line in _lines(title, width)]
    drawn = {row.n_kv_heads: row for row in result.rows}
    for n_kv_heads, row in drawn.items():
        if n_kv_heads is None:
            latent = result.shapes[0].latent
            assert latent is not None
            words = f"all heads read one latent of {latent.kept} numbers"
            lines += [Text(f"  {line}") for line in wrapped(f"{row.variant:8}{words}", width - 2)]
            continue
        queries, keys = wiring(row.n_heads, n_kv_heads, width - 14)
        lines += [Text(f"  {label(row):7} Q   {queries}"), Text(f"{'':10}KV  {keys}")]
    return lines


def legend(result: CompareResult, width: int) -> list[Text]:
    """What the columns mean, as far as they are shown."""
    return [Text(line, style="dim") for words in _notes(result) for line in _lines(words, width)]


def _notes(result: CompareResult) -> list[str]:
    settings, shapes = result.settings, result.shapes
    words = []
    if any(marked(result, row) for row in result.rows):
        words.append("*: the model as it is; the others are its twins.")
    pages = f"whole pages of {settings.paging.page_size} tokens"
    if any(shape.sliding_layers for shape in shapes):
        pages += ", sliding layers " + (
            "kept like the others" if settings.paging.full_windows else "giving old pages back"
        )
    words.append(f"KV cache: what must be kept. in pages: what an engine reserves, {pages}.")
    words += [f"{visible(s.name)}: {_windows(s)}." for s in shapes if s.sliding_layers]
    words.append(
        "new token, prefill: FLOPs of attention at this context. FLOP/byte: scores and values of "
        "a new token, for each byte of cache read."
    )
    words.append(f"attention, weights: {settings.weights.name}.")
    unknown = [visible(s.name) for s in shapes if s.parameters is None]
    beside = " beside the weights" if len(unknown) < len(shapes) else ""
    words.append(
        "tokens fit: how long the texts can be. texts fit: how many of this length. Both in pages, "
        f"in {_kept(binary(settings.memory))}{beside}; activations are not counted."
    )
    if unknown:
        words.append(f"Weights of {', '.join(unknown)} are not known, and not taken off.")
    words += [_latent(s, s.latent) for s in shapes if s.latent is not None]
    if settings.kept.about:
        words.append(f"{settings.kept.about}.")
    if not all(shape.causal for shape in shapes):
        words.append("no cache: an encoder reads a text once and keeps nothing of it.")
    words += [
        f"{visible(s.name)} was made for at most {_kept(grouped(s.positions))} tokens."
        for s in shapes
        if s.positions is not None and max(settings.contexts) > s.positions
    ]
    return words + result.notes


def _latent(shape: AttentionShape, latent: Latent) -> str:
    """In which form latent attention is counted, and what its twins have instead."""
    return (
        f"{visible(shape.name)}: a new token is counted in the absorbed form (scores and values "
        f"on the latent of {latent.kept} numbers itself), prefill in the expanded form (keys of "
        f"{latent.nope + latent.rope} and values of {latent.value} a head). Keys and values of its "
        f"twins are {shape.d_head} wide."
    )


def _windows(shape: AttentionShape) -> str:
    which = f"{shape.sliding_layers} of {shape.n_layers} layers"
    if shape.sliding_layers == shape.n_layers:
        which = "all layers"
    return f"{which} see {_kept(grouped(shape.window or 0))} tokens back"


def published(width: int) -> list[Text]:
    """What others measured about quality."""
    columns = [
        Column("measured by others"),
        *(Column(c, right=True) for c in ("MHA", "GQA", "MQA")),
    ]
    columns.append(Column("source", keep=1))
    rows = [
        [Text(cell) for cell in (r.what, f"{r.mha:.1f}", f"{r.gqa:.1f}", f"{r.mqa:.1f}", r.source)]
        for r in PUBLISHED
    ]
    return [
        *lay_out(columns, rows, width),
        *(Text(line, style="dim") for line in wrapped(CAUTION, width)),
    ]


def _lines(words: str, width: int) -> list[str]:
    return [line.replace(_KEPT, " ") for line in wrapped(words, width)]


def _kept(words: str) -> str:
    return words.replace(" ", _KEPT)
