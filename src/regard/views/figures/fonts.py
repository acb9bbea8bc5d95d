"""Any text in a matplotlib figure: every character in a font that has it, and as its escape where none does."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import matplotlib
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

from regard.escape import visible

__all__ = ["Letters"]

LONGEST = 24
"""The most characters of a token."""


class Letters:
    """Writes what a font has, and says with which fonts.

    The fonts are matplotlib's own (``rcParams["font.family"]``), and where they lack a character the first font of this
    machine that has it.
    """

    def __init__(self) -> None:
        self._families = list(matplotlib.rcParams["font.family"])
        self._has = set().union(*(_characters(findfont(FontProperties(family=[name]))) for name in self._families))

    @property
    def style(self) -> dict[str, Any]:
        """What matplotlib has to know of a text that was written: its fonts, and that no sign in it means anything."""
        return {"family": self._families, "parse_math": False, "usetex": False}

    def write(self, text: str) -> str:
        """A text in which every character can be seen: in a font, or as an escape."""
        return "".join(c if c == "\n" or self._can(c) else _escaped(c) for c in visible(text))

    def short(self, token: str) -> str:
        """A token, of which no more is written than there is room for."""
        written = self.write(token)
        return written if len(written) <= LONGEST else f"{written[: LONGEST - 3]}..."

    def _can(self, character: str) -> bool:
        if ord(character) in self._has:
            return True
        family = _family_with(character)
        if family is None:
            return False
        if family not in self._families:
            self._families.append(family)
        self._has.add(ord(character))
        return True


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


@cache
def _characters(path: str) -> frozenset[int]:
    return frozenset(get_font(path).get_charmap())


@cache
def _family_with(character: str) -> str | None:
    """A font family of this machine with a character, if there is one that matplotlib can draw."""
    for name, path in _installed():
        try:
            if ord(character) in _characters(path):
                font = get_font(path)
                font.set_size(10, 72)
                font.load_char(ord(character))
                return name
        except (OSError, RuntimeError):  # no font, or one of coloured pictures
            continue
    return None


@cache
def _installed() -> tuple[tuple[str, str], ...]:
    """The upright fonts of this machine with their families.

    Of those that come with matplotlib, whose others are for formulas, DejaVu alone. PDF takes TrueType, no collections.
    """
    own = matplotlib.get_data_path()
    found = [
        (font.name, font.fname)
        for font in fontManager.ttflist
        if font.fname.lower().endswith(".ttf")
        and (font.style, font.stretch, font.weight) == ("normal", "normal", 400)
        and (font.name == "DejaVu Sans" or not font.fname.startswith(own + os.sep))
    ]
    return tuple(sorted(found, key=lambda font: (font[0] != "DejaVu Sans", font)))
