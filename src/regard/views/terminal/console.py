"""The console that a command writes to, and the parts that all terminal views share: headings, lines, tables, signs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.escape import visible

PIPED_WIDTH = 110


def console_for(stream: TextIO) -> Console:
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


def new_table(*columns: tuple[str, str], header: bool = True, compact: bool = False) -> Table:
    """An empty table; a compact one has narrower gaps.

    Args:
        columns: the heading of each, and to which side its cells are aligned: "left" or "right".
        header: whether the headings are shown.
        compact: whether one column lies between two cells, and not two.
    """
    padding = (0, 1, 0, 0) if compact else (0, 1)
    out = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, show_header=header, padding=padding)
    for name, justify in columns:
        out.add_column(Text(visible(name)), justify=justify, overflow="fold")  # type: ignore[arg-type]
    return out


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
