"""The page of a server in the output of a notebook's cell."""

from __future__ import annotations

from html import escape

ENDED = (
    "Where the frame stays empty, the server has ended: run the cell again. It listens on the machine that runs the "
    "notebook; a browser on another one does not reach it."
)


def server_frame(url: str, title: str) -> str:
    """A frame with a page, and its plain address.

    Args:
        url: of the page.
        title: the frame in words.
    """
    address = escape(url)
    return (
        f'<div class="regard-live"><iframe src="{address}" title="{escape(title)}" referrerpolicy="no-referrer" '
        'style="width: 100%; height: 800px; border: 0"></iframe>'
        f'<p>The same page in a window of its own: <a href="{address}" target="_blank" rel="noopener noreferrer">'
        f"{address}</a>. {ENDED}</p></div>"
    )
