"""The view of effects in Chromium: its numbers are the effects', it sorts, and a click leads to a head's map."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from regard.views.html import render_effects_page
from views.html.rows import read, state_of
from views.made_effects import head_effects, layer_effects, river_tokens, token_effects
from views.recordings import river

HEADS, TOKENS = '[data-over="heads"]', '[data-over="tokens"]'
FOCUSED = "document.activeElement.closest('tr').dataset"

FILLED = """all => all.map((each) => {
  const { backgroundColor, backgroundImage } = getComputedStyle(each);
  return backgroundColor !== "rgba(0, 0, 0, 0)" || backgroundImage !== "none";
})"""
"""Whether each bar has a colour or is hatched."""


@cache
def page_of(method="exact"):
    """The river's page with the effects of heads and tokens."""
    path = Path(mkdtemp()) / "page.html"
    river().to_html(path, effects=[head_effects(method), token_effects()])
    return path


@pytest.fixture
def show(open_page):
    """The view, open, with all rows."""

    def call(method="exact", **options):
        page = open_page(page_of(method), {"view": "effect"}, **options)
        page.locator(".more").click()
        return page

    return call


def rows(page, which="tbody tr"):
    """(attention, head) of the rows, in their order."""
    return page.locator(f"{HEADS} {which}").evaluate_all("all => all.map(e => [+e.dataset.attention, +e.dataset.head])")


def test_every_number_is_the_effects_strongest_first(show):
    page, effects = show(), head_effects()
    places = rows(page)
    assert len(places) == 72
    for name, tensor in (("effect", effects.values), ("lookedAt", effects.looked_at)):
        exact = [float(tensor[0, layer, head]) for layer, head in places]
        assert read(page, f"{HEADS} tbody tr", name) == pytest.approx(exact, rel=1e-5)
    sizes = [abs(effect) for effect in read(page, f"{HEADS} tbody tr", "effect")]
    assert sizes == sorted(sizes, reverse=True)
    texts = page.locator(f"{HEADS} td.effect .value").all_text_contents()
    assert float(texts[0].split(" ")[0].replace("−", "-")) == pytest.approx(float(effects.top(1)[0].effect), rel=5e-3)
    assert texts[0].endswith(" #1")
    assert page.locator(f"{HEADS} .estimate").count() == 0


def test_heads_sort_by_attention_and_by_layer(show):
    page = show()
    page.select_option(f"{HEADS} .order", "looked_at")
    looked_at = read(page, f"{HEADS} tbody tr", "lookedAt")
    assert looked_at == sorted(looked_at, reverse=True)
    assert page.locator(f"{HEADS} th[aria-sort]").text_content() == "looked at"
    page.select_option(f"{HEADS} .order", "lowers")
    effects = read(page, f"{HEADS} tbody tr", "effect")
    assert effects == sorted(effects)
    page.select_option(f"{HEADS} .order", "place")
    assert rows(page) == [[layer, head] for layer in range(6) for head in range(12)]


def test_a_click_on_a_head_opens_its_map(show):
    page = show()
    place = rows(page)[3]
    page.locator(f"{HEADS} .go").nth(3).click()
    assert page.locator("#view-map").is_visible()
    assert {"view": "map", "attention": place[0], "head": place[1]}.items() <= state_of(page).items()
    page.click("#tab-effect")
    assert rows(page, "tr.chosen") == [place]


def test_the_keyboard_goes_through_the_heads_and_opens_a_map(show):
    page = show()
    page.locator(f'{HEADS} .go[tabindex="0"]').focus()
    for key in ("Home", "ArrowDown", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
    place = rows(page)[1]
    assert page.evaluate(f"[+{FOCUSED}.attention, +{FOCUSED}.head]") == place
    page.keyboard.press("Enter")
    assert {"view": "map", "attention": place[0], "head": place[1]}.items() <= state_of(page).items()


def test_an_estimate_has_a_hollow_bar_apart_from_exact_effects(show):
    page = show("both")
    hollow = page.locator(f"{HEADS} .hollow > span")
    exact = page.locator(f"{HEADS} td.effect .signed-bar > span")
    assert (hollow.count(), exact.count()) == (72, 20)
    assert not any(hollow.evaluate_all(FILLED))
    assert all(exact.evaluate_all(FILLED))
    assert "estimated to first order" in page.locator(f"{HEADS} .legend").text_content()


def test_metric_ablation_and_method_are_named(show):
    text = show("both").locator(f"{HEADS} .about").inner_text()
    parts = ("cosine(): 0.500 as the model is", "zero, the part's output", "strongest computed exactly", "from the")
    assert [part for part in parts if part not in text] == []


def test_under_each_token_hangs_its_effect_and_pointing_says_it(show):
    page, effects = show(), token_effects()
    strip = page.locator(f"{TOKENS} .under")
    assert strip.locator(".token").all_text_contents() == list(river_tokens())
    heights = [float(h.rstrip("%")) for h in strip.locator(".drop").evaluate_all("all => all.map(e => e.style.height)")]
    values = effects.values[0]
    assert heights == pytest.approx((100 * values.abs() / values.abs().max()).tolist(), rel=1e-3)
    hatched = strip.locator(".drop").evaluate_all("all => all.map(e => e.classList.contains('less'))")
    assert hatched == (values < 0).tolist()
    strip.nth(0).focus()
    page.keyboard.press("ArrowRight")
    readout = page.locator(".readout").text_content()
    assert readout.startswith(f"1 {river_tokens()[1]}: effect ")
    assert page.locator(f"{TOKENS} tr.chosen").get_attribute("data-token") == "1"
    strip.nth(4).hover()
    assert page.locator(".readout").text_content().startswith(f"4 {river_tokens()[4]}: ")
    found = zip(*(read(page, f"{TOKENS} tbody tr", name) for name in ("token", "effect")), strict=True)
    assert dict(found) == pytest.approx(dict(enumerate(values.tolist())), rel=1e-5)


def test_effects_without_a_recording_are_a_page_of_this_view_alone(open_page, tmp_path):
    (tmp_path / "page.html").write_text(render_effects_page(layer_effects("gradient"), max_size=1), encoding="utf-8")
    page = open_page(tmp_path / "page.html")
    assert page.locator("[role=tab]").all_text_contents() == ["Effect"]
    layers = [int(name) for name in page.locator("th.name .token").all_text_contents()]
    assert sorted(layers) == list(range(6))
    exact = layer_effects("gradient").estimates[0, layers].tolist()
    assert read(page, "tbody tr", "estimate") == pytest.approx(exact, rel=1e-5)
    assert page.locator("td.effect").count() == 0


def test_a_phone_shows_it_without_scrolling_sideways(show):
    page = show("both", width=360)
    wider = "[document.documentElement, ...document.querySelectorAll('.wide')].map(e => e.scrollWidth - e.clientWidth)"
    assert max(page.evaluate(wider)) <= 1


def test_on_paper_the_names_of_the_heads_are_there(show):
    page = show()
    page.emulate_media(media="print")
    assert page.locator(f"{HEADS} .go").first.is_visible()
    assert not page.locator(f"{HEADS} .order").is_visible()
