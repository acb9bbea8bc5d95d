"""The map in a browser: its cells are Python's, from single ones to those of a long text."""

import json
import re
from urllib.parse import quote

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import regard
from views.html.rows import minilm, read

LAYER, HEAD, QUERY = 2, 3, 7


def at(**state):
    return quote(json.dumps({"view": "map", **state}))


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    recording = minilm()
    path = tmp_path_factory.mktemp("map") / "page.html"
    recording.to_html(path)
    return recording, path


class Wide(nn.Module):
    """One causal head of 8 dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)


@pytest.fixture(scope="module", params=[8192, pytest.param(32_768, marks=pytest.mark.slow)])
def long(request, tmp_path_factory):
    torch.manual_seed(0)
    model = Wide()
    with torch.no_grad(), regard.watch(model) as recording:
        model(3 * torch.randn(1, request.param, 16))
    path = tmp_path_factory.mktemp("long") / "page.html"
    recording.to_html(path)
    return recording, path


def said(page):
    """The query, the key and the weight of the line of text."""
    line = page.locator(".map .cell-says")
    number = line.evaluate("each => [each.dataset.query, each.dataset.key, each.dataset.weight].map(Number)")
    return int(number[0]), int(number[1]), number[2], line.text_content()


def viewport(page):
    """What the map shows: queries from, to, keys from, to."""
    return [int(number) for number in page.locator("canvas.marks").get_attribute("data-viewport").split()]


def rest(page):
    """Until it is painted, and the link has followed."""
    page.wait_for_selector("canvas.marks[data-from]:not([data-from=busy])")
    page.wait_for_timeout(400)


def test_cells_say_what_python_says(open_page, real):
    recording, path = real
    weights = recording[recording.layers[LAYER]][0, HEAD]
    page = open_page(path, hash=at(attention=LAYER, head=HEAD, query=QUERY))
    page.focus("canvas.marks")
    seen = set()
    for key in ["ArrowRight", "ArrowDown", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"]:
        page.keyboard.press(key)
        query, at_key, weight, text = said(page)
        seen.add((query, at_key))
        assert weight == pytest.approx(float(weights[query, at_key]), abs=1e-3)
        tokens = recording[recording.layers[LAYER]].tokens
        assert text.startswith(f"query {query} '{tokens[0][query]}' → key {at_key} '{tokens[1][at_key]}': ")
        assert float(re.search(r"([\d.]+) %", text)[1]) == pytest.approx(100 * weight, abs=0.06)
    assert len(seen) > 4
    page.keyboard.press("Enter")
    query, key, _, _ = said(page)
    assert f'"query":{query},"key":{key}' in page.evaluate("decodeURIComponent(location.hash)")


def test_the_mouse_points_and_chooses(open_page, real):
    recording, path = real
    weights = recording[recording.layers[LAYER]][0, HEAD]
    page = open_page(path, hash=at(attention=LAYER, head=HEAD, query=0))
    box = page.locator("canvas.marks").bounding_box()
    x, y = box["x"] + 0.4 * box["width"], box["y"] + 0.5 * box["height"]
    page.mouse.move(x, y)
    query, key, weight, _ = said(page)
    assert weight == pytest.approx(float(weights[query, key]), abs=1e-3)
    page.mouse.click(x, y)
    assert f'"query":{query},"key":{key}' in page.evaluate("decodeURIComponent(location.hash)")
    page.mouse.move(x, y - 200)
    assert said(page)[0] < query


def test_the_table_says_the_row_and_its_neighbours(open_page, real):
    recording, path = real
    weights = recording[recording.layers[LAYER]][0, HEAD]
    page = open_page(path, hash=at(attention=LAYER, head=HEAD, query=QUERY))
    queries, keys, found = (read(page, ".map td[data-weight]", name) for name in ("query", "key", "weight"))
    assert set(queries) == {QUERY - 1, QUERY, QUERY + 1}
    exact = [float(weights[int(query), int(key)]) for query, key in zip(queries, keys, strict=True)]
    assert found == pytest.approx(exact, abs=1e-3)
    assert [int(key) for key in keys[::3]] == weights[QUERY].topk(8).indices.tolist()


def test_wheel_drag_and_keys_zoom_pan_and_come_back(open_page, real):
    _, path = real
    page = open_page(path, hash=at(attention=LAYER, head=HEAD))
    whole = viewport(page)
    box = page.locator("canvas.marks").bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
    for _ in range(3):
        page.mouse.wheel(0, -120)
    rest(page)
    near = viewport(page)
    assert near[1] - near[0] < whole[1]
    assert near[0] > 0
    assert f'"viewport":{json.dumps(near, separators=(",", ":"))}' in page.evaluate("decodeURIComponent(location.hash)")
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"] + 900, box["y"] + 0.5 * box["height"] + 900, steps=4)
    page.mouse.up()
    rest(page)
    dragged = viewport(page)
    assert dragged[0] == dragged[2] == 0
    assert dragged[1] - dragged[0] == near[1] - near[0]
    page.focus("canvas.marks")
    page.keyboard.press("Shift+ArrowDown")
    rest(page)
    assert viewport(page)[0] > 0
    assert viewport(page)[2] == 0
    for _ in range(12):
        page.keyboard.press("+")
    rest(page)
    assert viewport(page)[1] - viewport(page)[0] == 4
    page.keyboard.press("0")
    rest(page)
    assert viewport(page) == whole
    assert "viewport" not in page.evaluate("decodeURIComponent(location.hash)")


def test_two_fingers_zoom(open_page, real):
    _, path = real
    page = open_page(path, width=360, height=740, hash=at(attention=LAYER, head=HEAD))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    whole = viewport(page)
    page.evaluate(
        """() => {
          const marks = document.querySelector("canvas.marks"), box = marks.getBoundingClientRect();
          marks.setPointerCapture = () => {};  // these fingers are not real
          const finger = (type, pointerId, x) => marks.dispatchEvent(new PointerEvent(type, { pointerId,
            pointerType: "touch", clientX: box.left + x, clientY: box.top + 160, bubbles: true }));
          finger("pointerdown", 11, 130); finger("pointerdown", 12, 170);
          finger("pointermove", 11, 90); finger("pointermove", 12, 210);
          finger("pointerup", 11, 90); finger("pointerup", 12, 210);
        }"""
    )
    rest(page)
    assert viewport(page)[3] - viewport(page)[2] <= whole[3] / 2


def test_a_head_in_the_page_as_a_picture_only_says_so(open_page, real, tmp_path):
    recording, whole = real
    path = tmp_path / "page.html"
    recording.to_html(path, max_size=int(0.9 * whole.stat().st_size), heads=[(0, 0)])
    page = open_page(path, hash=at(attention=5, head=11, query=QUERY))
    assert "as a picture only" in page.locator(".map .legend").text_content()
    query, key = 3, 0
    m = recording[recording.layers[5]]
    page.focus("canvas.marks")
    for _ in range(QUERY - query):
        page.keyboard.press("ArrowUp")
    at_query, at_key, weight, text = said(page)
    assert (at_query, at_key) == (query, key)
    assert "about" in text
    assert weight == pytest.approx(float(m[0, 11, query, key]), abs=0.02)


def test_a_long_text_opens_far_and_comes_near(open_page, long):
    recording, path = long
    (m,) = recording.values()
    length = m.shape[2]
    page = open_page(path, hash=at(), wait=30)
    rest(page)
    assert viewport(page) == [0, length, 0, length]
    assert page.locator("canvas.marks").get_attribute("data-from") == "picture"
    carried = int(page.evaluate("document.querySelector('.map .query-picker input').value").split()[0])
    start = min(max(carried - 20, 0), length - 40)
    near = [start, start + 40, max(0, start - 10), max(0, start - 10) + 40]
    page.goto(page.url.partition("#")[0] + "#" + at(viewport=near, query=carried))
    rest(page)
    assert viewport(page) == near
    assert page.locator("canvas.marks").get_attribute("data-from") == "exact"
    page.focus("canvas.marks")
    for key in ("ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    query, key, weight, _ = said(page)
    assert query == carried
    assert weight == pytest.approx(float(m[0, 0, query, key]), abs=1e-3)


def test_zooming_a_long_text_keeps_up(open_page, long):
    """Each step is painted within 200 ms, as it would be on a machine that does nothing else; tests share theirs."""
    _, path = long
    page = open_page(path, hash=at(), wait=30)
    page.wait_for_selector("canvas.marks")
    times = page.evaluate(
        """async () => {
          const marks = document.querySelector("canvas.marks"), box = marks.getBoundingClientRect();
          const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
          const times = [];
          for (let i = 0; i < 24; i++) {
            await painted();
            const start = performance.now();
            marks.dispatchEvent(new WheelEvent("wheel", { deltaY: i < 12 ? -300 : 300, cancelable: true,
              clientX: box.left + 300, clientY: box.top + 300 }));
            await painted();
            times.push(performance.now() - start);
          }
          return times;
        }"""
    )
    assert sorted(times)[len(times) // 2] < 200
