"""A page in the output of a notebook's cell: its frame, its picture, and outputs that share one page."""

import re
from base64 import b64encode
from xml.etree import ElementTree

import pytest
import torch

from regard.lens import AttentionMap
from regard.views.html.notebook import ELSEWHERE, DisplayedPages, notebook_frame
from regard.views.html.page import build_page
from regard.views.html.picture import describe, draw_picture
from views.html.test_hostile import SCRIPT, TOKENS, watched
from views.recordings import random_map, recorded, river

MAX_PICTURE_BYTES = 30_000
SRCDOC = re.compile(r'srcdoc="[^"]*" ')


@pytest.fixture(scope="module")
def output():
    """A recording as a notebook shows it."""
    return river()._repr_html_()


@pytest.fixture
def notebook(tmp_path):
    """A function from outputs to a notebook's page."""

    def call(*outputs):
        path = tmp_path / "notebook.html"
        start = "<!doctype html><meta charset=utf-8><title>notebook</title>"
        path.write_text(start + "<p>-</p>".join(outputs), encoding="utf-8")
        return path

    return call


@pytest.fixture
def show(open_page, notebook):
    """A function that opens a notebook's page with some outputs: the page when so many show theirs."""

    def call(*outputs, count=1, ready=".regard-frame"):
        page = open_page(notebook(*outputs), ready=ready)
        live(page, count)
        return page

    return call


def without_page(output):
    """The output of another cell, which leaves the page to the first."""
    return SRCDOC.sub("", output)


def live(page, count=1):
    """The boxes whose page is shown."""
    page.wait_for_function(f"document.querySelectorAll('.regard-frame[data-live]').length >= {count}")
    return page.locator(".regard-frame[data-live]").all()


def heights(page):
    """The height of the first frame, and that of the page in it."""
    frame = page.frames[1]
    inside = frame.evaluate("Math.ceil(document.getElementById('page').getBoundingClientRect().bottom + scrollY)")
    return page.evaluate("document.querySelector('.regard-frame iframe').getBoundingClientRect().height"), inside


def picture_of(recording):
    return draw_picture(recording, build_page(recording).facts)


def test_a_frame_is_as_tall_as_its_page(show, output):
    page = show(output)
    frame, inside = heights(page)
    assert frame == inside > 300


@pytest.mark.parametrize(
    "view", ["heads", *(pytest.param(view, marks=pytest.mark.more) for view in ("map", "arithmetic", "whatif"))]
)
def test_a_frame_stays_as_tall_as_its_page_when_another_view_opens(show, output, view):
    page = show(output)
    before, _ = heights(page)
    page.frames[1].locator(f"#tab-{view}").click()
    page.wait_for_function(f"document.querySelector('.regard-frame iframe').getBoundingClientRect().height != {before}")
    page.wait_for_timeout(100)
    frame, inside = heights(page)
    assert frame == inside


def test_a_frame_without_a_width_yet_has_no_height(show, output):
    """Browsers load a frame below the window before they lay it out: then each word has a line of its own."""
    page = show("", f'<div style="width: 0">{output}</div>', count=0, ready="p")
    page.frames[1].wait_for_selector("html[data-ready]", state="attached")
    page.wait_for_timeout(100)
    assert page.locator(".regard-frame[data-live]").count() == 0
    page.evaluate("document.querySelector('div').style.width = '700px'")
    live(page)
    page.wait_for_timeout(100)
    frame, inside = heights(page)
    assert frame == inside < 5_000


def test_only_the_page_in_a_frame_can_change_its_height(show, output):
    page = show(output)
    before, _ = heights(page)
    page.evaluate("postMessage({regard: 'height', height: 5}, '*')")
    page.frames[1].evaluate("parent.postMessage({regard: 'height', height: 'x'}, '*')")
    page.wait_for_timeout(50)
    assert heights(page)[0] == before


def test_the_page_takes_the_place_of_its_picture(show, output):
    page = show(output)
    (box,) = live(page)
    assert not box.locator(".regard-static").is_visible()
    assert not box.locator(".regard-note").is_visible()
    assert page.frames[1].locator("#view-sentence").is_visible()


def test_where_no_script_runs_the_picture_is_shown_and_no_frame(chromium, notebook, output):
    with chromium.without_scripts(notebook(output)) as page:
        assert page.locator(".regard-static").is_visible()
        assert page.locator(".regard-static").evaluate("image => image.naturalWidth") > 300
        assert not page.locator("iframe").is_visible()


def test_a_frame_whose_page_is_in_a_file_works_as_well(show, output):
    """A site moves srcdoc into a file, and loads that when the reader comes to it."""
    page = build_page(river()).text
    source = f"data:text/html;base64,{b64encode(page.encode()).decode()}"
    site = SRCDOC.sub(f'src="{source}" loading="lazy" ', output)
    page = show(site, without_page(output), count=2)
    frame, inside = heights(page)
    assert frame == inside > 300


def test_outputs_without_the_page_take_it_from_the_one_that_has_it(show, output):
    other = without_page(output)
    assert len(other) < len(output) / 20
    page = show(other, output, other, count=3)
    assert len(live(page)) == 3
    texts = [frame.locator("h1").text_content() for frame in page.frames[1:]]
    assert texts == [texts[0]] * 3


def test_an_output_whose_page_is_gone_shows_its_picture_and_the_way_out(show, monkeypatch):
    monkeypatch.setattr("regard.views.html.notebook._execution", lambda: ("a cell", "a run"))
    monkeypatch.setattr("regard.views.html.notebook.DISPLAYED", pages := DisplayedPages())
    river()._repr_html_()
    assert len(pages.pages) == 1
    page = show(river()._repr_html_(), count=0)
    assert page.locator(".regard-static").is_visible()
    assert page.locator(".regard-note").text_content() == ELSEWHERE


@pytest.mark.parametrize(
    ("displays", "embedded"),
    [
        (["a1", "b2", "c3"], [True, False, False]),
        (["a1", "a1", "b2", "b2"], [True, False, False, False]),
        (["a1", "b2", "a3"], [True, False, True]),
        (["a1", "b2", "b3"], [True, False, True]),
        (["a1", "b2", "a3", "b4"], [True, False, True, False]),
    ],
    ids=["several cells", "twice in a cell", "the first is run again", "another is run again alone", "all run again"],
)
def test_a_page_is_in_its_first_cell_and_in_one_that_is_run_again_while_that_was_not(displays, embedded):
    """Somebody who reruns another cell alone may have cleared the output that had the page."""
    pages = DisplayedPages()
    assert [pages.embeds("a page", *display) for display in displays] == embedded


def test_outside_a_notebook_every_output_has_the_page(output):
    assert SRCDOC.search(output)
    assert SRCDOC.search(river()._repr_html_())


def test_a_recording_in_which_nothing_can_be_shown_has_no_page():
    assert recorded()._repr_html_() is None


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (3, 7), (32, 32), (33, 500), (700, 700)])
def test_a_picture_is_below_30_kb_at_any_length(queries, keys):
    torch.manual_seed(0)
    picture = picture_of(recorded(random_map(queries, keys)))
    assert len(picture.encode()) < MAX_PICTURE_BYTES
    ElementTree.fromstring(picture)


def test_a_picture_shows_the_tokens_and_the_strongest_pair():
    facts = build_page(river()).facts
    texts = [each.text for each in ElementTree.fromstring(draw_picture(river(), facts)).iterfind(".//{*}text")]
    tokens = [token.strip() for token in facts["texts"][0]["tokens"]]
    assert texts[0] == describe(facts)
    assert texts[2:] == [*tokens, *tokens]
    pair = facts["attentions"][facts["initial"]["attention"]]["heads"][facts["initial"]["head"]]["pairs"][0]
    assert texts[1].endswith(f"{tokens[pair['query']]} gives {tokens[pair['key']]} {pair['weight']:.2f}")


def test_the_tokens_of_a_picture_end_left_of_its_rows_and_begin_above_its_columns():
    picture = ElementTree.fromstring(picture_of(recorded(random_map(2, 3))))
    left, top = re.findall(r"\d+", picture.find("{*}g").get("transform"))[:2]
    labels = list(picture.iterfind(".//{*}text"))[2:]
    for label in labels[:2]:
        assert (label.get("text-anchor"), label.get("transform")) == ("end", None)
        assert int(label.get("x")) < int(left)
    for label in labels[2:]:
        x, y = label.get("x"), label.get("y")
        assert (label.get("text-anchor"), label.get("transform")) == ("start", f"rotate(-90 {x} {y})")
        assert int(y) < int(top)


def test_the_darkest_cells_of_a_picture_are_the_largest_weights():
    q = torch.zeros(1, 1, 3, 2)
    k = torch.tensor([[[[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]]])
    q[0, 0, 1, 0], k[0, 0, 2, 0] = 20.0, 20.0  # query 1 gives everything to key 2
    picture = ElementTree.fromstring(picture_of(recorded(AttentionMap(q, k, None))))
    darkest = [path.get("d") for path in picture.iterfind(".//{*}path")][-1]
    assert darkest == "M2 1h1v1h-1z"


def test_hostile_tokens_stay_text_in_a_picture():
    root = ElementTree.fromstring(picture_of(watched(TOKENS[:30], SCRIPT)))
    tags = {each.tag.rpartition("}")[2] for each in root.iter()}
    assert tags == {"svg", "rect", "text", "g", "path"}


def test_hostile_titles_stay_text_in_a_frame(show):
    page = show(notebook_frame("<title>x</title>", "<svg/>", SCRIPT), count=0)
    assert page.locator("body > *").count() == 1
    assert page.locator("iframe").get_attribute("title") == SCRIPT
    assert page.locator("img").get_attribute("alt") == SCRIPT


def drawn_by_jupyter(page, output):
    """Draw an output as a notebook's window does: the markup first, then each script in an element of its own."""
    page.evaluate(
        """(html) => {
          const cell = document.body.appendChild(document.createElement("div"));
          cell.innerHTML = html;
          for (const old of cell.querySelectorAll("script")) {
            const script = document.createElement("script");
            script.textContent = old.textContent;
            old.replaceWith(script);
          }
        }""",
        output,
    )


def test_outputs_that_a_notebook_draws_later_show_their_pages(show, output):
    page = show("<p>empty</p>", count=0, ready="p")
    drawn_by_jupyter(page, without_page(output))
    page.wait_for_timeout(50)
    assert page.locator(".regard-static").is_visible()
    drawn_by_jupyter(page, output)
    assert len(live(page, 2)) == 2


def test_a_frame_that_a_notebook_takes_away_and_puts_back_is_as_tall_as_before(show, output):
    """Notebooks take outputs out of the document that are far from what is in sight; a frame then loads anew."""
    page = show(output)
    before, _ = heights(page)
    page.evaluate(
        """() => {
          const box = document.querySelector(".regard-frame");
          box.remove();
          document.body.append(box);
        }"""
    )
    page.wait_for_function("document.querySelector('.regard-frame iframe') !== null")
    page.wait_for_timeout(500)
    frame, inside = heights(page)
    assert frame == inside == before


def test_an_output_without_the_page_still_has_it_when_the_first_is_cleared(show, output):
    page = show(output, without_page(output), count=2)
    page.evaluate("document.querySelector('.regard-frame').remove()")
    drawn_by_jupyter(page, without_page(output))
    assert len(live(page, 2)) == 2
