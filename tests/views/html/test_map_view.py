"""The map in a browser: its cells are Python's, from single ones to those of a long text."""

import re
from contextlib import contextmanager

import pytest

from views.html.rows import read, state_of
from views.recordings import river

QUERY = 7
AT = {"layer": 2, "head": 3, "query": QUERY, "view": "map"}
MARKS = "canvas.marks"


def cell(page):
    """The query, the key and the weight of the line of text, and the line."""
    line = page.locator(".map .cell-says")
    query, key, weight = line.evaluate("e => [e.dataset.query, e.dataset.key, e.dataset.weight].map(Number)")
    return query, key, weight, line.text_content()


def viewport(page):
    """What the map shows: queries from, to, keys from, to."""
    return [int(number) for number in page.locator(MARKS).get_attribute("data-viewport").split()]


def rest(page):
    """Until it is painted, and the link has followed."""
    page.wait_for_selector(f"{MARKS}[data-from]:not([data-from=busy])")
    page.wait_for_function(
        """() => {
          const { viewport } = JSON.parse(decodeURIComponent(location.hash.slice(1)) || "{}");
          return !viewport || viewport.join(" ") === document.querySelector("canvas.marks").dataset.viewport;
        }"""
    )


@contextmanager
def moving(page):
    """Until what is done in the block has moved the map."""
    before = page.locator(MARKS).get_attribute("data-viewport")
    yield
    page.wait_for_function("before => document.querySelector('canvas.marks').dataset.viewport !== before", arg=before)
    rest(page)


def middle(page):
    box = page.locator(MARKS).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_the_table_says_the_row_and_its_neighbours(open_head):
    page, weights = open_head(**AT)
    queries, keys, found = (read(page, ".map td[data-weight]", name) for name in ("query", "key", "weight"))
    assert set(queries) == {QUERY - 1, QUERY, QUERY + 1}
    exact = [float(weights[int(query), int(key)]) for query, key in zip(queries, keys, strict=True)]
    assert found == pytest.approx(exact, abs=1e-3)
    assert [int(key) for key in keys[::3]] == weights[QUERY].topk(8).indices.tolist()


def test_cells_say_what_python_says(open_head):
    page, weights = open_head(**AT)
    tokens = river()[river().layers[2]].tokens
    page.focus(MARKS)
    for arrow in ["ArrowRight", "ArrowDown", "ArrowRight", "ArrowLeft", "ArrowUp"]:
        page.keyboard.press(arrow)
        query, key, weight, text = cell(page)
        assert weight == pytest.approx(float(weights[query, key]), abs=1e-3)
        assert text.startswith(f"query {query} '{tokens[0][query]}' → key {key} '{tokens[1][key]}': ")
        assert float(re.search(r"([\d.]+) %", text)[1]) == pytest.approx(100 * weight, abs=0.06)
    page.keyboard.press("Enter")
    assert (state_of(page)["query"], state_of(page)["key"]) == cell(page)[:2]


def test_the_mouse_points_and_chooses(open_head):
    page, weights = open_head(**AT)
    x, y = middle(page)
    page.mouse.move(x, y)
    query, key, weight, _ = cell(page)
    assert weight == pytest.approx(float(weights[query, key]), abs=1e-3)
    page.mouse.click(x, y)
    assert (state_of(page)["query"], state_of(page)["key"]) == (query, key)
    page.mouse.move(x, y - 200)
    assert cell(page)[0] < query


@pytest.mark.more
def test_wheel_drag_and_keys_zoom_pan_and_come_back(open_head):
    page, _ = open_head(**AT)
    whole = viewport(page)
    x, y = middle(page)
    page.mouse.move(x, y)
    for _ in range(3):
        with moving(page):
            page.mouse.wheel(0, -120)
    page.wait_for_function("() => location.hash.includes('viewport')")
    rest(page)
    near = viewport(page)
    assert 0 < near[0] < near[1] < whole[1]
    assert state_of(page)["viewport"] == near
    with moving(page):
        page.mouse.down()
        page.mouse.move(x + 900, y + 900, steps=4)
        page.mouse.up()
    dragged = viewport(page)
    assert dragged[0] == dragged[2] == 0
    assert dragged[1] - dragged[0] == near[1] - near[0]
    page.focus(MARKS)
    with moving(page):
        page.keyboard.press("Shift+ArrowDown")
    assert viewport(page)[0] > viewport(page)[2] == 0
    with moving(page):
        page.keyboard.press("+")
    assert viewport(page)[1] - viewport(page)[0] < near[1] - near[0]
    page.keyboard.press("0")
    page.wait_for_function("() => !location.hash.includes('viewport')")
    assert viewport(page) == whole


def test_a_head_in_the_page_as_a_picture_only_says_so(open_page, river_page, tmp_path):
    recording, path = river_page[0], tmp_path / "page.html"
    recording.to_html(path, heads=[(0, 0)])
    page = open_page(path, {"view": "map", "attention": 5, "head": 11, "query": QUERY})
    assert "as a picture only" in page.locator(".map .legend").text_content()
    page.focus(MARKS)
    page.keyboard.press("ArrowUp")
    query, key, weight, text = cell(page)
    assert "about" in text
    assert weight == pytest.approx(float(recording[recording.layers[5]][0, 11, query, key]), abs=0.02)


def test_a_long_text_opens_far_and_comes_near(open_page, long_page):
    m, path = long_page
    length = m.shape[2]
    page = open_page(path, {"view": "map"}, timeout=30)
    rest(page)
    assert viewport(page) == [0, length, 0, length]
    assert page.locator(MARKS).get_attribute("data-from") == "picture"
    carried = int(page.input_value(".map .query-picker input").split()[0])
    start = min(max(carried - 20, 0), length - 40)
    near = [start, start + 40, max(0, start - 10), max(0, start - 10) + 40]
    page = open_page(path, {"view": "map", "viewport": near, "query": carried}, timeout=30)
    rest(page)
    assert viewport(page) == near
    assert page.locator(MARKS).get_attribute("data-from") == "exact"
    page.focus(MARKS)
    page.keyboard.press("ArrowRight")
    query, key, weight, _ = cell(page)
    assert query == carried
    assert weight == pytest.approx(float(m[0, 0, query, key]), abs=1e-3)
