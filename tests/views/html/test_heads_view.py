"""All heads in a browser: pictures, their order, and what is said of one."""

import pytest

from views.html.rows import read, state_of

HEADS = {"view": "heads"}
FOCUSED = "[document.activeElement.dataset.attention, document.activeElement.dataset.head].map(Number)"


def places(page):
    """(attention, head) of the pictures, in their order."""
    return page.locator(".head").evaluate_all("all => all.map(e => [+e.dataset.attention, +e.dataset.head])")


def labels(page):
    return page.locator(".head").evaluate_all("all => all.map(each => each.ariaLabel)")


def test_a_picture_of_each_head_layer_by_layer_sorted_and_filtered(open_page, river_page):
    recording, path = river_page
    page = open_page(path, HEADS)
    entropies = [recording[name].entropy()[0].mean(-1).tolist() for name in recording.layers]
    assert places(page) == [[layer, head] for layer in range(6) for head in range(12)]
    kinds = recording.head_types()[recording.layers[0]].names
    for head, label in enumerate(labels(page)[:12]):
        assert f"head {head}: {kinds[head]}, entropy {entropies[0][head]:.2f} nats" in label
    page.select_option(".order", "entropy")
    in_order = [entropies[layer][head] for layer, head in places(page)]
    assert in_order == sorted(in_order)
    page.select_option(".kinds", "attention sink")
    assert 0 < len(labels(page)) < 72
    assert all(": attention sink," in label for label in labels(page))


def test_the_keyboard_goes_through_the_grid_enlarges_and_opens_the_map(open_page, river_page):
    recording, path = river_page
    page = open_page(path, HEADS)
    assert page.locator('.head[tabindex="0"]').count() == 1
    page.locator('.head[tabindex="0"]').focus()
    for key in ("Home", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    assert page.evaluate(FOCUSED) == [1, 1]
    page.keyboard.press("Enter")
    card = page.locator("dialog.head-card")
    assert card.locator("h2").text_content().startswith("Layer 1, head 1: ")
    queries, keys, found = (read(page, "dialog td[data-weight]", name) for name in ("query", "key", "weight"))
    weights = recording[recording.layers[1]][0, 1]
    exact = [float(weights[int(query), int(key)]) for query, key in zip(queries, keys, strict=True)]
    assert found == pytest.approx(exact, abs=1e-3) != []
    page.keyboard.press("Escape")
    assert not card.is_visible()
    assert page.evaluate(FOCUSED) == [1, 1]
    page.keyboard.press("Enter")
    page.click(".look")
    assert page.locator("#view-map").is_visible()
    assert {"view": "map", "attention": 1, "head": 1}.items() <= state_of(page).items()


def test_a_phone_scrolls_the_grid_and_a_card_closes_where_the_reader_goes_elsewhere(open_page, river_page):
    """By the address: an open dialog of a hidden view would make the whole page dead to clicks."""
    page = open_page(river_page[1], HEADS, width=360, height=740)
    page.locator(".head").first.click()
    assert page.evaluate("document.querySelector('dialog[open]').scrollWidth <= innerWidth")
    page.evaluate("""location.hash = encodeURIComponent('{"view": "sentence"}')""")
    page.wait_for_selector("#view-sentence:not([hidden])")
    assert page.locator("dialog[open]").count() == 0
    page.click("#tab-map")
    page.wait_for_selector("#view-map:not([hidden])")
