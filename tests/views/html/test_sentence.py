"""The sentence in a browser: its numbers are Python's, by mouse, keyboard and finger, at any length."""

import re

import pytest

import regard
from views.html.rows import Attends, assert_weights, painted, state_of, watched, weights_by
from views.recordings import river
from weights import LOAN, RIVER, minilm

KEYS, QUERIES, LIST = ".sentence .keys", ".sentence .queries", ".strongest"
LAYOUT = ".sentence .tools select"


def beside(page, side=KEYS):
    """The weights beside the tokens of one side."""
    return weights_by(page, side, "index")


def column_beside(page, side=QUERIES, index=3):
    """The same, when what looks at a key is there."""
    page.wait_for_selector(f'{side} [data-weight][data-index="{index}"]')
    return beside(page, side)


def token(side, index):
    return f'{side} [data-index="{index}"]'


def test_rows_are_pythons_beside_the_tokens_and_in_the_list(open_head):
    page, m = open_head(4, 10, query=12)
    exact = m[12]
    assert len(beside(page)) == len(exact)
    assert_weights(beside(page), exact)
    listed = weights_by(page, LIST, "key")
    assert_weights(listed, exact)
    assert list(listed)[:4] == exact.topk(4).indices.tolist()
    texts = page.locator(".strongest tr:not([hidden]) .share").all_text_contents()
    assert texts == [f"{100 * weight:.1f} %" for weight in listed.values()]


def test_pointing_at_tokens_shows_their_row_or_column_and_a_click_keeps_it(open_head):
    page, m = open_head(2, 4, query=1)
    page.hover(token(QUERIES, 7))
    assert_weights(beside(page), m[7])
    assert page.locator(".strongest h2").text_content().startswith("Query 7 ")
    page.hover(token(KEYS, 0))
    assert_weights(column_beside(page), m[:, 0])
    page.mouse.move(2, 2)
    assert_weights(beside(page), m[1])
    page.click(token(QUERIES, 5))
    page.mouse.move(2, 2)
    assert_weights(beside(page), m[5])
    assert state_of(page)["query"] == 5
    page.click(token(KEYS, 6))
    pair = rf"query 5 '.+' gives {100 * float(m[5, 6]):.1f} % to key 6 '.+'\."
    assert re.fullmatch(pair, page.locator(".pair").text_content())


def test_the_keyboard_alone_goes_through_tokens_and_keeps_one(open_head):
    page, m = open_head(1, 3, query=2)
    page.focus(".sentence .jump button")
    while not page.evaluate("document.activeElement.classList.contains('queries')"):
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    active = page.locator(QUERIES).get_attribute("aria-activedescendant")
    label = page.locator(f"#{active}").get_attribute("aria-label")
    assert re.match(rf"query 4 '.+': most to key {int(m[4].argmax())} '.+', [\d.]+ %$", label)
    page.keyboard.press("Enter")
    assert state_of(page)["query"] == 4
    page.keyboard.press("End")
    assert_weights(beside(page), m[-1])
    page.keyboard.press("Tab")  # to the keys
    page.keyboard.press("Home")
    assert_weights(column_beside(page), m[:, 0])


@pytest.mark.more
def test_a_finger_shows_a_column_by_tapping_its_key(open_head, request):
    page, m = open_head(3, 0, width=360)
    session = page.context.new_cdp_session(page)
    request.addfinalizer(session.detach)  # and with it the touch screen is gone

    def tap(selector):
        page.locator(selector).scroll_into_view_if_needed()
        box = page.locator(selector).bounding_box()
        finger = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        for kind, touches in (("touchStart", [finger]), ("touchEnd", [])):
            session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})

    session.send("Emulation.setTouchEmulationEnabled", {"enabled": True})
    tap(token(KEYS, 3))
    assert_weights(column_beside(page), m[:, 3])
    tap(token(QUERIES, 2))
    assert_weights(beside(page), m[2])


def test_several_heads_have_a_list_each_and_can_be_taken_away(open_head):
    (page, _), m = open_head(5, 6, query=3), river()[river().layers[5]]
    page.click('.headbuttons [data-head="1"]')
    page.click('.headbuttons [data-head="9"]')
    for head in (6, 1, 9):
        assert_weights(weights_by(page, f'.strongest [data-head="{head}"]', "key"), m[0, head, 3])
    page.click('.headbuttons [data-head="6"]')  # the first: the next one takes its place
    assert page.input_value("#head") == "1"
    assert page.locator(".strongest table").count() == 2
    assert_weights(beside(page), m[0, 1, 3])


@pytest.mark.more
def test_the_threshold_counts_the_lines(open_head):
    for threshold in (0.2, 0.02):
        page, m = open_head(0, 2, threshold=threshold)
        near = int(((m - threshold).abs() < 1e-3).sum())
        count = int(page.locator(".drawing").get_attribute("data-lines"))
        assert abs(count - int((m >= threshold).sum())) <= near
    page.focus(".sentence input[type=range]")
    page.keyboard.press("End")
    assert page.locator(".drawing").get_attribute("data-lines") == str(int((m >= 1).sum()))


def ink(page, selector):
    """Where something is drawn: for each canvas the share of columns of pixels that are not empty."""
    return page.locator(selector).evaluate_all(
        """canvases => canvases.map((canvas) => {
            const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            const columns = new Set();
            for (let i = 3; i < data.length; i += 4) if (data[i]) columns.add(((i - 3) / 4) % width);
            return columns.size / width;
        })"""
    )


def test_lines_are_drawn_in_both_layouts(open_head):
    page, _ = open_head(5, 6, query=3)
    painted(page)
    assert min(ink(page, ".columns .lines canvas")) > 0.95
    page.select_option(LAYOUT, "line")
    painted(page)
    faint, strong = ink(page, ".single .lines canvas")
    assert faint > strong > 0.1


def test_two_texts_stand_side_by_side(open_page, tmp_path):
    m = watched(tmp_path / "page.html", Attends(3), 5, 9)
    page = open_page(tmp_path / "page.html", {"head": 1, "query": 4})
    assert page.locator(".keys .item .token").all_text_contents() == [f"word{i}" for i in range(9)]
    assert_weights(beside(page), m[0, 1, 4])


def test_a_long_text_has_few_elements_and_every_token_can_be_reached(open_page, long_page):
    m, path = long_page
    query = 2000

    def go(text):
        page.fill(".sentence .jump input", text)
        page.keyboard.press("Enter")

    page = open_page(path)
    go(f"{query}")
    exact = m[0, 0, query]
    assert_weights(beside(page), exact)
    assert_weights(weights_by(page, LIST, "key"), exact)
    far = next(key for key in weights_by(page, LIST, "key") if abs(key - query) > 200)
    page.click(f'.strongest [data-key="{far}"] button')
    painted(page)
    assert page.locator(token(QUERIES, query)).is_visible(), "a far key comes beside the query"
    go(f"word{far}")
    assert page.locator(".strongest .looker").text_content() == f"word{far}"
    painted(page)
    assert page.locator(token(KEYS, far)).is_visible(), "both columns scroll together"
    page.hover(token(KEYS, far))
    assert_weights(column_beside(page, index=far), m[0, 0, :, far])
    assert page.locator(".sentence *").count() < 3000


@pytest.mark.more
def test_a_head_that_is_a_picture_only_says_so_and_leads_on(open_page, river_page, tmp_path):
    recording, path = river_page[0], tmp_path / "page.html"
    recording.to_html(path, heads=[(4, 3)])
    page = open_page(path)
    for view in ("sentence", "arithmetic"):
        page.click(f"#tab-{view}")
        assert "picture" in page.locator("#head option").first.text_content()
        page.select_option("#layer", "1")
        body = page.locator(f"#view-{view} :is(.body, table.keys)").first
        assert "as a picture only" in page.locator(f"#view-{view} .missing").inner_text()
        assert body.is_hidden()
        page.click(f"#view-{view} .missing button")
        assert (page.input_value("#layer"), page.input_value("#head")) == ("4", "3")
        assert body.is_visible()
    page.click("#tab-sentence")
    query = int(page.locator('.queries [data-mark="focus"]').get_attribute("data-index"))
    assert_weights(beside(page), recording[recording.layers[4]][0, 3, query])


def test_the_page_of_see_opens_on_the_word_and_compares_it(open_page, tmp_path):
    made = regard.see(RIVER, tmp_path / "page.html", model=minilm(), compare=LOAN, layer=0, token="man")
    page = open_page(made.path)
    assert re.match(r"Query 6\s+man\s+looks at", page.inner_text(".strongest"))
    page.get_by_role("tab", name="Context").click()
    assert page.inner_text(".context .chosen").startswith("“man” compared with itself")
