"""All heads in a browser: pictures, their order, and what is said of one."""

import json
from urllib.parse import quote

import pytest

from regard.lens.maps.head_types import detect_heads
from views.html.rows import minilm

HEADS = quote(json.dumps({"view": "heads"}))


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    recording = minilm()
    path = tmp_path_factory.mktemp("heads") / "page.html"
    recording.to_html(path)
    return recording, path


def places(page):
    """(attention, head) of the pictures, in their order."""
    return [
        (int(a), int(b))
        for a, b in page.locator(".head").evaluate_all("all => all.map(e => [e.dataset.attention, e.dataset.head])")
    ]


def test_a_picture_of_each_head_layer_by_layer(open_page, real):
    recording, path = real
    page = open_page(path, hash=HEADS)
    assert places(page) == [(layer, head) for layer in range(6) for head in range(12)]
    kinds = detect_heads(recording[recording.layers[0]]).names
    labels = page.locator(".head").evaluate_all("all => all.map(each => each.ariaLabel)")
    entropies = recording[recording.layers[0]].entropy()[0].mean(-1)
    for head in range(12):
        assert f"entropy {float(entropies[head]):.2f} nats" in labels[head]
        assert f"head {head}: {kinds[head]}, " in labels[head]


def test_pictures_are_painted_when_they_come_near(open_page, real):
    _, path = real
    page = open_page(path, height=200, hash=HEADS)
    last = page.locator(".head img").last
    page.wait_for_selector(".head img[src]")
    assert last.get_attribute("src") is None
    last.scroll_into_view_if_needed()
    page.wait_for_selector('[data-attention="5"][data-head="11"] img[src]')


def test_sorting_and_filtering(open_page, real):
    recording, path = real
    page = open_page(path, hash=HEADS)
    entropies = [recording[name].entropy()[0].mean(-1).tolist() for name in recording.layers]
    page.select_option(".order", "entropy")
    in_order = [entropies[layer][head] for layer, head in places(page)]
    assert in_order == sorted(in_order)
    assert "nats" in page.locator(".head .value").first.text_content()
    page.select_option(".kinds", "attention sink")
    labels = page.locator(".head").evaluate_all("all => all.map(each => each.ariaLabel)")
    assert 0 < len(labels) < 72
    assert all(": attention sink," in label for label in labels)


def test_the_keyboard_goes_through_the_grid_enlarges_and_opens_the_map(open_page, real):
    recording, path = real
    page = open_page(path, hash=HEADS)
    assert page.locator('.head[tabindex="0"]').count() == 1
    page.locator('.head[tabindex="0"]').focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.attention + document.activeElement.dataset.head") == "11"
    page.keyboard.press("Enter")
    card = page.locator("dialog.head-card")
    assert card.is_visible()
    assert card.locator("h2").text_content().startswith("Layer 1, head 1: ")
    weights = recording[recording.layers[1]][0, 1]
    pairs = card.locator("td[data-weight]").evaluate_all(
        "all => all.map(e => [e.dataset.query, e.dataset.key, e.dataset.weight])"
    )
    assert pairs
    for query, key, weight in pairs:
        assert float(weight) == pytest.approx(float(weights[int(query), int(key)]), abs=1e-3)
    page.keyboard.press("Escape")
    assert not card.is_visible()
    assert page.evaluate("document.activeElement.dataset.attention + document.activeElement.dataset.head") == "11"
    page.keyboard.press("Enter")
    page.click(".look")
    assert page.locator("#view-map").is_visible()
    state = page.evaluate("JSON.parse(decodeURIComponent(location.hash.slice(1)))")
    assert state["view"] == "map"
    assert state["attention"] == 1
    assert state["head"] == 1


def test_a_phone_scrolls_the_grid_and_not_the_page(open_page, real):
    _, path = real
    page = open_page(path, width=360, height=740, hash=HEADS)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator(".head").first.click()
    assert page.evaluate("document.querySelector('dialog').scrollWidth <= innerWidth")


def test_an_open_card_closes_where_the_reader_goes_elsewhere_by_the_address(open_page, real):
    """An open dialog of a hidden view would make the whole page dead to clicks."""
    page = open_page(real[1], hash=HEADS)
    page.locator(".head").first.click()
    assert page.locator("dialog").evaluate("dialog => dialog.open")
    page.evaluate("hash => { location.hash = hash }", quote(json.dumps({"view": "sentence"})))
    page.wait_for_selector("#view-sentence:not([hidden])")
    assert not page.locator("dialog").evaluate("dialog => dialog.open")
    page.click("#tab-map")
    page.wait_for_selector("#view-map:not([hidden])")
