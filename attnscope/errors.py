"""What can go wrong, and the exit code each kind ends the command with.

A message names what was given, what is wrong with it, and what to type next.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AttnscopeError(Exception):
    """Something went wrong that a person can act on; the message is one or two plain lines."""

    exit_code = 1


class RunError(AttnscopeError):
    """It failed while running: a file could not be written, memory was not enough."""

    exit_code = 1


class UsageError(AttnscopeError):
    """The command was used wrongly: unknown option, empty text, unknown head."""

    exit_code = 2


class CheckpointError(AttnscopeError):
    """The checkpoint cannot be inspected: unsupported, damaged, no tokenizer, foreign code."""

    exit_code = 3


class CheckError(AttnscopeError):
    """A check did not hold: our forward and transformers' own differ beyond tolerance."""

    exit_code = 4


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`" Did you mean 'heads'?"`, or an empty string when nothing known is near."""
    near = difflib.get_close_matches(given, list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""
