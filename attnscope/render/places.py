"""The table of `attnscope induction TEXT`: every repeat, and who points to what followed."""

from __future__ import annotations

from rich.text import Text

from attnscope.experiments.places import Place, PlacesResult
from attnscope.plain import number
from attnscope.render.model import model_lines
from attnscope.render.table import Column, fits, joined, lay_out, wrapped

_MOST = 40  # places in the table
_HEADS, _FEWER = 3, 2  # named at each, where there is room

COLUMNS = (
    Column("at", right=True),
    Column("token"),
    Column("before, then"),
    Column("heads that point there", keep=2),
    Column("predicted", right=True, keep=3),
    Column("likeliest", keep=4),
    Column("comes", keep=5),
)


def places_table(result: PlacesResult, width: int, *, every: bool = False) -> Text:
    """The whole answer, each line within `width`."""
    bos = result.settings["bos"]["token"]
    about = f"{len(result.tokens)} tokens · {f'{bos} first' if bos else 'no BOS'}"
    lines = [*model_lines(result.model, about, width), Text()]
    if not result.places:
        words = "No token comes twice in this text: there is no place where induction could help."
        return joined([*lines, *map(Text, wrapped(words, width))])
    shown = result.places if every else result.places[:_MOST]
    rows = [[_cells(result, place, most) for place in shown] for most in (_HEADS, _FEWER)]
    lines += lay_out(COLUMNS, next((r for r in rows if fits(COLUMNS, r, width)), rows[-1]), width)
    left = len(result.places) - len(shown)
    if left:
        lines.append(Text(f"  and {left} more; --all shows every place", style="dim"))
    words = (
        "token: one that came before; then: what followed its latest copy. heads that point there: "
        "share of attention on what followed the copies, where it is more than an even head's. "
        "predicted: the model's probability of that token. comes: what the text says next."
    )
    lines += [Text(), *(Text(line, style="dim") for line in wrapped(words, width))]
    return joined(lines)


def _cells(result: PlacesResult, place: Place, most: int) -> list[Text]:
    texts = [token.text for token in result.tokens.tokens]
    heads = "  ".join(f"{head} {number(weight)}" for head, weight in place.top(most)) or "–"
    likely = place.guesses[0]
    comes = "" if place.follows is None else texts[place.follows]
    return [
        Text(str(place.query)),
        Text(texts[place.query]),
        Text(place.expected.text),
        Text(heads),
        Text(number(place.expected.probability)),
        Text(f"{likely.text} {number(likely.probability)}"),
        Text(comes, style="bold" if comes == place.expected.text else ""),
    ]
