"""The sentence in a browser: its numbers are Python's, by mouse, keyboard and finger, at any length."""

import json
import re
from urllib.parse import quote

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import regard
from views.html.rows import minilm

LONG = 4096


class Heads(nn.Module):
    """Causal attention of three heads, or of a text to another one."""

    def __init__(self, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(24, 8 * heads, bias=False) for _ in range(3))

    def forward(self, x, context=None):
        source = x if context is None else context
        q, k, v = (
            linear(t).reshape(1, -1, self.heads, 8).transpose(1, 2)
            for linear, t in ((self.q, x * 6), (self.k, source), (self.v, source))
        )
        return F.scaled_dot_product_attention(q, k, v, is_causal=context is None)


def watched(path, labels, *inputs, heads=3, **options):
    torch.manual_seed(3)
    model = Heads(heads)
    with torch.no_grad(), regard.watch(model) as recording:
        model(*inputs)
    recording.label(*labels)
    recording.to_html(path, **options)
    return recording


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    recording = minilm()
    path = tmp_path_factory.mktemp("sentence") / "page.html"
    recording.to_html(path)
    return recording, path


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    torch.manual_seed(5)
    path = tmp_path_factory.mktemp("long") / "page.html"
    words = [f"word{i}" for i in range(LONG)]
    return watched(path, [words], torch.randn(1, LONG, 24), heads=1), path


def linked(**state):
    return quote(json.dumps(state))


def shares(page, selector, name):
    """The weights beside tokens, by their number."""
    items = page.locator(f"{selector} [data-weight]").evaluate_all(
        f"items => items.map(item => [item.dataset.{name}, item.dataset.weight])"
    )
    return {int(index): float(weight) for index, weight in items}


def held(found, exact):
    assert found
    for index, weight in found.items():
        assert weight == pytest.approx(float(exact[index]), abs=1e-3)


def settled(page):
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")


def test_rows_are_pythons_beside_the_tokens_and_in_the_list(open_page, real):
    recording, path = real
    for layer, head, query in ((0, 1, 3), (4, 10, 12)):
        page = open_page(path, hash=linked(attention=layer, head=head, query=query))
        exact = recording[recording.layers[layer]][0, head, query]
        beside = shares(page, ".keys", "index")
        assert len(beside) == len(exact)
        held(beside, exact)
        listed = shares(page, ".strongest", "key")
        held(listed, exact)
        assert list(listed)[:4] == exact.topk(4).indices.tolist()
        texts = page.locator(".strongest tr:not([hidden]) .share").all_text_contents()
        assert texts == [f"{100 * weight:.1f} %" for weight in listed.values()]


def test_pointing_at_tokens_shows_their_row_or_column_and_a_click_keeps_it(open_page, real):
    recording, path = real
    page = open_page(path, hash=linked(attention=2, head=4, query=1))
    m = recording[recording.layers[2]][0, 4]
    page.hover('.queries [data-index="7"]')
    held(shares(page, ".keys", "index"), m[7])
    assert page.locator(".strongest h2").text_content().startswith("Query 7 ")
    page.hover('.keys [data-index="0"]')
    page.wait_for_selector('.queries [data-weight][data-index="3"]')
    column = shares(page, ".queries", "index")
    assert len(column) == m.shape[0]
    held(column, m[:, 0])
    page.mouse.move(2, 2)
    held(shares(page, ".keys", "index"), m[1])
    page.click('.queries [data-index="5"]')
    page.mouse.move(2, 2)
    held(shares(page, ".keys", "index"), m[5])
    assert '"query":5' in page.evaluate("decodeURIComponent(location.hash)")
    page.click('.keys [data-index="6"]')
    pair = page.locator(".sentence .pair").text_content()
    assert re.fullmatch(r"query 5 '.+' gives [\d.]+ % to key 6 '.+'\.", pair)
    assert float(re.search(r"([\d.]+) %", pair)[1]) == pytest.approx(100 * float(m[5, 6]), abs=0.15)


def test_the_keyboard_alone_goes_through_tokens_and_keeps_one(open_page, real):
    recording, path = real
    page = open_page(path, hash=linked(attention=1, head=3, query=2))
    m = recording[recording.layers[1]][0, 3]
    page.focus(".sentence .jump button")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('queries')"):
            break
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    active = page.locator(".queries").get_attribute("aria-activedescendant")
    said = page.locator(f"#{active}").get_attribute("aria-label")
    most = int(m[4].argmax())
    assert re.match(rf"query 4 '.+': most to key {most} '.+', [\d.]+ %$", said)
    beside = page.locator('.keys [data-index="0"]').get_attribute("aria-label")
    assert re.match(r"query 4 '.+' gives [\d.]+ % to key 0 '\[CLS\]'$", beside)
    page.keyboard.press("Enter")
    assert '"query":4' in page.evaluate("decodeURIComponent(location.hash)")
    page.keyboard.press("End")
    held(shares(page, ".keys", "index"), m[-1])
    page.keyboard.press("Tab")  # to the keys
    page.keyboard.press("Home")
    page.wait_for_selector('.queries [data-weight][data-index="3"]')
    held(shares(page, ".queries", "index"), m[:, 0])


def test_a_finger_shows_a_column_by_tapping_its_key(open_page, real):
    recording, path = real
    page = open_page(path, hash=linked(attention=3, head=0), width=360, has_touch=True)
    page.tap('.keys [data-index="3"]')
    page.wait_for_selector('.queries [data-weight][data-index="3"]')
    held(shares(page, ".queries", "index"), recording[recording.layers[3]][0, 0, :, 3])
    page.tap('.queries [data-index="2"]')
    held(shares(page, ".keys", "index"), recording[recording.layers[3]][0, 0, 2])
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_several_heads_have_a_list_each_and_can_be_taken_away(open_page, real):
    recording, path = real
    page = open_page(path, hash=linked(attention=5, head=6, query=3))
    m = recording[recording.layers[5]]
    page.click('.headbuttons [data-head="1"]')
    page.click('.headbuttons [data-head="9"]')
    for head in (6, 1, 9):
        held(shares(page, f'.strongest [data-head="{head}"]', "key"), m[0, head, 3])
    patterns = page.locator('.headbuttons [aria-pressed="true"] line').evaluate_all(
        "lines => lines.map(line => [line.getAttribute('stroke'), line.getAttribute('stroke-dasharray')])"
    )
    assert len({colour for colour, _ in patterns}) == len({dash for _, dash in patterns}) == 3
    page.click('.headbuttons [data-head="6"]')  # the first: the next one takes its place
    assert page.input_value("#head") == "1"
    assert page.locator(".strongest table").count() == 2
    held(shares(page, ".keys", "index"), m[0, 1, 3])


def test_the_threshold_counts_the_lines(open_page, real):
    recording, path = real
    for threshold in (0.2, 0.02):
        page = open_page(path, hash=linked(attention=0, head=2, threshold=threshold))
        m = recording[recording.layers[0]][0, 2]
        near = int(((m - threshold).abs() < 1e-3).sum())
        count = int(page.locator(".drawing").get_attribute("data-lines"))
        assert abs(count - int((m >= threshold).sum())) <= near
    page.focus(".sentence input[type=range]")
    page.keyboard.press("End")
    assert page.locator(".drawing").get_attribute("data-lines") == str(int((m >= 1).sum()))
    assert page.locator(".sentence input[type=range]").get_attribute("aria-valuetext") == "100.0 %"


def ink(page, selector):
    """Where something is drawn: for each canvas the columns of pixels that are not empty."""
    return page.locator(selector).evaluate_all(
        """canvases => canvases.map((canvas) => {
            const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            const seen = new Set();
            for (let i = 3; i < data.length; i += 4) if (data[i]) seen.add(((i - 3) / 4) % width);
            return seen.size / width;
        })"""
    )


def test_lines_are_drawn_in_both_layouts(open_page, real):
    _, path = real
    page = open_page(path, hash=linked(attention=5, head=6, query=3))
    assert min(ink(page, ".columns .lines canvas")) > 0.95
    page.select_option(".sentence .tools select", "line")
    settled(page)
    faint, strong = ink(page, ".single .lines canvas")
    assert faint > strong > 0.1
    page.select_option(".single + .check select", "key")
    page.hover('.textline [data-index="0"]')
    page.wait_for_selector('.textline [data-weight][data-index="3"]')
    assert page.locator(".strongest h2").text_content().startswith("Key 0 ")


def test_two_texts_stand_side_by_side_and_above_each_other(open_page, tmp_path):
    queries, keys = list("abcde"), [f"k{i}" for i in range(9)]
    recording = watched(tmp_path / "page.html", [queries, keys], torch.randn(1, 5, 24), torch.randn(1, 9, 24))
    (m,) = recording.values()
    page = open_page(tmp_path / "page.html", hash=linked(head=1, query=4))
    assert page.locator(".queries .item").count() == 5
    assert page.locator(".keys .item .token").all_text_contents() == keys
    held(shares(page, ".keys", "index"), m[0, 1, 4])
    page.select_option(".sentence .tools select", "line")
    page.hover('.queryline [data-index="2"]')
    held(shares(page, ".keyline", "index"), m[0, 1, 2])
    page.hover('.keyline [data-index="8"]')
    page.wait_for_selector('.queryline [data-weight][data-index="0"]')
    held(shares(page, ".queryline", "index"), m[0, 1, :, 8])


def test_a_long_text_has_few_elements_and_every_token_can_be_reached(open_page, long):
    recording, path = long
    (m,) = recording.values()
    page = open_page(path)
    page.fill(".sentence .jump input", "3000")
    page.keyboard.press("Enter")
    exact = m[0, 0, 3000]
    held(shares(page, ".keys", "index"), exact)
    held(shares(page, ".strongest", "key"), exact)
    assert page.locator('.queries [data-index="3000"]').is_visible()
    far = int(exact[:2900].argmax())
    page.fill(".sentence .jump input", f"word{far}")
    page.keyboard.press("Enter")
    assert page.locator(".strongest .looker").text_content() == f"word{far}"
    settled(page)
    assert page.locator(f'.keys [data-index="{far}"]').is_visible(), "both columns scroll together"
    page.fill(".sentence .jump input", "nowhere")
    page.keyboard.press("Enter")
    assert "no query has this text" in page.locator(".jumped").text_content()
    page.hover(f'.keys [data-index="{far}"]')
    page.wait_for_selector(f'.queries [data-weight][data-index="{far}"]')
    held(shares(page, ".queries", "index"), m[0, 0, :, far])
    page.select_option(".sentence .tools select", "line")
    assert page.locator(f'.textline [data-index="{far}"]').is_visible()
    assert page.locator(".sentence *").count() < 3000


def test_choosing_in_the_list_brings_a_far_key_beside_the_query(open_page, long):
    recording, path = long
    (m,) = recording.values()
    query = 4000
    page = open_page(path, hash=linked(query=query))
    listed = list(shares(page, ".strongest", "key"))
    far = next(key for key in listed if abs(key - query) > 200)
    page.click(f'.strongest [data-key="{far}"] button')
    settled(page)
    assert page.locator(f'.keys [data-index="{far}"]').is_visible()
    assert page.locator(f'.queries [data-index="{query}"]').is_visible()
    assert float(page.locator(f'.keys [data-index="{far}"]').get_attribute("data-weight")) == pytest.approx(
        float(m[0, 0, query, far]), abs=1e-3
    )


def test_a_head_that_is_a_picture_only_says_so_and_leads_on(open_page, tmp_path):
    words = [f"t{i}" for i in range(600)]
    recording = watched(tmp_path / "page.html", [words], torch.randn(1, 600, 24), heads=2)
    whole = (tmp_path / "page.html").stat().st_size
    (m,) = recording.values()
    recording.to_html(tmp_path / "page.html", max_size=whole - 12_000)
    page = open_page(tmp_path / "page.html")
    labels = page.locator("#head option").all_text_contents()
    pictures = [i for i, label in enumerate(labels) if "picture" in label]
    assert len(pictures) == 1, labels
    page.select_option("#head", str(pictures[0]))
    assert "as a picture only" in page.locator(".sentence .missing").text_content()
    assert page.locator(".sentence .body").is_hidden()
    page.click(".sentence .missing button")
    head = 1 - pictures[0]
    assert page.input_value("#head") == str(head)
    query = int(page.locator('.queries [data-mark="focus"]').get_attribute("data-index"))
    held(shares(page, ".keys", "index"), m[0, head, query])
