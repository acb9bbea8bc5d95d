"""Any text in a matplotlib figure: `FontFallback` finds a font for each character, or writes the character's escape."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import matplotlib
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

from regard.escape import visible

MAX_TOKEN_LENGTH = 24
"""The most characters of a token."""


class FontFallback:
    """The fonts of a figure: those of ``rcParams["font.family"]``, and others for characters that these lack."""

    def __init__(self) -> None:
        self._families = list(matplotlib.rcParams["font.family"])
        paths = (findfont(FontProperties(family=[name])) for name in self._families)
        self._characters = set().union(*map(_characters, paths))

    @property
    def style(self) -> dict[str, Any]:
        """The text properties for matplotlib: the fonts, and neither formulas nor LaTeX."""
        return {"family": self._families, "parse_math": False, "usetex": False}

    def escape(self, text: str) -> str:
        """A text in which every character is visible: in a font, or as an escape."""
        return "".join(
            c if c == "\n" or self._supports(c) else c.encode("unicode_escape").decode() for c in visible(text)
        )

    def shorten(self, token: str) -> str:
        """A token, escaped and shortened."""
        text = self.escape(token)
        return text if len(text) <= MAX_TOKEN_LENGTH else f"{text[: MAX_TOKEN_LENGTH - 3]}..."

    def _supports(self, character: str) -> bool:
        if ord(character) in self._characters:
            return True
        family = _family_with(character)
        if family is None:
            return False
        if family not in self._families:
            self._families.append(family)
        self._characters.add(ord(character))
        return True


@cache
def _characters(path: str) -> frozenset[int]:
    return frozenset(get_font(path).get_charmap())


@cache
def _family_with(character: str) -> str | None:
    """The first installed font family that has a character and that matplotlib can draw."""
    for name, path in _installed():
        try:
            if ord(character) in _characters(path):
                font = get_font(path)
                font.set_size(10, 72)
                font.load_char(ord(character))
                return name
        except (OSError, RuntimeError):  # not a font, or a font of coloured bitmaps
            continue
    return None


@cache
def _installed() -> list[tuple[str, str]]:
    """The installed upright fonts with their families, DejaVu Sans first.

    PDF takes TrueType fonts, no collections. The other fonts that come with matplotlib are for formulas.
    """
    formulas = matplotlib.get_data_path() + os.sep
    fonts = {
        (font.name, font.fname)
        for font in fontManager.ttflist
        if font.fname.lower().endswith(".ttf")
        and (font.style, font.stretch, font.weight) == ("normal", "normal", 400)
        and (font.name == "DejaVu Sans" or not font.fname.startswith(formulas))
    }
    return sorted(fonts, key=lambda font: (font[0] != "DejaVu Sans", font))
