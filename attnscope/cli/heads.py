"""`attnscope heads`: label every head, with scores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli import options
from attnscope.cli.bundle import bundled
from attnscope.cli.options import Format
from attnscope.cli.output import emit_result, progress, say
from attnscope.cli.session import (
    check_corpus,
    check_places,
    given_texts,
    open_model,
    read_corpus,
    read_texts,
)
from attnscope.errors import UsageError
from attnscope.plain import visible
from attnscope.types import parse_heads

if TYPE_CHECKING:
    from attnscope.experiments.heads_result import HeadsResult
    from attnscope.models.text import Reader
    from attnscope.scoring.corpus import GivenText
    from attnscope.scoring.roles import Role
    from attnscope.scoring.rules import Rule

_Battery = Annotated[
    bool,
    typer.Option(
        "--battery/--no-battery",
        help="Label by the battery: bundled passages and repeated random tokens.",
        rich_help_panel=options.SCORING,
    ),
]
_Refresh = Annotated[
    bool,
    typer.Option(
        "--refresh", help="Run the battery again, cached or not.", rich_help_panel=options.SCORING
    ),
]
_Labels = Annotated[
    Path | None,
    typer.Option(
        help="Your own thresholds: a file like configs/labels.yaml.",
        metavar="FILE",
        rich_help_panel=options.SCORING,
    ),
]
_Roles = Annotated[
    list[str] | None,
    typer.Option(
        "--role",
        help="A role of your own: NAME=offset:-3, NAME=tokens:and,or or NAME=pairs:FILE.csv "
        "(query,key). May be given again.",
        metavar="NAME=WHAT",
        rich_help_panel=options.SCORING,
    ),
]
_Explain = Annotated[
    str | None,
    typer.Option(
        help="Say why these heads have their labels, as in 5.5,6.1.",
        metavar="HEADS",
        rich_help_panel=options.OUTPUT,
    ),
]
_Against = Annotated[
    str | None,
    typer.Option(
        help="A second checkpoint of the same shape: which labels differ from --model's?",
        metavar="MODEL",
        rich_help_panel=options.MODEL,
    ),
]
_All = Annotated[
    bool, typer.Option("--all", help="Every head in the table.", rich_help_panel=options.OUTPUT)
]


@bundled
def heads(
    text: options.TextOptions,
    corpus: options.CorpusOptions,
    model: options.ModelOptions,
    talk: options.TalkOptions,
    against: _Against = None,
    battery: _Battery = True,
    refresh: _Refresh = False,
    labels: _Labels = None,
    role: _Roles = None,
    explain: _Explain = None,
    every: _All = False,
    form: options.FormatOption = Format.table,
    output: options.Output = None,
    heatmap: options.Heatmap = None,
) -> None:
    """Label every head of a model, with scores in general and on your text."""
    check_places(output, heatmap=heatmap)
    if against is not None and (explain or heatmap):
        raise UsageError("--against compares two checkpoints: leave out --explain and --heatmap.")
    if explain and form in (Format.csv, Format.markdown):
        raise UsageError("--explain is told in words: use it with --format table or json.")
    scoring = _Scoring(text, corpus, talk, battery, refresh, labels, tuple(role or ()), explain)
    scoring.check()
    result = scoring.of(model)
    if against is None:
        _emit(result, every, form, output, heatmap)
    else:
        other = scoring.of(replace(model, model=against), like=result)
        _emit_changes(result, other, form, output)


@dataclass(frozen=True)
class _Scoring:
    """How to score a checkpoint: once for `heads`, twice with --against."""

    text: options.TextOptions
    corpus: options.CorpusOptions
    talk: options.TalkOptions
    battery: bool
    refresh: bool
    labels: Path | None
    roles: tuple[str, ...]
    explain: str | None

    def check(self) -> None:
        """Refuse what cannot work before a checkpoint is opened."""
        check_corpus(self.corpus)
        if self.given and self.corpus.corpus is not None and not self.battery:
            raise UsageError(
                "--corpus stands in for the battery's passages: leave out --no-battery or the text."
            )
        if self.explain is not None:
            parse_heads(self.explain)
        if self.labels is not None or self.roles:
            self.rules(self.own_roles(None))

    @cached_property
    def given(self) -> list[GivenText]:
        """The texts given beside a corpus; with a corpus there need be none."""
        alone = self.text.text is None and self.text.file is None
        return [] if alone and self.corpus.corpus is not None else given_texts(self.text)

    def own_roles(self, reader: Reader | None) -> list[Role]:
        """The user's roles, for texts that this reader tokenises."""
        from attnscope.scoring.own_roles import parse_role

        return [parse_role(role, reader) for role in self.roles]

    def rules(self, roles: list[Role]) -> tuple[Rule, ...]:
        """The thresholds in force."""
        from attnscope.scoring.rules import read_rules

        return read_rules(self.labels, [role.name for role in roles])

    def of(self, chosen: options.ModelOptions, like: HeadsResult | None = None) -> HeadsResult:
        """Label every head of this checkpoint, which must be shaped `like` another."""
        model = open_model(chosen, self.talk, add_bos=self.text.add_bos)
        from attnscope.experiments.against import check_alike
        from attnscope.experiments.heads import heads as label
        from attnscope.experiments.selection import known_heads

        if like is not None:
            check_alike(like.model, model.describe())
        roles = self.own_roles(model.reader)
        explained = known_heads(model, self.explain) if self.explain else ()
        read = read_texts(model, self.given, self.text, self.talk)
        with progress(self.talk.quiet) as report:
            result = label(
                model, read, battery=self.battery, corpus=read_corpus(model, self.corpus),
                rules=self.rules(roles), roles=roles, explained=explained, seed=chosen.seed,
                refresh=self.refresh, progress=report,
            )  # fmt: skip
        if self.talk.verbose and result.random is not None and result.random.kept:
            say("The battery's result is from the cache; --refresh measures it again.")
        return result


def _emit_changes(
    result: HeadsResult, other: HeadsResult, form: Format, output: Path | None
) -> None:
    from attnscope.experiments.against import compare_heads
    from attnscope.render.against import changes_table

    emit_result(compare_heads(result, other), changes_table, form, output)


def _emit(
    result: HeadsResult, every: bool, form: Format, output: Path | None, heatmap: Path | None
) -> None:
    from attnscope.render.explain import explanation
    from attnscope.render.figures import draw_head_map
    from attnscope.render.heads import head_map, heads_table

    if heatmap is not None:
        draw_head_map(heatmap, *head_map(result), title=visible(result.model["id"]))
    table = explanation if result.explained else partial(heads_table, every=every)
    emit_result(result, table, form, output)
