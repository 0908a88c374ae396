"""Amounts as people write them: 32k tokens, 24GiB of memory, and the other way round. Exact."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from attnscope.errors import UsageError
from attnscope.plain import visible

MOST = 10**18  # tokens, texts: beyond any machine, and still quick to compute with
_COUNT = re.compile(r"(\d{1,400})(?:[eE](\d{1,6})|([kKmMgG]))?", re.ASCII)
_WHOLE = re.compile(r"-?\d{1,9}", re.ASCII)
_COUNTS = {"k": 1024, "m": 1024**2, "g": 1024**3}
_BYTES = re.compile(r"(\d{1,15})(?:\.(\d{1,6}))?\s*([kKMGTPE])(i?)B", re.ASCII)
_PREFIXES = "KMGTPE"


def count(text: str | int, what: str) -> int:
    """`8192`, `8k` (k = 1024), `1M` or `1e6`, at least 1. Raises UsageError for anything else."""
    match = _COUNT.fullmatch(str(text).strip())
    if match is None:
        raise UsageError(
            f"Cannot read '{_short(text)}' as a number of {what}: "
            "write 8192, 8k (k = 1024), 1M or 1e6."
        )
    digits, power, suffix = match.groups()
    if len(digits.lstrip("0")) + int(power or 0) > 20:
        value = 0 if not digits.strip("0") else MOST + 1
    else:
        value = int(digits) * 10 ** int(power or 0) * _COUNTS.get((suffix or "").lower(), 1)
    if not 1 <= value <= MOST:
        raise UsageError(f"{_short(text)} {what}: give at least 1 and at most 1e18.")
    return value


def counts(text: str | float | Sequence[str | int], what: str) -> tuple[int, ...]:
    """Several of them, each once: `4k,32k`, or a list."""
    parts = _parts(text)
    if not parts:
        raise UsageError(f"No number of {what} is given: name one at least.")
    return tuple(dict.fromkeys(count(part, what) for part in parts))


def heads(asked: str | int | Sequence[int], example: str) -> tuple[int, ...]:
    """Numbers of key/value heads: `8,4,1`, one, or a list. Raises UsageError for anything else."""
    parts = _parts(asked)
    if not parts or not all(_WHOLE.fullmatch(str(part).strip()) for part in parts):
        raise UsageError(
            f"Cannot read {visible(repr(asked))[:60]} as key/value heads: write numbers, as in "
            f"{example}."
        )
    return tuple(int(part) for part in parts)


def memory(text: str | int) -> int:
    """`24GiB` or `80GB` in bytes; an int is bytes already. Raises UsageError for anything else."""
    if isinstance(text, int) and not isinstance(text, bool) and text > 0:
        return text
    match = _BYTES.fullmatch(str(text).strip()) if isinstance(text, str) else None
    if match is None:
        raise UsageError(
            f"Cannot read '{_short(text)}' as memory: write 24GiB (binary) or 80GB (decimal)."
        )
    whole, fraction, prefix, binary = match.groups()
    unit: int = (1024 if binary else 1000) ** (_PREFIXES.index(prefix.upper()) + 1)
    digits = fraction or ""
    parts: int = 10 ** len(digits)
    return int(whole + digits) * unit // parts


def _parts(given: object) -> list[Any]:
    """`4k,32k` at its commas, a list as it is, a number as the only one."""
    if isinstance(given, str):
        return given.split(",")
    return list(given) if isinstance(given, Iterable) else [given]


def _short(text: object) -> str:
    """What was typed, not more of it than a line holds."""
    shown = visible(str(text))
    return shown if len(shown) <= 40 else f"{shown[:39]}…"


def binary(n_bytes: int, unit: int | None = None) -> str:
    """Bytes in their own binary unit, or in a given one: `512 KiB`, `0.13 GiB`, `4.00 GiB`."""
    at = binary_unit(n_bytes) if unit is None else unit
    if at == 0:
        return f"{n_bytes} B"
    size = 1024**at
    decimals = 0 if at < 3 and n_bytes % size == 0 else 2
    return f"{_rounded(n_bytes, size, decimals)} {_PREFIXES[at - 1]}iB"


def binary_unit(n_bytes: int) -> int:
    """The unit that writes so many bytes with one to four digits: 0 bytes, 1 KiB, 2 MiB, ..."""
    at = 0
    while at < len(_PREFIXES) and n_bytes >= 1024 ** (at + 1):
        at += 1
    return at


def flops(n: int) -> str:
    """`1.50 GFLOP`: three digits and a decimal prefix."""
    at = 0
    while at < len(_PREFIXES) and n >= 1000 ** (at + 1):
        at += 1
    if at == 0:
        return f"{n} FLOP"
    size = 1000**at
    decimals = 2 if n < 10 * size else 1 if n < 100 * size else 0
    return f"{_rounded(n, size, decimals)} {_PREFIXES[at - 1]}FLOP"


def grouped(number: int) -> str:
    """`131072` as `131 072`."""
    return f"{number:,}".replace(",", " ")


def _rounded(number: int, unit: int, decimals: int) -> str:
    """number / unit, rounded half up, never through a float."""
    tenths = (number * 10**decimals * 2 + unit) // (2 * unit)
    whole, rest = divmod(tenths, 10**decimals)
    return f"{grouped(whole)}.{rest:0{decimals}d}" if decimals else grouped(whole)
