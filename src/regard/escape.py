"""Making every character of a text visible; imports nothing heavy, since error messages need it."""

from __future__ import annotations

import unicodedata

__all__ = ["visible"]

JOINERS = "\u200c\u200d"
"""Zero-width, but part of how emoji and some scripts are written."""


def visible(text: str) -> str:
    """A text in which what cannot be seen is an escape: control characters, line breaks, direction marks and the like.

    The joiners inside emoji and in scripts that need them stay.
    """
    return "".join(
        c.encode("unicode_escape").decode()
        if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in JOINERS
        else c
        for c in text
    )
