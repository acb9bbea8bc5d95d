"""The console that a command writes to, and the parts that all terminal views share: headings, lines, signs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from io import StringIO
from typing import TextIO

from rich.console import Console
from rich.text import Text

PIPED_WIDTH = 110


def console_for(stream: TextIO | StringIO) -> Console:
    """A console that writes to a stream: styled on a terminal, plain text elsewhere."""
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns[:9]) > 0 else None
    return Console(
        file=stream,
        width=width or (None if stream.isatty() else PIPED_WIDTH),
        highlight=False,
        markup=False,
        emoji=False,
    )


def print_heading(console: Console, text: str) -> None:
    """Print the heading of a part."""
    console.print(Text(text, style="bold cyan"))


def print_line(console: Console, text: str, style: str = "") -> None:
    """Print a text; it is wrapped where the console ends."""
    console.print(Text(text, style=style))


def can_encode(console: Console, characters: str) -> bool:
    """Whether the encoding of a console has these characters."""
    try:
        characters.encode(console.encoding)
    except UnicodeEncodeError:
        return False
    return True


def full_block(console: Console) -> str:
    """The character that bars are made of."""
    return "█" if can_encode(console, "█") else "#"


def marker_notes(tokens: Iterable[str]) -> Iterator[str]:
    """What the markers mean that tokenizers put before some of these tokens."""
    tokens = list(tokens)
    markers = {"##": "marks a piece that continues a word", "Ġ": "stands for a space", "▁": "stands for a space"}
    for marker, meaning in markers.items():
        if any(token.startswith(marker) for token in tokens):
            yield f"{marker} {meaning}."
