"""The arithmetic of a row in a browser: every number is the definition's."""

import re

import pytest
import torch

from views.html.rows import Attends, assert_weights, read, steps_of, watched

STEPS = ("scores", "scaled", "capped", "biased", "masked")
LINES = "table.keys tbody tr"


def at(attention=0, head=0, query=7):
    return {"view": "arithmetic", "attention": attention, "head": head, "query": query}


def number(text):
    return float("-inf") if text == "−∞" else float(text.replace("−", "-"))


def column(page, step):
    """The numbers of a step, by key."""
    texts = page.locator(f'table.keys td[data-step="{step}"]').all_text_contents()
    lines = sorted(zip(read(page, LINES, "key"), map(number, texts), strict=True))
    return torch.tensor([value for _, value in lines], dtype=torch.float64)


def test_weights_of_a_real_model_are_pythons(open_page, river_page):
    recording, path = river_page
    page = open_page(path)
    page.click("#tab-arithmetic")
    for part, chosen in (("#layer", 5), ("#head", 11), (".arithmetic select.query", 13)):
        page.select_option(part, str(chosen))
    keys, weights = map(int, read(page, LINES, "key")), read(page, LINES, "weight")
    assert weights == sorted(weights, reverse=True)
    assert_weights(dict(zip(keys, weights, strict=True)), recording[recording.layers[5]][0, 11, 13])
    shares = [float(text.removesuffix(" %")) for text in page.locator("table.keys td.weight").all_text_contents()]
    assert shares == pytest.approx([100 * weight for weight in weights], abs=0.006)
    (error,) = read(page, ".proof-of-row [data-error]", "error")
    assert error == pytest.approx(recording[recording.layers[5]].error, rel=1e-3)
    assert "That is rounding" in page.locator(".proof-of-row").inner_text()


def test_every_step_is_the_definitions(open_page, odd_page):
    m, path = odd_page
    page = open_page(path, at(query=17))
    page.click(".arithmetic .more >> nth=0")  # 40 keys: all of them
    exact = steps_of(m)
    for head in (0, 1):
        page.select_option("#head", str(head))
        for step in STEPS:
            torch.testing.assert_close(column(page, step), getattr(exact, step)[0, head, 17], rtol=0, atol=1e-2)
        (sink,) = read(page, "[data-sink]", "sink")
        assert sink == pytest.approx(1 - float(exact.weights[0, head, 17].sum()), abs=1e-3)


def test_steps_that_a_head_does_not_have_are_not_shown_and_the_table_is_walked_by_keyboard(open_page, river_page):
    page = open_page(river_page[1], at())
    names = page.locator(".steps > li").evaluate_all("all => all.map(each => each.dataset.step)")
    assert names == ["scores", "scaled", "weights", "output"]
    assert page.locator(".whole .formula").get_attribute("aria-label").startswith("softmax of q dot k divided by the")
    assert "1/√32 = 0.1768" in page.locator('[data-step="scaled"]').first.inner_text()
    page.locator("table.keys button.key").first.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    assert page.locator("table.keys button.key").nth(1).get_attribute("aria-pressed") == "true"


def test_a_key_is_chosen_and_followed_to_its_weight(open_page, river_page):
    recording, path = river_page
    m = recording[recording.layers[0]]
    page = open_page(path, at(), dark=True)
    page.click('.keys tr[data-key="10"]')
    assert page.locator('.keys tr[data-key="10"] button').get_attribute("aria-pressed") == "true"
    assert "river" in page.locator(".steps-of-key h2").inner_text()
    page.click(".steps summary")
    page.wait_for_selector(".products tbody td")  # a browser says a little later that something was unfolded
    products = [number(text) for text in page.locator(".products tbody td:nth-child(4)").all_text_contents()]
    expected = m.q[0, 0, 7].double() * m.k[0, 0, 10].double()
    assert products == pytest.approx(expected.tolist(), abs=5e-3)
    assert read(page, ".products [data-sum]", "sum") == [pytest.approx(float(expected.sum()), abs=1e-2)]
    text = page.locator('[data-step="weights"] .numbers').inner_text()
    above, below, weight = map(float, re.search(r"= ([\d.]+) / ([\d.]+) = ([\d.]+) %", text).groups())
    assert [above / below, weight / 100] == pytest.approx([float(m[0, 0, 7, 10])] * 2, abs=1e-3)


def test_the_output_is_weights_times_values(open_page, odd_page):
    m, path = odd_page
    page = open_page(path, at(head=1, query=30))
    page.click(".output .more")
    exact = steps_of(m).output[0, 1, 30]
    assert read(page, ".dimensions tbody tr", "output") == pytest.approx(exact.tolist(), abs=1e-2)
    page.click('.dimensions [data-dimension="11"] button')
    assert read(page, ".terms [data-sum]", "sum") == [pytest.approx(float(exact[11]), abs=1e-2)]
    assert "The other 32 keys together" in page.locator(".terms").inner_text()


@pytest.mark.more
def test_of_long_texts_some_lines_are_shown(open_page, tmp_path):
    m = watched(tmp_path / "page.html", Attends(1, 8), 600)
    page = open_page(tmp_path / "page.html", at())
    search = page.locator(".arithmetic input.query")
    search.fill("nowhere")
    search.press("Enter")
    assert 'No query here is "nowhere"' in page.locator(".arithmetic .query-picker").inner_text()
    search.fill("word599")
    search.press("Enter")
    assert page.locator(LINES).count() == 30
    page.click("text=Show 256 at a time")
    page.select_option(".arithmetic select.order", "text")
    page.click("text=Later ›")
    page.click("text=Later ›")
    keys = read(page, LINES, "key")
    assert keys == list(range(512, 600))
    assert_weights(dict(zip(map(int, keys), read(page, LINES, "weight"), strict=True)), m[0, 0, 599])
