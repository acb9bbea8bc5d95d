"""Pages of `regard see` inside a page of the site: each is a file of its own, loaded when it comes into view.

A recording shows itself in a notebook as a frame that holds its complete page. Here that page is written beside the
HTML, named by its content, and the frame refers to it: a page of the course is small, and its figures load lazily.
"""

import re
from hashlib import sha256
from html import unescape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

LARGEST_FIGURE = 400_000
"""In bytes: what a learner on a slow line should wait for at most."""

FRAME = re.compile(r'<iframe\b([^>]*?)\ssrcdoc="([^"]*)"([^>]*)>', re.DOTALL)
FOLDER = "figures"


def move_figures(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Write the page in each frame of the document to a file, and refer to it."""
    if app.builder.format != "html":
        return
    root = "../" * docname.count("/")
    for node in doctree.findall(nodes.raw):
        if "srcdoc=" in node.rawsource or "srcdoc=" in node.astext():
            node.children = [nodes.Text(FRAME.sub(lambda found: _frame(app, docname, root, found), node.astext()))]


def _frame(app: Sphinx, docname: str, root: str, found: re.Match[str]) -> str:
    before, page, after = found.groups()
    content = unescape(page).encode()
    if len(content) > LARGEST_FIGURE:
        raise ValueError(
            f"{docname}: a figure of {len(content):,} bytes, above {LARGEST_FIGURE:,}: show fewer layers or heads"
        )
    name = f"{sha256(content).hexdigest()[:16]}.html"
    folder = Path(app.outdir, FOLDER)
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    return f'<iframe{before} src="{root}{FOLDER}/{name}" loading="lazy"{after}>'


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-resolved", move_figures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
