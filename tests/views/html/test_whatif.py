"""What if: a row is edited in a browser, and what follows is what Python's softmax says."""

import math
import re

import pytest
import torch

from views.html.rows import read, steps_of

LAYER, HEAD, QUERY = 0, 0, 7
STATE = {"view": "whatif", "attention": LAYER, "head": HEAD, "query": QUERY}


@pytest.fixture(scope="module")
def exact(river_page):
    """Every step of the head, in float64."""
    recording, _ = river_page
    return steps_of(recording[recording.layers[LAYER]])


@pytest.fixture
def page(open_page, river_page):
    return open_page(river_page[1], STATE)


def line(key):
    return f'.edited tr[data-key="{key}"]'


def score(page, key):
    return page.locator(f"{line(key)} input.score")


def weights(page, name="weight"):
    """Of each key, from the lines of the table."""
    found = zip(read(page, ".edited tbody tr", "key"), read(page, ".edited tbody tr", name), strict=True)
    return torch.tensor([weight for _, weight in sorted(found)], dtype=torch.float64)


def fact(page, name):
    return float(page.locator(f'[data-fact="{name}"]').get_attribute("data-value"))


def same(found, exact, tolerance=1e-3):
    torch.testing.assert_close(found, exact.double(), rtol=0, atol=tolerance)


def test_a_score_is_changed_and_the_weights_are_pythons(page, river_page, exact):
    m = river_page[0][river_page[0].layers[LAYER]]
    scores, before = exact.scores[0, HEAD, QUERY].clone(), exact.weights[0, HEAD, QUERY]
    same(weights(page), before)
    score(page, 10).fill("20")
    scores[10] = 20
    after = (scores * m.scale).softmax(0)
    same(weights(page), after)
    same(weights(page, "before"), before)
    old, new = exact.output[0, HEAD, QUERY], after @ m.v[0, HEAD].double()
    assert fact(page, "cosine") == pytest.approx(float(torch.cosine_similarity(old, new, dim=0)), abs=2e-3)
    assert fact(page, "relative") == pytest.approx(float((new - old).norm() / old.norm()), abs=1e-2)
    assert fact(page, "entropy") == pytest.approx(float(-(after * after.log()).sum()), abs=5e-3)
    points = re.fullmatch(r"▲ \+([\d.]+)", page.locator(f"{line(10)} .change").inner_text())
    assert float(points[1]) == pytest.approx(100 * float(after[10] - before[10]), abs=0.1)


def test_scale_temperature_mask_and_tokens_left_out(open_page, odd_page):
    m, path = odd_page
    page = open_page(path, {"view": "whatif", "head": 1, "query": 12})
    exact = steps_of(m)
    page.fill("input.scale", "0.75")
    page.fill("input.temperature", "1.6")
    page.fill(".add-key", "30")  # behind the query, so that it is not among the strongest
    page.press(".add-key", "Enter")
    page.check(f"{line(30)} .may")
    page.uncheck(f"{line(3)} .may")
    page.click(f"{line(5)} .out")
    row = 3 * torch.tanh(exact.scores[0, 1, 12] * 0.75 / 3) + (exact.biased - exact.capped)[0, 1, 12]
    allowed = torch.arange(40) <= 12
    allowed[[3, 5]], allowed[30] = False, True
    after = (torch.cat([row.masked_fill(~allowed, -math.inf), m.sinks[1].double()[None]]) / 1.6).softmax(0)
    keys = sorted(int(key) for key in read(page, ".edited tbody tr", "key"))
    same(weights(page), after[keys])
    assert fact(page, "sink") == pytest.approx(float(after[-1]), abs=1e-3)
    assert read(page, ".edited .others", "weight") == [pytest.approx(float(1 - after[[*keys, -1]].sum()), abs=1e-3)]
    page.click("text=Reset all")
    same(weights(page), exact.weights[0, 1, 12, keys])
    assert page.locator("input.scale").input_value() == "0.25"


def test_one_step_after_the_other_is_undone(page, exact):
    score(page, 3).fill("-4")
    score(page, 3).press("Enter")
    first = weights(page)
    page.click(f"{line(10)} .out")
    assert not torch.allclose(weights(page), first)
    page.keyboard.press("Control+z")
    same(weights(page), first, 1e-12)
    page.click("text=↶ Undo")
    same(weights(page), exact.weights[0, HEAD, QUERY])
    assert page.locator(".undo").get_attribute("aria-disabled") == "true"


def test_a_link_holds_the_edits(page, exact):
    score(page, 10).fill("20")
    page.uncheck(f"{line(1)} .may")
    page.fill("input.temperature", "0.5")
    page.press("input.temperature", "Tab")
    kept = weights(page)
    page.evaluate("() => void (navigator.clipboard.writeText = () => Promise.reject(new Error('refused')))")
    page.click("text=Copy the link")
    assert page.locator("input.link").input_value() == page.url
    page.reload()
    same(weights(page), kept, 1e-12)
    assert score(page, 10).input_value() == "20"
    page.click("text=Reset all")
    same(weights(page), exact.weights[0, HEAD, QUERY])


def test_what_is_no_number_is_said_and_nothing_is_lost(page):
    score(page, 10).fill("20")
    kept = weights(page)
    score(page, 3).fill("")
    page.fill("input.temperature", "0")
    assert "above 0" in page.locator(".whole-row").inner_text()
    field = page.get_by_label("Scale", exact=True).first
    for typed in ("1e308", "-2000000"):  # a scale of 1e308 made every weight NaN, and sentences beside it untrue
        field.fill(typed)
        field.press("Enter")
        assert "between −1,000,000 and 1,000,000" in page.locator(".whatif").inner_text()
    same(weights(page), kept, 1e-12)
    message = page.locator(f"{line(3)} .message")
    assert "A number is wanted" in message.inner_text()
    assert score(page, 3).get_attribute("aria-invalid") == "true"
    page.click(f"{line(3)} .reset")
    assert message.inner_text() == ""
    assert score(page, 10).input_value() == "20"


def test_a_field_keeps_the_focus_and_what_is_typed(page):
    score(page, 10).select_text()
    page.keyboard.type("2.50")
    page.wait_for_function("() => location.hash.includes('%2210%22%3A2.5')")  # after a pause the edit is kept
    assert score(page, 10).input_value() == "2.50"
    page.keyboard.press("ArrowUp")
    assert score(page, 10).input_value() == "2.6"
