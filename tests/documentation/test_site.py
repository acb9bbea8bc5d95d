"""The site builds without a warning, opens from disk without a network, and none of its links is broken."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from views.html import browsing

pytestmark = pytest.mark.more

LARGEST_FIGURE = 400_000  # bytes
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "video": "src"}
NOT_LOADED = {"canonical", "search", "index", "next", "prev", "author", "license"}  # what a <link> may only name


class Page(HTMLParser):
    """What a page of HTML loads, what it links to, and the anchors that it has."""

    def __init__(self, path):
        super().__init__()
        self.loads, self.links, self.anchors = [], [], {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors.update(given[name] for name in ("id", "name") if given.get(name))
        if given.get(LOADED.get(tag)) and not NOT_LOADED & set((given.get("rel") or "").split()):
            self.loads.append(given[LOADED[tag]])
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])


@pytest.fixture(scope="session")
def pages(site):
    """Each page of the site; the figures are complete pages of their own."""
    return {path: Page(path) for path in site.rglob("*.html") if path.parent.name != "figures"}


def test_a_page_loads_nothing_from_a_network(pages):
    assert [(str(path), url) for path, page in pages.items() for url in page.loads if urlsplit(url).netloc] == []


def test_each_link_to_the_site_leads_somewhere(site, pages):
    broken = []
    for path, page in pages.items():
        for url in page.links + page.loads:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            found = target.is_file() and target.is_relative_to(site)
            if not found or (target in pages and unquote(parts.fragment) not in pages[target].anchors):
                broken.append((str(path.relative_to(site)), url))
    assert broken == []


def test_no_figure_is_too_large(site):
    sizes = {path.name: path.stat().st_size for path in (site / "figures").glob("*.html")}
    assert sizes
    assert {name: size for name, size in sizes.items() if size > LARGEST_FIGURE} == {}


def test_the_search_finds_a_mistake_without_a_network(site, chromium):
    with browsing.opened(chromium, site / "search.html") as (page, log):
        page.goto((site / "search.html").as_uri() + "?q=softmax-queries")
        page.wait_for_selector("#search-results .search li a")
        found = page.locator("#search-results .search li a").all_inner_texts()
    assert "softmax-queries" in found
    assert [line for line in log if not line.startswith("request: file://")] == []


def course():
    return sorted((Path(__file__).parents[2] / "docs" / "course").glob("[0-9]*.md"))


@pytest.mark.parametrize("source", course(), ids=lambda path: path.stem)
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (360, True)])
def test_a_page_of_the_course_fits_and_says_nothing_on_the_console(site, chromium, source, width, dark):
    path = site / "course" / f"{source.stem}.html"
    with browsing.opened(chromium, path, width=width, dark=dark) as (page, log):
        frames = page.locator("iframe")
        for number in range(frames.count()):
            frames.nth(number).scroll_into_view_if_needed()
            frames.nth(number).content_frame.locator("html[data-ready]").wait_for(state="attached")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert [line for line in log if not line.startswith("request: file://")] == []


@pytest.mark.parametrize("source", course(), ids=lambda path: path.stem)
def test_a_page_of_the_course_has_its_parts(source):
    text = source.read_text(encoding="utf-8")
    assert re.search(r"^:class: predict$", text, re.MULTILINE)
    assert re.search(r"^:{3,}\{dropdown\} Reveal", text, re.MULTILINE)
    assert re.search(r"^## What to keep$", text, re.MULTILINE)
    hidden = re.findall(r"```\{code-cell\} ipython3\n:tags: \[remove-cell\]\n(.*?)```", text, re.DOTALL)
    assert any("assert" in cell for cell in hidden)


@pytest.mark.parametrize("source", course(), ids=lambda path: path.stem)
def test_a_page_of_the_course_has_a_live_figure(site, source):
    html = (site / "course" / f"{source.stem}.html").read_text(encoding="utf-8")
    assert re.search(r'<iframe[^>]* src="\.\./figures/[0-9a-f]+\.html" loading="lazy"', html)
