"""The view of words in context, in Chromium, against `regard.lens.text.contextual`."""

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from urllib.parse import quote

import pytest
import torch

import regard
from regard.lens.text.contextual import contextual_vectors
from weights import LOAN, RIVER, minilm

HEBREW = "שלום bank, עולם a <b>man</b> \u202efo 👩\u200d👩\u200d👧 loan"
TEXTS = [RIVER, LOAN, "The BANK of the river was steep.", HEBREW]


@cache
def facts(*texts):
    return contextual_vectors(texts, minilm())


@cache
def page_of(*texts):
    """A page with words in context, or without any, where there is one text."""
    model = minilm()
    encoding = model.encode(texts[0])
    with torch.no_grad(), regard.watch(model.model, layers=[0]) as seen:
        model.model(torch.tensor([encoding.ids]))
    seen.label(encoding.tokens)
    path = Path(mkdtemp()) / "page.html"
    seen.to_html(path, model=model.name, context=facts(*texts).to_dict() if len(texts) > 1 else None)
    return path


@pytest.fixture
def show(open_page):
    """The view, open."""

    def call(*texts, word=0, **options):
        page = open_page(page_of(*texts), hash=quote(json.dumps({"view": "context", "word": word})), **options)
        page.wait_for_selector(".context .chart polyline")
        return page

    return call


def table(page):
    """The cosines that the table shows: a column for each other sentence."""
    cells = page.eval_on_selector_all(
        ".context .cosines td[data-cosine]", "all => all.map(each => [each.dataset.sentence, each.textContent])"
    )
    found: dict[int, list[float]] = {}
    for sentence, text in cells:
        found.setdefault(int(sentence), []).append(float(text.replace("\u2212", "-")))
    return found


def chosen(page):
    return page.eval_on_selector_all(".context .shared[aria-pressed=true]", "all => all.map(each => each.textContent)")


def test_the_cosines_on_the_page_are_pythons(show):
    page = show(*TEXTS)
    words = facts(*TEXTS).words
    for number, word in enumerate(words):
        page.click(f".context .words button[data-word='{number}']")
        expected = {other.sentence: other.cosine for other in word.cosines}
        shown = table(page)
        assert list(shown) == list(expected)
        for sentence, cosine in expected.items():
            assert shown[sentence] == pytest.approx(cosine, abs=6e-5)


def test_the_lines_stand_where_the_cosines_say(show):
    page = show(*TEXTS)
    scale = page.eval_on_selector_all(
        ".context .grid", "all => all.map(each => [+each.lastChild.textContent, +each.firstChild.getAttribute('y1')])"
    )
    (low, bottom), (high, top) = scale[0], scale[-1]
    lines = page.eval_on_selector_all(
        ".context .line", "all => all.map(each => [each.dataset.sentence, each.firstChild.getAttribute('points')])"
    )
    expected = {other.sentence: other.cosine for other in facts(*TEXTS).words[0].cosines}
    assert [int(sentence) for sentence, _ in lines] == list(expected)
    for sentence, points in lines:
        heights = [float(point.split(",")[1]) for point in points.split()]
        cosines = [low + (bottom - y) / (bottom - top) * (high - low) for y in heights]
        assert cosines == pytest.approx(expected[int(sentence)], abs=1e-3)


def test_the_places_in_the_plane_are_those_of_the_chosen_layer(show):
    page = show(*TEXTS)
    word = facts(*TEXTS).words[0]
    places = """all => all.map(each => each.firstChild.transform.baseVal.consolidate().matrix).map(m => [m.e, m.f])"""
    for state in (6, 0, 3):
        page.locator(".context input[type=range]").fill(str(state))
        own = page.eval_on_selector_all(".context .own", places)
        sentences = page.eval_on_selector_all(".context .own", "all => all.map(each => +each.dataset.sentence)")
        shown = torch.tensor([own[sentences.index(i)] for i in range(4)])
        there = torch.tensor([word.points[i][state] for i in range(4)])
        here, there = torch.cdist(shown, shown), torch.cdist(there, there)
        torch.testing.assert_close(here / here.max(), there / there.max(), atol=5e-3, rtol=0)
        assert page.locator(".context .way").count() == 3
        share = facts(*TEXTS).explained_variance[state]
        assert f"shows {100 * share:.0f} % of" in page.inner_text(".context figure:has(.plane) figcaption")


def test_a_word_is_picked_in_a_sentence_in_the_list_and_by_the_link(show):
    page = show(RIVER, LOAN)
    words = [word.word for word in facts(RIVER, LOAN).words]
    assert chosen(page) == ["bank", "bank"]
    page.locator(".context .shared", has_text="poem").nth(1).click()
    assert chosen(page) == ["poem", "poem"]
    assert page.inner_text(".context .chosen") == "“poem” compared with itself in sentence 0"
    page.locator(".context .words button", has_text="man").click()
    assert chosen(page) == ["man", "man"]
    assert page.evaluate("JSON.parse(decodeURIComponent(location.hash.slice(1))).word") == words.index("man")
    assert chosen(show(RIVER, LOAN, word=words.index("about"))) == ["about", "about"]


def test_the_list_begins_with_the_word_that_changes_most(show):
    page = show(RIVER, LOAN)
    shown = page.eval_on_selector_all(
        ".context .words button",
        "all => all.map(each => [each.querySelector('bdi').textContent, each.querySelector('.much').textContent])",
    )
    changes = {word.word: 1 - word.cosines[0].cosine[-1] for word in facts(RIVER, LOAN).words}
    assert [word for word, _ in shown] == sorted(changes, key=lambda word: -changes[word])
    assert all(float(change) == pytest.approx(changes[word], abs=6e-4) for word, change in shown)
    assert page.locator(".context input[type=search]").count() == 0


def test_the_keyboard_alone_does_it_all(show):
    page = show(RIVER, LOAN)
    page.locator(".context .sentences button[tabindex='0']").first.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    assert chosen(page) == ["man", "man"]
    page.keyboard.press("Home")
    page.keyboard.press("Space")
    assert chosen(page) == ["Write", "Write"]
    page.keyboard.press("Tab")  # the other sentence: its chosen word is the one that the tabulator reaches
    assert page.evaluate("document.activeElement.textContent") == "Write"
    page.keyboard.press("Tab")
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    assert chosen(page) == ["a", "a"]
    page.keyboard.press("Tab")
    page.keyboard.press("Home")
    assert page.inner_text(".context .where") == "at the input"
    page.keyboard.press("ArrowRight")
    assert page.inner_text(".context .where") == "after layer 0"
    assert page.locator(".context input[type=range]").get_attribute("aria-valuetext") == "after layer 0"
    assert page.locator(".context tr.chosen").get_attribute("data-state") == "1"


def test_pointing_says_the_values_and_clicking_picks(show):
    page = show(RIVER, LOAN)
    cosine = facts(RIVER, LOAN).words[0].cosines[0].cosine
    mark = page.locator(".context .line path").nth(2)
    mark.scroll_into_view_if_needed()
    mark.hover(force=True)
    assert page.inner_text(".context .chart + .readout") == f"after layer 1: sentence 1: {cosine[2]:.3f}"
    page.mouse.move(0, 0)
    assert page.inner_text(".context .chart + .readout").startswith("after layer 5: ")
    mark.click(force=True)
    assert page.inner_text(".context .where") == "after layer 1"
    about = [word.word for word in facts(RIVER, LOAN).words].index("about")
    dot = page.locator(f".context .other[data-word='{about}'][data-sentence='1'] path")
    dot.hover(force=True)
    assert page.inner_text(".context .legend + .readout") == '"about" in sentence 1'
    dot.click(force=True)
    assert chosen(page) == ["about", "about"]


def test_sentences_stand_there_as_they_are(show):
    page = show(*TEXTS)
    shown = page.eval_on_selector_all(".context .sentences p", "all => all.map(each => each.textContent)")
    assert shown == [*TEXTS[:3], HEBREW.replace("\u202e", "⟨202e⟩")]
    assert page.locator(".context .sentences b").count() == 0


def test_of_many_words_some_are_searched(show):
    many = [f"w{i} n" for i in range(30)]
    page = show(" ".join(many), " ".join(reversed(many)), width=360, height=700)
    page.fill(".context input[type=search]", "W2")
    shown = page.locator(".context .words button:visible .token").all_inner_texts()
    assert sorted(shown) == sorted(["w2", *(f"w{i}" for i in range(20, 30))])
    assert page.inner_text(".context .words [role=status]") == "11 of 31"
    page.fill(".context input[type=search]", "<i>")
    assert page.inner_text(".context .words [role=status]") == 'No shared word has "<i>" in it.'


@pytest.mark.parametrize("width", [360, 700, 1280])
def test_the_page_is_no_wider_than_its_window(show, width):
    page = show(*TEXTS, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.set_viewport_size({"width": 400, "height": 800})
    page.wait_for_function("document.querySelector('.context .chart svg').clientWidth <= 370")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_a_page_of_one_text_has_no_such_view(open_page):
    page = open_page(page_of(RIVER))
    page.wait_for_selector("[role=tab]")
    assert page.locator("#tab-context").count() == 0


def test_on_paper_are_the_drawings_and_not_the_controls(show):
    page = show(*TEXTS)
    page.emulate_media(media="print")
    assert page.locator(".context .sentences .shared").first.is_visible()
    assert page.locator(".context .chart svg").is_visible()
    assert page.locator(".context .cosines").is_visible()
    assert not page.locator(".context .words").is_visible()
    assert not page.locator(".context input[type=range]").is_visible()
