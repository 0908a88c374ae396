"""Options of `attnscope compare` that need others, or that nothing would come of."""

from __future__ import annotations

from pathlib import Path

from attnscope.cli.compare_options import QualityOptions, ShapeOptions
from attnscope.cli.options import Format
from attnscope.errors import UsageError
from attnscope.plain import visible

_NEEDED = {
    "methods": ("--convert", "how heads are pooled"),
    "grouping": ("--convert", "which heads come to share"),
    "every": ("--convert", "every converted head"),
    "passages": ("--convert or --similarity", "how many texts are read"),
    "tokenizer": ("--convert, --similarity or --measure", "how a loaded model reads"),
    "device": ("--convert, --similarity or --measure", "where a loaded model runs"),
    "seed": ("--convert, --similarity or --measure", "what is drawn at random"),
}
_NAMES = {"every": "all"}


def check_listing(shape: ShapeOptions, quality: QualityOptions, plot: Path | None) -> None:
    """`--list` shows all known models, and nothing else."""
    more = [*(shape.names or ()), *map(str, shape.config or ())]
    if more or shape.asked is not None or quality.asked or plot is not None:
        what = f" '{visible(more[0])}'" if more else " the other options"
        raise UsageError(f"--list shows every known model: leave out{what}, or --list.")


def check_options(shape: ShapeOptions, quality: QualityOptions, form: Format) -> None:
    """Raise UsageError for options that would change nothing."""
    if quality.save is not None and quality.convert is None:
        raise UsageError("--save writes a converted model: say which with --convert.")
    for name, (needed, serves) in _NEEDED.items():
        served = any(f"--{asked}" in needed for asked in _asked(quality))
        if not served and getattr(quality, name) != getattr(QualityOptions, name):
            raise UsageError(
                f"--{_NAMES.get(name, name)} says {serves}: it needs {needed}, or leave it out."
            )
    if len(shape.config or ()) > 1:
        raise UsageError("--config is given twice, and takes one file: name others with --model.")
    if shape.revision is not None and shape.asked is None and not quality.asked:
        raise UsageError("--revision is of a checkpoint on the hub: name it with --model.")
    if quality.asked:
        _check_one_checkpoint(shape)
    several = len(_asked(quality)) > 1
    if several and form in (Format.csv, Format.markdown):
        raise UsageError(
            f"--format {form.value} holds one table: ask for one of --convert, --similarity and "
            "--measure, or for json."
        )


def _asked(quality: QualityOptions) -> list[str]:
    """What is measured on the model itself."""
    asked = {
        "convert": quality.convert is not None,
        "similarity": quality.similarity,
        "measure": quality.measure,
    }
    return [name for name, wanted in asked.items() if wanted]


def _check_one_checkpoint(shape: ShapeOptions) -> None:
    """What is measured on a model needs its weights, and is measured on one."""
    if not shape.names and not shape.config:
        return
    extra = shape.names[0] if shape.names else f"--config {(shape.config or ('',))[0]}"
    said = (
        f"leave out {visible(extra)}."
        if shape.asked is not None
        else f"name it with --model, and leave out {visible(extra)}."
    )
    raise UsageError(f"--convert, --similarity and --measure load one checkpoint: {said}")
