"""Amounts: read as people write them, written as people read them, exact."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.errors import UsageError
from attnscope.experiments import amounts


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8192", 8192),
        ("8k", 8192),
        (" 32K ", 32768),
        ("1M", 1024**2),
        ("2g", 2 * 1024**3),
        ("1e12", 10**12),
        ("1000000000000", 10**12),
        (5, 5),
    ],
)
def test_counts(text: str | int, value: int) -> None:
    assert amounts.count(text, "tokens") == value


@pytest.mark.parametrize(
    "text", ["0", "-5", "", "k", "1.5k", "8kk", "1e", "1e99", "9" * 40, "0x10", "٣", "1_000", 0, -1]
)
def test_what_is_no_count_is_told(text: str | int) -> None:
    with pytest.raises(UsageError, match="tokens"):
        amounts.count(text, "tokens")


@pytest.mark.parametrize("text", ["1e19", "1e400", "9" * 300, "2000000000g"])
def test_what_is_too_much_is_told_with_the_most(text: str) -> None:
    with pytest.raises(UsageError, match="at most 1e18"):
        amounts.count(text, "tokens")


@pytest.mark.parametrize("asked", ["3", 3, [3], (3,)])
def test_heads(asked: str | int | list[int]) -> None:
    assert amounts.heads(asked, "8,4,1") == (3,)


def test_several_counts_each_once() -> None:
    assert amounts.counts("4k,32k,4096", "tokens") == (4096, 32768)
    assert amounts.counts(["1k", 7], "tokens") == (1024, 7)
    assert amounts.counts(7, "tokens") == (7,)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("24GiB", 24 * 1024**3),
        ("80GB", 80 * 10**9),
        ("1.5 MiB", 3 * 2**19),
        ("0.3kB", 300),
        ("2TiB", 2 * 1024**4),
        (7, 7),
    ],
)
def test_memory(text: str | int, value: int) -> None:
    assert amounts.memory(text) == value


@pytest.mark.parametrize(
    "text", ["24", "24G", "GiB", 0, -1, True, 2.5, "-1GiB", "1e3GiB", "24 gigabytes"]
)
def test_what_is_no_memory_is_told(text: str | int) -> None:
    with pytest.raises(UsageError, match="24GiB"):
        amounts.memory(text)


@pytest.mark.parametrize(
    ("n_bytes", "unit", "text"),
    [
        (0, None, "0 B"),
        (768, None, "768 B"),
        (512 * 1024, None, "512 KiB"),
        (36864, None, "36 KiB"),
        (69120, None, "67.50 KiB"),
        (2**27, 3, "0.13 GiB"),  # half up: 0.125
        (2**32, None, "4.00 GiB"),
        (10**30, None, "867 361 737 988.40 EiB"),
    ],
)
def test_binary_units(n_bytes: int, unit: int | None, text: str) -> None:
    assert amounts.binary(n_bytes, unit) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (999, "999 FLOP"),
        (8_589_934_592, "8.59 GFLOP"),
        (52_778_705_616_896, "52.8 TFLOP"),
        (604 * 10**12, "604 TFLOP"),
    ],
)
def test_flops(n: int, text: str) -> None:
    assert amounts.flops(n) == text


@given(st.integers(1, 10**24))
def test_a_size_reads_back_to_within_its_last_digit(n_bytes: int) -> None:
    number, name = amounts.binary(n_bytes).rsplit(" ", 1)
    unit = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB").index(name)
    hundredths = round(100 * float(number.replace(" ", ""))) if len(number) < 12 else None
    if hundredths is not None:
        assert abs(n_bytes * 200 - 2 * hundredths * unit) <= unit
