"""What `coref --data` is asked: a labelled set, and where heads are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnscope.errors import UsageError, did_you_mean
from attnscope.plain import visible
from attnscope.scoring.labelled import LabelledSet, read_labelled
from attnscope.scoring.schemas import twin_path

QUERIES = ("pronoun", "chosen")


@dataclass(frozen=True)
class Asked:
    """A labelled set, and how to ask it.

    `query` is the row a head is read from: the "pronoun"'s own, or the one "chosen" for it on
    other items (`select_on`, or else the other half of the set). `twins` only serve the gap.
    """

    main: LabelledSet
    query: str = "pronoun"
    select_on: LabelledSet | None = None
    twins: LabelledSet | None = None

    @classmethod
    def read(
        cls,
        data: Sequence[Path],
        form: str | None = None,
        query: str | None = None,
        select_on: Sequence[Path] = (),
    ) -> Asked:
        """Read the files, and the twin of a single WinoBias file where it lies beside it.

        Raises UsageError for files that are no labelled sets, and for choices that do not fit.
        """
        query = query or ("chosen" if select_on else "pronoun")
        if query not in QUERIES:
            raise UsageError(
                f"Unknown query {visible(query)!r}: choose from {', '.join(QUERIES)}."
                + did_you_mean(query, QUERIES)
            )
        if select_on and query != "chosen":
            raise UsageError("--select-on chooses where heads are read: it needs --query chosen.")
        main = read_labelled(data, form)
        chosen_on = read_labelled(select_on) if select_on else None
        if chosen_on is not None:
            _check_apart(main, chosen_on)
        beside = twin_path(data[0]) if main.format == "winobias" and len(data) == 1 else None
        return cls(
            main,
            query,
            chosen_on,
            read_labelled([beside], main.format) if beside else None,
        )


def _check_apart(main: LabelledSet, other: LabelledSet) -> None:
    """Raise UsageError where places would be chosen on the items that are scored."""
    shared = {question.text for question in main.questions} & {q.text for q in other.questions}
    if shared:
        raise UsageError(
            f"--select-on has {len(shared)} of the texts that are scored: what is chosen on them "
            "is not held out. Give other items, or leave it out for --query chosen."
        )
