"""How objects show themselves in a notebook: text and tables as HTML. No text can become markup.

And what keeps the output of a cell clean of what other packages say there.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from importlib import import_module

PREFORMATTED = (
    "margin: 0; line-height: 1.15; overflow-x: auto; background: none; "
    "font-family: ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
)
"""The style of a text whose columns stay aligned. It names no colour, so that it is readable on any background."""

CELL = "padding: 0.1em 0.7em 0.1em 0; text-align: left; vertical-align: top"


class TextPicture(str):
    """A text that is a picture or a table: a prompt and a notebook show it as it prints, and not as a quoted string.

    It is an ordinary string otherwise: equal to it, and printed as it is.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return preformatted(self)


def preformatted(text: str) -> str:
    """A text whose columns stay aligned."""
    return preformatted_html(escape(text))


def preformatted_html(code: str, *, wrap: bool = False) -> str:
    """The same for HTML, which the caller has escaped.

    Args:
        code: the HTML.
        wrap: whether lines that are too long are broken; else they can be scrolled.
    """
    return f'<pre style="{PREFORMATTED}; white-space: {"pre-wrap" if wrap else "pre"}">{code}</pre>'


def html_table(title: str, rows: Sequence[Sequence[str]], headings: Sequence[str] = ()) -> str:
    """A small table: the first cell of each row names it.

    Args:
        title: above the table.
        rows: the texts of the cells.
        headings: of the columns; none by default.
    """
    head = "".join(f'<th style="{CELL}">{escape(heading)}</th>' for heading in headings)
    body = "".join(
        f'<tr><th style="{CELL}">{escape(first)}</th>'
        + "".join(f'<td style="{CELL}">{escape(cell)}</td>' for cell in others)
        + "</tr>"
        for first, *others in rows
    )
    return (
        f'<div><b>{escape(title)}</b><table style="border-collapse: collapse; margin: 0.3em 0">'
        f"{f'<thead><tr>{head}</tr></thead>' if headings else ''}<tbody>{body}</tbody></table></div>"
    )


def import_tqdm() -> None:
    """Import tqdm's bars before huggingface_hub or datasets do, and without a word.

    In a notebook without ipywidgets the first import of tqdm.auto warns, in the output of whatever cell that is.
    """
    with warnings.catch_warnings(), suppress(ImportError):
        warnings.simplefilter("ignore")
        import_module("tqdm.auto")
