"""What a view draws on a console, as a text and as HTML."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console

from regard.notebook import TextPicture, preformatted_html
from regard.views.terminal.console import console_for

MAX_WIDTH = 10_000

NOTEBOOK_WIDTH = 100
"""Columns: as many as most notebooks show without scrolling."""


def drawn_text(draw: Callable[..., None], facts: Any, *, width: int | None = None, **options: Any) -> TextPicture:
    """What a view draws, without styles.

    Args:
        draw: the view: ``draw(facts, console, **options)``.
        facts: what it draws.
        width: the columns; by default those of the terminal, where standard output is one, else those of a pipe.
        options: of the view.

    Raises:
        ValueError: a width below 1.
    """
    if width is not None and not 1 <= width <= MAX_WIDTH:
        raise ValueError(f"width={width}: a number of columns, from 1 to {MAX_WIDTH:,}")
    if width is None and sys.stdout is not None and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    stream = io.StringIO()
    console = console_for(stream)
    if width is not None:
        console.width = width
    draw(facts, console, **options)
    return TextPicture(stream.getvalue().rstrip("\n"))


def drawn_html(draw: Callable[..., None], facts: Any, **options: Any) -> str:
    """What a view draws, with its styles, for a notebook; see `drawn_text`."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(
            file=nowhere,
            record=True,
            width=NOTEBOOK_WIDTH,
            color_system="truecolor",
            force_terminal=True,
            force_jupyter=False,
            highlight=False,
            markup=False,
            emoji=False,
        )
        draw(facts, console, **options)
    return preformatted_html(console.export_html(inline_styles=True, code_format="{code}").rstrip("\n"))
