"""Text made fit to show: what comes from strangers is harmless, and shares read alike."""

from __future__ import annotations

import math
import unicodedata

# What a person should see where a text has blank or control characters.
_SHOWN = {" ": "·", "\n": "↵", "\r": "␍", "\t": "⇥", "\u00a0": "⍽"}


def _shown(character: str, marks: dict[str, str]) -> str:
    if character in marks:
        return marks[character]
    # C* are control, format (among them the bidirectional overrides), surrogate and unassigned
    # characters; Zl and Zp break lines.
    # Of the spaces only the ordinary one is known by its look.
    category = unicodedata.category(character)
    if category[0] == "C" or (category[0] == "Z" and character != " "):
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{{{code:x}}}"
    return character


def visible(text: str) -> str:
    """A line in which nothing is hidden and nothing acts: spaces stay, control characters show."""
    return "".join(_shown(character, {}) for character in text)


def visible_token(text: str) -> str:
    """Like `visible`, with spaces, tabs and line ends drawn as marks, for the text of a token."""
    return "".join(_shown(character, _SHOWN) for character in text)


def number(value: float) -> str:
    """`.94`, `1.00`, `-.08`; a dash where there is none."""
    if not math.isfinite(value):
        return "–"
    text = f"{value:.2f}"
    if text in ("0.00", "-0.00"):
        return ".00"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def signed(value: float) -> str:
    """A change, as in `+7.96`; what rounds to nothing has no sign."""
    if not math.isfinite(value):
        return "–"
    text = f"{value:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text
