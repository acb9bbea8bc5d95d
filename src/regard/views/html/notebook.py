"""A page in the output of a notebook's cell: a picture, and a frame with the page that takes its place.

The page stands in the first output that shows it. Another output of the same page has only its picture and its name:
`static/notebook/frame.js` gives its frame the page of the first.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass, field
from functools import cache
from html import escape

from regard.views.html.bundle import COMMENT_LINES, STATIC, TYPE_COMMENT
from regard.views.html.picture import data_uri

SANDBOX = "allow-scripts allow-downloads"
"""The page may run its own script and offer its pictures as files, and nothing else."""

PLACE = "position: relative; overflow: hidden"
"""The style of the box: the frame lies in it unseen until its page is ready."""

WITHOUT_SCRIPTS = (
    "This is a picture of an interactive page. The page shows where a notebook's scripts may run: open the notebook in "
    "Jupyter, and trust it."
)
ELSEWHERE = (
    "This is a picture. The interactive page is in the output of another cell, which shows the same; to have it here, "
    "run this cell again."
)


def notebook_frame(page: str, picture: str, title: str, *, share: bool = True) -> str:
    """A page for a notebook: in a frame of its own, which may run the page's script and nothing else.

    Args:
        page: the page as a text.
        picture: the SVG that is shown where no script runs.
        title: the picture in words.
        share: whether the page may be left to the output of another cell, where that has it.
    """
    name = hashlib.sha256(page.encode()).hexdigest()[:16]
    execution = _execution() if share else None
    embed = execution is None or DISPLAYED.embeds(name, *execution)
    source = f'srcdoc="{escape(page)}" ' if embed else ""
    label = escape(title)
    return (
        f'<div class="regard-frame" data-page="{name}" style="{PLACE}">'
        f'<img class="regard-static" src="{data_uri(picture)}" alt="{label}" style="max-width: 100%">'
        f'<p class="regard-note">{WITHOUT_SCRIPTS if embed else ELSEWHERE}</p>'
        f'<iframe {source}sandbox="{SANDBOX}" title="{label}" style="width: 100%; height: {760 if embed else 0}px; '
        'border: 0"></iframe>'
        "<noscript><style>.regard-frame iframe { display: none }</style></noscript>"
        f"<script>{frame_script()}</script></div>"
    )


@cache
def frame_script() -> str:
    """The script beside a frame; it serves any number of frames, and may run any number of times."""
    source = (STATIC / "notebook" / "frame.js").read_text(encoding="utf-8")
    return TYPE_COMMENT.sub("", COMMENT_LINES.sub("", source)).strip()


@dataclass
class PageDisplays:
    """The cells that showed one page."""

    owner: str
    """The cell whose output has the page."""
    shown: dict[str, tuple[int, str]]
    """For each cell when it showed the page last, in displays of this page, and in which execution."""
    count: int = 1


@dataclass
class DisplayedPages:
    """Which cells of this session showed which page, to decide whether an output needs the page itself.

    No output may depend on one that is gone. The first cell that shows a page has it in its output. Another cell
    refers to that, until it is run again while the first was not: then somebody misses the page, and it gets its own. A
    cell that had the page has it again when it is run again, since its old output is gone.
    """

    pages: dict[str, PageDisplays] = field(default_factory=dict)
    """By the page's name."""

    def embeds(self, name: str, cell: str, execution: str) -> bool:
        """Note that a cell shows a page; whether its output has the page itself.

        Args:
            name: of the page.
            cell: the same for each run of one cell.
            execution: another for each run.
        """
        known = self.pages.get(name)
        if known is None:
            self.pages[name] = PageDisplays(cell, {cell: (0, execution)})
            return True
        last, owned = known.shown.get(cell), known.shown[known.owner]
        known.shown[cell] = known.count, execution
        known.count += 1
        if last is None or last[1] == execution:  # a cell that is new, or that has displayed the page just now
            return False
        if cell == known.owner or last > owned:
            known.owner = cell
            return True
        return False


DISPLAYED = DisplayedPages()
"""Of this process, which is a notebook's kernel."""


def _execution() -> tuple[str, str] | None:
    """The cell that runs now, and which run of it; None where outputs share no document, or nothing tells the cell."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None or "google.colab" in sys.modules else ipython.get_ipython()
    kernel = getattr(shell, "kernel", None)
    if shell is None or kernel is None:
        return None
    parent = kernel.get_parent()
    execution = str(parent.get("header", {}).get("msg_id", ""))
    content = parent.get("content", {})
    # A program that runs a notebook (nbclient, nbconvert) allows no input. It runs each cell once.
    once = execution if content.get("allow_stdin") is False else ""
    # Not every notebook tells the number of a cell. Then its text stands for it.
    cell = parent.get("metadata", {}).get("cellId") or once or content.get("code")
    return (str(cell), execution) if cell and execution else None
