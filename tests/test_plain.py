"""Text made harmless: nothing hidden, nothing that acts, nothing lost."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnscope.plain import visible, visible_token


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("café 東京 🤗", "café 東京 🤗"),
        ("[red] [/] [unused1] :fire: \\", "[red] [/] [unused1] :fire: \\"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\nb\tc\r\x00\x7f", "a\\x0ab\\x09c\\x0d\\x00\\x7f"),
        ("\u202egnp.exe", "\\u{202e}gnp.exe"),
        ("\ufeffx\u200bx\u00adx", "\\u{feff}x\\u{200b}x\\xadx"),
        ("\u2028\u2029\u0085", "\\u{2028}\\u{2029}\\x85"),
        ("\udc80", "\\u{dc80}"),
        ("", ""),
    ],
)
def test_a_line_that_hides_nothing(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" the", "·the"),
        ("  ", "··"),
        ("\t\n\r", "⇥↵␍"),
        ("\u00a0x", "⍽x"),
        ("\x1b", "\\x1b"),
        ("</script>", "</script>"),
    ],
)
def test_a_token_shows_its_blanks(text: str, shown: str) -> None:
    assert visible_token(text) == shown


@settings(deadline=None)
@given(st.text(st.characters()))
def test_nothing_acts_or_breaks_a_line(text: str) -> None:
    for shown in (visible(text), visible_token(text)):
        assert len(shown) >= len(text)
        assert len(shown.splitlines()) <= 1
        assert all(unicodedata.category(c)[0] != "C" for c in shown)


@settings(deadline=None)
@given(st.text(st.characters(categories=("Z", "Cc")), min_size=1))
def test_no_token_looks_empty(text: str) -> None:
    """Also em spaces and ideographic spaces are drawn."""
    assert not any(character.isspace() for character in visible_token(text))


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=("C", "Z"))))
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert visible(text) == visible_token(text) == text
