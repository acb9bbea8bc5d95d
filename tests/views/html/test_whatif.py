"""What if: a row is edited in a browser, and what follows is what Python's softmax says."""

import math
import re

import pytest
import torch

from views.html.rows import defined, everything, minilm, read, written

LAYER, HEAD, QUERY = 0, 0, 7


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    recording = minilm()
    return recording[recording.layers[LAYER]], written(recording, tmp_path_factory.mktemp("real"))


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    recording = everything(40)
    return recording[""], written(recording, tmp_path_factory.mktemp("odd"))


@pytest.fixture
def page(open_page, real):
    page = open_page(real[1])
    go(page)
    return page


def go(page, query=QUERY):
    page.click("#tab-whatif")
    if page.locator("#layer").input_value() != str(LAYER):
        page.select_option("#layer", str(LAYER))
    page.select_option("#head", str(HEAD))
    page.select_option(".whatif select.query", str(query))


def score(page, key):
    return page.locator(f'.edited tr[data-key="{key}"] input.score')


def weights(page, name="weight"):
    """Of each key, from the lines of the table."""
    found = dict(zip(read(page, ".edited tbody tr", "key"), read(page, ".edited tbody tr", name), strict=True))
    return torch.tensor([found[key] for key in sorted(found)], dtype=torch.float64)


def same(found, exact, tolerance=1e-3):
    torch.testing.assert_close(found, exact.double(), rtol=0, atol=tolerance)


def test_a_score_is_changed_and_the_weights_are_pythons(page, real):
    m = real[0]
    exact = defined(m)
    scores = exact.scores[0, HEAD, QUERY].clone()
    same(weights(page), (scores * m.scale).softmax(0))
    score(page, 10).fill("20")
    scores[10] = 20
    after = (scores * m.scale).softmax(0)
    same(weights(page), after)
    same(weights(page, "before"), exact.weights[0, HEAD, QUERY])
    output = after @ m.v[0, HEAD].double()
    before = exact.output[0, HEAD, QUERY]
    (cosine,) = read(page, '[data-fact="cosine"]', "value")
    assert cosine == pytest.approx(float(torch.cosine_similarity(before, output, dim=0)), abs=2e-3)
    (relative,) = read(page, '[data-fact="relative"]', "value")
    assert relative == pytest.approx(float((output - before).norm() / before.norm()), abs=1e-2)
    (entropy,) = read(page, '[data-fact="entropy"]', "value")
    assert entropy == pytest.approx(float(-(after * after.log()).sum()), abs=5e-3)
    points = page.locator('.edited tr[data-key="10"] .change').inner_text()
    assert points.startswith("▲ +")
    change = 100 * float(after[10] - exact.weights[0, HEAD, QUERY, 10])
    assert float(points.removeprefix("▲ +")) == pytest.approx(change, abs=0.1)
    said = re.search(r"Score of river \(key 10\): (\S+) → 20", page.locator(".edits").inner_text())
    assert float(said[1]) == pytest.approx(float(exact.scores[0, HEAD, QUERY, 10]), abs=5e-3)


def test_scale_temperature_mask_and_tokens_left_out(open_page, odd):
    m, path = odd
    page = open_page(path)
    page.click("#tab-whatif")
    page.select_option("#head", "1")
    page.select_option(".whatif select.query", "12")
    exact = defined(m)
    page.fill("input.scale", "0.75")
    page.fill("input.temperature", "1.6")
    page.fill(".add-key", "30")  # behind the query, so that it is not among the strongest
    page.press(".add-key", "Enter")
    page.check('.edited tr[data-key="30"] .may')
    page.uncheck('.edited tr[data-key="3"] .may')
    page.click('.edited tr[data-key="5"] .out')
    row = 3 * torch.tanh(exact.scores[0, 1, 12] * 0.75 / 3) + (exact.biased - exact.capped)[0, 1, 12]
    may = torch.arange(40) <= 12
    may[[3, 5]] = False
    may[30] = True
    masked = torch.cat([row.masked_fill(~may, -math.inf), m.sinks[1].double()[None]]) / 1.6
    after = masked.softmax(0)
    keys = [int(key) for key in read(page, ".edited tbody tr", "key")]
    same(torch.tensor(read(page, ".edited tbody tr", "weight")).double(), after[keys])
    (sink,) = read(page, '[data-fact="sink"]', "value")
    assert sink == pytest.approx(float(after[-1]), abs=1e-3)
    (others,) = read(page, ".edited .others", "weight")
    assert others == pytest.approx(float(after[:-1].sum() - after[keys].sum()), abs=1e-3)
    said = page.locator(".edits").inner_text()
    for words in (
        "Scale: 0.5 → 0.75",
        "Temperature: 1 → 1.6",
        "allowed → forbidden",
        "forbidden → allowed",
        "left out",
    ):
        assert words in said
    page.click("text=Reset all")
    same(torch.tensor(read(page, ".edited tbody tr", "weight")).double(), exact.weights[0, 1, 12, keys])
    assert page.locator("input.scale").input_value() == "0.5"


def test_one_step_after_the_other_is_undone(page, real):
    original = defined(real[0]).weights[0, HEAD, QUERY]
    score(page, 3).fill("-4")
    score(page, 3).press("Enter")
    first = weights(page)
    page.click('.edited tr[data-key="10"] .out')
    assert not torch.allclose(weights(page), first)
    page.keyboard.press("Control+z")
    same(weights(page), first, 1e-12)
    page.click("text=↶ Undo")
    same(weights(page), original)
    assert page.locator(".undo").get_attribute("aria-disabled") == "true"
    assert float(score(page, 3).input_value()) != -4


def test_what_is_typed_and_not_yet_kept_is_undone_too(page, real):
    score(page, 3).focus()
    page.keyboard.press("Control+a")
    page.keyboard.type("50")
    assert float(weights(page)[3]) > 0.9
    page.keyboard.press("Control+z")
    same(weights(page), defined(real[0]).weights[0, HEAD, QUERY])
    assert page.evaluate("document.activeElement.classList.contains('score')")


def test_a_single_edit_is_reset_and_the_others_stay(page):
    score(page, 3).fill("-4")
    page.fill("input.temperature", "2")
    page.click('.edits [data-edit="score"] button')
    assert page.locator(".edits").inner_text().split("\n")[0].startswith("Temperature: 1 → 2")
    assert page.locator(".edits li").count() == 1
    score(page, 6).fill("9")
    page.click('.edited tr[data-key="6"] .reset')
    assert page.locator(".edits li").count() == 1
    page.click(".whole-row .group:nth-child(2) button")
    assert "None yet" in page.locator(".edits").inner_text()


def test_a_link_holds_the_edits(page, open_page, real):
    score(page, 10).fill("20")
    page.uncheck('.edited tr[data-key="1"] .may')
    page.fill("input.temperature", "0.5")
    page.press("input.temperature", "Tab")
    kept = weights(page)
    page.evaluate("() => void (navigator.clipboard.writeText = () => Promise.reject(new Error('refused')))")
    page.click("text=Copy the link")
    link = page.locator("input.link")
    link.wait_for()
    assert page.evaluate("getSelection().toString() || document.activeElement.selectionEnd > 0")
    assert link.input_value() == page.url
    page.reload()
    same(weights(page), kept, 1e-12)
    again = open_page(real[1], hash=page.url.partition("#")[2])
    same(weights(again), kept, 1e-12)
    assert score(again, 10).input_value() == "20"
    again.click("text=Reset all")
    same(weights(again), defined(real[0]).weights[0, HEAD, QUERY])


def test_the_link_is_copied_where_that_is_allowed(open_page, real):
    page = open_page(real[1], permissions=["clipboard-read", "clipboard-write"])
    go(page)
    score(page, 2).fill("11")
    page.click("text=Copy the link")
    page.locator("text=Copied.").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    assert "%22scores%22%3A%7B%222%22%3A11%7D" in page.url


def test_what_is_no_number_is_said_and_nothing_is_lost(page):
    score(page, 10).fill("20")
    kept = weights(page)
    score(page, 3).fill("")
    message = page.locator('.edited tr[data-key="3"] .message')
    assert "A number is wanted" in message.inner_text()
    assert score(page, 3).get_attribute("aria-invalid") == "true"
    same(weights(page), kept, 1e-12)
    score(page, 3).press_sequentially("e")
    page.fill("input.temperature", "0")
    assert "above 0" in page.locator(".whole-row").inner_text()
    same(weights(page), kept, 1e-12)
    assert "A number is wanted" in message.inner_text()
    page.click('.edited tr[data-key="3"] .reset')
    assert message.inner_text() == ""
    assert score(page, 3).get_attribute("aria-invalid") is None
    assert score(page, 10).input_value() == "20"
    page.fill("input.temperature", "3")
    assert not torch.allclose(weights(page), kept)


def test_a_field_keeps_the_focus_and_what_is_typed(page):
    field = score(page, 10)
    handle = field.element_handle()
    field.focus()
    page.keyboard.press("Control+a")
    page.keyboard.type("2.50")
    page.wait_for_timeout(600)  # longer than the pause after which an edit is kept
    assert page.evaluate("field => field === document.activeElement && field.isConnected", handle)
    assert field.input_value() == "2.50"
    assert "%2210%22%3A2.5" in page.url
    page.keyboard.press("ArrowUp")
    assert field.input_value() == "2.6"


def test_another_row_has_no_edits(page, real):
    score(page, 10).fill("20")
    page.click(".whatif button[aria-label='Next query']")
    same(weights(page), defined(real[0]).weights[0, HEAD, QUERY + 1])
    assert "None yet" in page.locator(".edits").inner_text()
    page.keyboard.press("Control+z")
    assert page.locator(".whatif select.query").input_value() == str(QUERY)
    assert score(page, 10).input_value() == "20"


def test_nothing_to_attend_to(open_page, odd):
    page = open_page(odd[1])
    page.click("#tab-whatif")
    page.select_option(".whatif select.query", "0")
    page.uncheck('.edited tr[data-key="0"] .may')
    assert read(page, '.edited tr[data-key="0"]', "weight") == [0]
    assert "all weights and the output are 0" in page.locator(".facts").inner_text()


def test_a_frame_of_a_notebook_has_no_link_and_says_so(open_page, real, tmp_path):
    frame = tmp_path / "notebook.html"
    text = real[1].read_text().replace("&", "&amp;").replace('"', "&quot;")
    frame.write_text(
        f'<!doctype html><meta charset="utf-8"><iframe srcdoc="{text}" width="1000" height="800"></iframe>'
    )
    inside = open_page(frame).frame_locator("iframe")
    inside.locator("#tab-whatif").click()
    inside.locator("text=Copy the link").click()
    assert "A frame in a notebook has no address of its own." in inside.locator(".link-part").inner_text()
    assert inside.locator("input.link").input_value().startswith("#%7B")


@pytest.mark.parametrize("typed", ["1e308", "-2000000"])
def test_numbers_that_would_overflow_are_refused(page, typed):
    """A scale of 1e308 made every weight NaN, and sentences beside it untrue."""
    before = weights(page)
    field = page.get_by_label("Scale", exact=True).first
    field.fill(typed)
    field.press("Enter")
    assert "between −1,000,000 and 1,000,000" in page.locator(".whatif").inner_text()
    same(weights(page), before, 0)
