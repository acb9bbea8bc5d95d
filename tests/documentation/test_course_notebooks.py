"""The pages of the course as notebooks."""

import pytest

from documentation.conftest import DOCS
from views.html import browsing

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: make install")

from course_notebooks import as_notebook, course_pages  # noqa: E402  beside the site's sources

PAGE = """---
file_format: mystnb
kernelspec:
  name: python3
---

# A page

:::{admonition} Predict
:class: predict

What is 1 + 1?
:::

:::{dropdown} Reveal
It is [two](../reference/glossary.md), see [here](https://example.org/).
:::

```{code-cell} ipython3
1 + 1
```

```{code-cell} ipython3
:tags: [remove-cell]

assert 1 + 1 == 2
```
"""


@pytest.fixture(scope="module")
def notebook():
    return as_notebook(PAGE)


def test_a_box_is_a_quotation(notebook):
    assert "> **Predict**\n>\n> What is 1 + 1?" in notebook.cells[0].source


def test_what_is_to_be_revealed_is_folded(notebook):
    assert "<details>\n<summary>Reveal</summary>\n\nIt is two" in notebook.cells[0].source


def test_links_to_other_places_stay_and_links_to_pages_do_not(notebook):
    assert "[here](https://example.org/)" in notebook.cells[0].source
    assert "glossary.md" not in notebook.cells[0].source


def test_cells_that_prove_a_number_stay_and_are_folded(notebook):
    shown, hidden = notebook.cells[1:]
    assert (shown.source, hidden.source) == ("1 + 1", "assert 1 + 1 == 2")
    assert "jupyter" not in shown.metadata
    assert hidden.metadata["jupyter"] == {"source_hidden": True}


@pytest.mark.parametrize("page", course_pages(DOCS / "course"), ids=lambda path: path.stem)
def test_each_page_of_the_course_is_a_notebook_without_markup_of_the_site(page):
    notebook = as_notebook(page.read_text(encoding="utf-8"))
    assert sum(cell.cell_type == "code" for cell in notebook.cells) > 3
    assert [cell.source for cell in notebook.cells if cell.cell_type == "markdown" and ":::" in cell.source] == []


@pytest.mark.more
@pytest.mark.parametrize("name", ["03-similarity", "05-queries-keys-values", "08-masks"])
def test_a_page_runs_as_a_notebook_and_shows_its_figure(name, tmp_path, chromium, monkeypatch):
    nbconvert = pytest.importorskip("nbconvert")
    preprocessors = pytest.importorskip("nbconvert.preprocessors")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = as_notebook((DOCS / "course" / f"{name}.md").read_text(encoding="utf-8"))
    preprocessors.ExecutePreprocessor(timeout=120).preprocess(notebook, {"metadata": {"path": str(tmp_path)}})
    html, _ = nbconvert.HTMLExporter(embed_images=True).from_notebook_node(notebook)
    path = tmp_path / "notebook.html"
    path.write_text(html, encoding="utf-8")
    with browsing.opened(chromium, path, timeout=30) as (page, _):
        frame = page.locator("iframe").first
        frame.scroll_into_view_if_needed()
        frame.content_frame.locator("html[data-ready]").wait_for(state="attached")
        assert frame.bounding_box()["height"] > 300
        assert "AssertionError" not in page.content()
