"""`visible`: a text whose invisible characters are escaped. Imports nothing heavy: error messages need it."""

from __future__ import annotations

import unicodedata

JOINERS = "\u200c\u200d"
"""Zero-width characters that are part of emoji and of some scripts."""


def visible(text: str) -> str:
    """A text with escapes for invisible characters: control characters, line breaks, direction marks and the like.

    The joiners inside emoji and in scripts that need them stay.
    """
    return "".join(
        c.encode("unicode_escape").decode()
        if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in JOINERS
        else c
        for c in text
    )
