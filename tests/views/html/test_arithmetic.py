"""The arithmetic of a row in a browser: every number is the definition's."""

import re

import pytest
import torch

from views.html.rows import defined, everything, minilm, read, written

STEPS = ("scores", "scaled", "capped", "biased", "masked")


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    recording = minilm()
    return recording, written(recording, tmp_path_factory.mktemp("real"))


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    recording = everything(40)
    return recording, written(recording, tmp_path_factory.mktemp("odd"))


def shown(open_page, path, hash="", **options):
    page = open_page(path, hash=hash, **options)
    page.click("#tab-arithmetic")
    return page


def number(text):
    return float("-inf") if text == "−∞" else float(text.replace("−", "-"))


def table(page, step):
    keys = [int(key) for key in read(page, "table.keys tbody tr", "key")]
    texts = page.locator(f'table.keys td[data-step="{step}"]').all_text_contents()
    row = torch.zeros(len(keys), dtype=torch.float64)
    row[keys] = torch.tensor([number(text) for text in texts], dtype=torch.float64)
    return row


def test_weights_of_a_real_model_are_pythons(open_page, real):
    recording, path = real
    page = shown(open_page, path)
    for attention, head, query in ((0, 0, 7), (3, 5, 2), (5, 11, 13)):
        page.select_option("#layer", str(attention))
        page.select_option("#head", str(head))
        page.select_option(".arithmetic select.query", str(query))
        keys = [int(key) for key in read(page, "table.keys tbody tr", "key")]
        weights = read(page, "table.keys tbody tr", "weight")
        assert weights == sorted(weights, reverse=True)
        exact = recording[recording.layers[attention]][0, head, query]
        torch.testing.assert_close(torch.tensor(weights), exact[keys].float(), rtol=0, atol=1e-3)
        texts = page.locator("table.keys td.weight").all_text_contents()
        assert [float(text.removesuffix(" %")) for text in texts] == [
            pytest.approx(100 * w, abs=0.006) for w in weights
        ]


@pytest.mark.parametrize("head", [0, 1])
def test_every_step_is_the_definitions(open_page, odd, head):
    recording, path = odd
    page = shown(open_page, path)
    page.select_option("#head", str(head))
    page.select_option(".arithmetic select.query", "17")
    page.click(".arithmetic .more >> nth=0")  # 40 keys: all of them
    exact = defined(recording[""])
    for step in STEPS:
        torch.testing.assert_close(table(page, step), getattr(exact, step)[0, head, 17], rtol=0, atol=5e-3)
    (sink,) = read(page, "[data-sink]", "sink")
    assert sink == pytest.approx(1 - float(exact.weights[0, head, 17].sum()), abs=1e-3)
    assert page.locator(".steps > li").evaluate_all("all => all.map(each => each.dataset.step)") == [
        *STEPS,
        "weights",
        "output",
    ]


def test_steps_that_a_head_does_not_have_are_not_shown(open_page, real):
    page = shown(open_page, real[1])
    names = page.locator(".steps > li").evaluate_all("all => all.map(each => each.dataset.step)")
    assert "capped" not in names
    assert "biased" not in names
    assert page.locator(".whole .formula").get_attribute("aria-label").startswith("softmax of q dot k divided by the")
    assert "1/√32 = 0.1768" in page.locator('[data-step="scaled"]').first.inner_text()


def test_a_key_is_chosen_and_followed_to_its_weight(open_page, real):
    recording, path = real
    m = recording[recording.layers[0]]
    page = shown(open_page, path, dark=True)
    page.select_option("#layer", "0")
    page.select_option("#head", "0")
    page.select_option(".arithmetic select.query", "7")
    page.click('.keys tr[data-key="10"]')
    assert page.locator('.keys tr[data-key="10"] button').get_attribute("aria-pressed") == "true"
    assert "river" in page.locator(".steps-of-key h2").inner_text()
    page.click(".steps summary")
    products = [number(text) for text in page.locator(".products tbody td:nth-child(4)").all_text_contents()]
    expected = m.q[0, 0, 7].double() * m.k[0, 0, 10].double()
    assert products == pytest.approx(expected.tolist(), abs=5e-3)
    (total,) = read(page, ".products [data-sum]", "sum")
    assert total == pytest.approx(float(expected.sum()), abs=1e-2)
    said = page.locator('[data-step="weights"] .numbers').inner_text()
    above, below, weight = re.search(r"= ([\d.]+) / ([\d.]+) = ([\d.]+) %", said).groups()
    assert float(above) / float(below) == pytest.approx(float(weight) / 100, abs=1e-4)
    assert float(weight) / 100 == pytest.approx(float(m[0, 0, 7, 10]), abs=1e-3)
    page.click('.keys tr[data-key="3"]')
    assert page.locator(".products").is_visible(), "the products stay unfolded"


def test_the_table_is_walked_by_keyboard(open_page, real):
    page = shown(open_page, real[1])
    buttons = page.locator("table.keys button.key")
    assert buttons.evaluate_all("all => all.filter(each => each.tabIndex === 0).length") == 1
    buttons.nth(0).focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    assert buttons.nth(1).get_attribute("aria-pressed") == "true"
    assert re.match(r'Query \d+ ".*" gives [\d.]+ % to key \d+ ".*"', buttons.nth(1).get_attribute("aria-label"))


def test_the_output_is_weights_times_values(open_page, odd):
    recording, path = odd
    page = shown(open_page, path)
    page.select_option("#head", "1")
    page.select_option(".arithmetic select.query", "30")
    assert page.locator(".dimensions tbody tr").count() == 8
    page.click(".output .more")
    exact = defined(recording[""]).output[0, 1, 30]
    assert read(page, ".dimensions tbody tr", "output") == pytest.approx(exact.tolist(), abs=1e-2)
    page.click('.dimensions [data-dimension="11"] button')
    (total,) = read(page, ".terms [data-sum]", "sum")
    assert total == pytest.approx(float(exact[11]), abs=1e-2)
    assert "The other 32 keys together" in page.locator(".terms").inner_text()


def test_the_proof_is_told(open_page, real):
    recording, path = real
    page = shown(open_page, path)
    page.select_option("#layer", "2")
    error = read(page, ".proof-of-row [data-error]", "error")
    assert error == [pytest.approx(recording[recording.layers[2]].error, rel=1e-3)]
    assert "That is rounding" in page.locator(".proof-of-row").inner_text()


def test_of_long_texts_some_lines_are_shown(open_page, tmp_path):
    recording = everything(600)
    page = shown(open_page, written(recording, tmp_path))
    search = page.locator(".arithmetic input.query")
    search.fill("word599")
    search.press("Enter")
    lines = page.locator("table.keys tbody tr")
    assert lines.count() == 30
    page.click("text=Show 256 at a time")
    assert lines.count() == 256
    page.select_option(".arithmetic select.order", "text")
    page.click("text=Later ›")
    page.click("text=Later ›")
    assert read(page, "table.keys tbody tr", "key") == list(range(512, 600))
    torch.testing.assert_close(
        torch.tensor(read(page, "table.keys tbody tr", "weight")), recording[""][0, 0, 599, 512:], rtol=0, atol=1e-3
    )
    page.click(".arithmetic button[aria-label='Previous query']")
    assert search.input_value().startswith("598")
    search.fill("nowhere")
    search.press("Enter")
    assert 'No query here is "nowhere"' in page.locator(".arithmetic .query-picker").inner_text()


def test_a_head_that_is_a_picture_says_so_and_leads_on(open_page, real, tmp_path):
    path = written(real[0], tmp_path, heads=[(4, 3)])
    page = shown(open_page, path)
    page.select_option("#layer", "1")
    assert "This head is in the page as a picture only." in page.locator(".arithmetic .missing").inner_text()
    assert not page.locator("table.keys").is_visible()
    page.click(".arithmetic .missing button")
    assert page.locator("#layer").input_value() == "4"
    assert page.locator("#head").input_value() == "3"
    assert page.locator("table.keys").is_visible()


@pytest.mark.parametrize("view", ["arithmetic", "whatif"])
def test_a_phone_does_not_scroll_sideways(open_page, odd, view):
    page = open_page(odd[1], width=360)
    page.click(f"#tab-{view}")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
