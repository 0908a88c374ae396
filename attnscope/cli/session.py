"""What every command about a model does first: open it, and read the texts it was given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.cli.options import (
    AblationOptions,
    CorpusOptions,
    ModelOptions,
    RandomOptions,
    TalkOptions,
    TextOptions,
)
from attnscope.cli.output import progress, say
from attnscope.errors import RunError, UsageError
from attnscope.plain import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    from attnscope.api import Model
    from attnscope.models.text import Reader, Tokens
    from attnscope.scoring.corpus import GivenText

DEFAULT_MODEL = "demo-gpt2"
PICTURES = (".png", ".svg", ".pdf")


def model_name(chosen: ModelOptions, talk: TalkOptions) -> str:
    """The checkpoint that was named, or the small one that comes with attnscope, and says so."""
    if chosen.model is not None:
        return chosen.model
    say(
        f"{DEFAULT_MODEL} is a small model trained on made-up stories. --model takes a real one: "
        "`attnscope models list`.",
        quiet=talk.quiet,
    )
    return DEFAULT_MODEL


def open_model(
    chosen: ModelOptions,
    talk: TalkOptions,
    *,
    add_bos: bool | None = None,
    logits: bool = False,
    ids: Callable[[Reader], Tensor] | None = None,
    refuse: bool = True,
    predicts: bool = False,
) -> Model:
    """Load the checkpoint that was named, telling what takes long."""
    name = model_name(chosen, talk)
    with progress(talk.quiet) as report:
        report("starting", 0, 0)
        from attnscope import api

        loaded = api.load(
            name,
            add_bos=add_bos,
            revision=chosen.revision,
            tokenizer=chosen.tokenizer,
            device=chosen.device,
            device_map=chosen.device_map,
            dtype=None if chosen.dtype is None else chosen.dtype.value,
            logits=logits,
            ids=ids,
            refuse=refuse,
            predicts=predicts,
            progress=report,
        )
    if talk.verbose and not talk.quiet:
        _tell_more(loaded)
    return loaded


def _tell_more(model: Model) -> None:
    """What `--verbose` adds: where the weights are, how they are stored, what the proof was."""
    parity, policy = model.parity, model.reader.bos_policy()
    say(f"files: {visible(str(model.source.directory))} ({model.source.kind})")
    say(f"stored as {model.layout}; {model.dtype}, on {model.device}")
    say(
        f"proof over {parity.n_tokens} tokens: attention {parity.max_abs_attention:.1e}, hidden "
        f"state {parity.max_abs_hidden:.1e} of {parity.hidden_scale:.3g}"
    )
    say(f"a text begins with {policy['token'] or 'no special token'} (by the {policy['by']})")


def given_texts(texts: TextOptions) -> list[GivenText]:
    """The texts a command was given, before the model is opened: a bad one is told at once."""
    from attnscope.scoring.corpus import given_texts

    given = given_texts(texts.text, texts.file)
    for one in given:
        if not one.text.strip():
            raise UsageError(f"The {one.what} is empty: give at least one word.")
    if texts.pair is not None and len(given) > 1:
        raise UsageError("--pair goes with one text, not with a file of several.")
    return given


def one_text(texts: TextOptions) -> GivenText:
    """The only text, for a command that takes no more."""
    given = given_texts(texts)
    if len(given) > 1:
        raise UsageError(f"This command takes one text, and {len(given)} were given.")
    return given[0]


def read_texts(
    model: Model, given: list[GivenText], texts: TextOptions, talk: TalkOptions
) -> list[Tokens]:
    """Tokenise the texts, announcing what was cut."""
    read = []
    for one in given:
        tokens = model.reader.read(one.text, texts.pair, truncate=texts.truncate, what=one.what)
        if tokens.cut:
            say(
                f"The {one.what} was cut: {tokens.cut} of {len(tokens) + tokens.cut} tokens "
                f"are left out (the model has {model.reader.max_positions} positions).",
                quiet=talk.quiet,
            )
        read.append(tokens)
    return read


def ablation_options(switched: AblationOptions) -> dict[str, bool]:
    """Which options about switching heads off were given."""
    usual = AblationOptions()
    return {
        f"--{name}": getattr(switched, name) != getattr(usual, name)
        for name in ("method", "mode", "controls")
    }


def check_corpus(options: CorpusOptions) -> None:
    """Raise UsageError for what belongs to a corpus where there is none."""
    if options.corpus is None:
        field = options.text_field != CorpusOptions().text_field
        refuse_unused({"--text-field": field}, "goes with --corpus.")


def read_corpus(model: Model, options: CorpusOptions) -> Iterator[Tokens] | None:
    """The texts of --corpus, tokenised as they come; those too long for the model are cut."""
    if options.corpus is None:
        return None
    from attnscope.scoring.corpus import corpus_texts

    texts = corpus_texts(options.corpus, options.text_field)
    return (model.reader.read(one.text, truncate=True, what=one.what) for one in texts)


def refuse_unused(given: Mapping[str, bool], why: str) -> None:
    """Raise UsageError for the first option of these that was given where it does nothing."""
    named = next((name for name, wanted in given.items() if wanted), None)
    if named is not None:
        raise UsageError(f"{named} {why}")


def random_options(random: RandomOptions, length: bool) -> dict[str, bool]:
    """Which options about random tokens were given; `length`: was that one?"""
    return {
        "--length": length,
        "--repeats": random.repeats != RandomOptions().repeats,
        "--sequences": random.sequences is not None,
    }


def check_place(path: Path | None, endings: tuple[str, ...] | None = None) -> None:
    """Raise before any work when a file could not be written there, or has the wrong ending."""
    if path is None:
        return
    shown = visible(str(path))
    if endings is not None and path.suffix.lower() not in endings:
        raise UsageError(f"Cannot write {shown}: its name must end in {' or '.join(endings)}.")
    folder = path.parent
    if path.is_dir():
        raise RunError(f"Cannot write {shown}: it is a directory. Name a file in it.")
    if not folder.is_dir():
        raise RunError(f"Cannot write {shown}: there is no directory {visible(str(folder))}.")
    if not path.exists() and not os.access(folder, os.W_OK):
        raise RunError(f"Cannot write {shown}: no permission in {visible(str(folder))}.")


def check_places(output: Path | None, **pictures: Path | None) -> None:
    """The same for a command's output and its pictures, which must be different files."""
    check_place(output)
    for path in pictures.values():
        check_place(path, PICTURES)
    check_distinct(output=output, **pictures)


def check_distinct(**places: Path | None) -> None:
    """Raise UsageError where two options of one command, by their names, write the same file."""
    seen: dict[str, str] = {}
    for name, path in places.items():
        if path is None or (path.exists() and not path.is_file() and not path.is_dir()):
            continue  # /dev/stdout and the like take as much as they are given
        option, where = f"--{name.replace('_', '-')}", os.path.realpath(path)
        if where in seen:
            raise UsageError(
                f"{seen[where]} and {option} would both write {visible(str(path))}: name two files."
            )
        seen[where] = option
