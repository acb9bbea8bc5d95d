"""The course's pages as notebooks: the same cells, with the page's boxes as plain markdown."""

import re
from pathlib import Path
from typing import Any

import nbformat
from myst_nb.core.read import read_myst_markdown_notebook
from nbformat import NotebookNode
from sphinx.application import Sphinx

FOLDER = "notebooks"
COURSE = "course/"

BOX = re.compile(
    r"^(?P<fence>:{3,})\{(?P<kind>[\w-]+)\} ?(?P<title>[^\n]*)\n"
    r"(?P<options>(?::[\w-]+:[^\n]*\n)*)(?P<body>.*?)^(?P=fence)$",
    re.DOTALL | re.MULTILINE,
)
LINK_TO_PAGE = re.compile(r"\[([^\]]*)\]\((?!https?:)[^)]*\)")


def as_notebook(page: str) -> NotebookNode:
    """A page of MyST markdown as a notebook that has not run.

    A box becomes a quotation, and what is to be revealed becomes a `<details>`, which every notebook viewer can fold.
    Cells that only prove the page's numbers stay, folded.
    """
    notebook = read_myst_markdown_notebook(page)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = LINK_TO_PAGE.sub(r"\1", BOX.sub(_plain_box, cell.source))
        elif "remove-cell" in cell.metadata.get("tags", ()):
            cell.metadata["jupyter"] = {"source_hidden": True}
    # The format's ids are random; numbers keep the file the same from build to build.
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
    notebook.nbformat_minor = 5
    nbformat.validate(notebook)
    return notebook


def _plain_box(found: re.Match[str]) -> str:
    kind, title, body = found["kind"], found["title"].strip(), found["body"].strip()
    if kind == "dropdown":
        return f"<details>\n<summary>{title}</summary>\n\n{body}\n\n</details>"
    quoted = "\n".join(f"> {line}".rstrip() for line in body.splitlines())
    return f"> **{title or kind.capitalize()}**\n>\n{quoted}"


def course_pages(folder: Path) -> list[Path]:
    """The numbered pages of the course."""
    return sorted(folder.glob("[0-9]*.md"))


def write_notebooks(app: Sphinx, exception: Exception | None) -> None:
    """Write the notebook of each page of the course beside the site's HTML."""
    if exception is not None or app.builder.format != "html":
        return
    folder = Path(app.outdir, FOLDER)
    folder.mkdir(exist_ok=True)
    for page in course_pages(Path(app.srcdir, COURSE)):
        nbformat.write(as_notebook(page.read_text(encoding="utf-8")), folder / f"{page.stem}.ipynb")


def link_notebook(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Put a link to a page's notebook below its title."""
    if re.match(rf"{COURSE}\d", pagename):
        name = pagename.removeprefix(COURSE)
        link = f'<p class="notebook-link"><a href="../{FOLDER}/{name}.ipynb" download>This page as a notebook</a></p>'
        context["body"] = context["body"].replace("</h1>", f"</h1>\n{link}", 1)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("html-page-context", link_notebook)
    app.connect("build-finished", write_notebooks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
