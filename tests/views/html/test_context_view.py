"""The view of words in context, in Chromium, against `regard.lens.text.contextual`."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch

from regard.lens.text.contextual import contextual_vectors
from views.html.rows import state_of
from views.recordings import river
from weights import LOAN, RIVER, minilm

HEBREW = "שלום bank, עולם a <b>man</b> \u202efo 👩\u200d👩\u200d👧 loan"
TEXTS = (RIVER, LOAN, "The BANK of the river was steep.", HEBREW)
MANY = [f"w{i} n" for i in range(30)]


@cache
def facts(*texts):
    return contextual_vectors(texts, minilm())


@cache
def page_of(*texts):
    """A page with the words of texts in context."""
    path = Path(mkdtemp()) / "page.html"
    river().subset("self").to_html(path, heads=[], context=facts(*texts).to_dict())
    return path


@pytest.fixture
def show(open_page):
    """The view, open."""

    def call(*texts, word=0, **options):
        state = {"view": "context", "word": word}
        return open_page(page_of(*texts), state, ready=".context .chart polyline", **options)

    return call


def tables(page):
    """The cells that the table shows when each word is chosen, row by row: sentence and cosine."""
    return page.evaluate(
        """() => Array.from(document.querySelectorAll(".context .words button"), (_, i) => {
          document.querySelector(`.context .words button[data-word="${i}"]`).click();
          return Array.from(document.querySelectorAll(".context .cosines td[data-cosine]"),
            (each) => [+each.dataset.sentence, +each.textContent.replace("\u2212", "-")]);
        })"""
    )


def chosen(page):
    """The word that is chosen, as it stands in each sentence."""
    return page.eval_on_selector_all(".context .shared[aria-pressed=true]", "all => all.map(each => each.textContent)")


def index_of(word):
    return [each.word for each in facts(RIVER, LOAN).words].index(word)


def test_the_cosines_on_the_page_are_pythons(show):
    page = show(*TEXTS)
    scale = page.eval_on_selector_all(
        ".context .grid", "all => all.map(each => [+each.lastChild.textContent, +each.firstChild.getAttribute('y1')])"
    )
    (low, bottom), (high, top) = scale[0], scale[-1]
    lines = page.eval_on_selector_all(
        ".context .line", "all => all.map(each => [+each.dataset.sentence, each.firstChild.getAttribute('points')])"
    )
    for other, (sentence, points) in zip(facts(*TEXTS).words[0].cosines, lines, strict=True):
        heights = [float(point.split(",")[1]) for point in points.split()]
        cosines = [low + (bottom - y) / (bottom - top) * (high - low) for y in heights]
        assert (sentence, cosines) == (other.sentence, pytest.approx(other.cosine, abs=1e-3))
    for word, shown in zip(facts(*TEXTS).words, tables(page), strict=True):
        sentences, cosines = zip(*shown, strict=True)
        count, rows = len(word.cosines), zip(*(other.cosine for other in word.cosines), strict=True)
        assert list(sentences[:count]) == [other.sentence for other in word.cosines]
        assert cosines == pytest.approx([cosine for row in rows for cosine in row], abs=6e-5)


def test_the_places_in_the_plane_are_those_of_the_chosen_layer(show):
    page = show(*TEXTS)
    word = facts(*TEXTS).words[0]
    for state in (6, 0, 3):
        page.locator(".context input[type=range]").fill(str(state))
        places = page.eval_on_selector_all(
            ".context .own",
            """all => Object.fromEntries(all.map((each) => {
              const { e, f } = each.firstChild.transform.baseVal.consolidate().matrix;
              return [each.dataset.sentence, [e, f]];
            }))""",
        )
        shown = torch.tensor([places[str(i)] for i in range(4)])
        exact = torch.tensor([word.points[i][state] for i in range(4)])
        shown, exact = torch.cdist(shown, shown), torch.cdist(exact, exact)
        torch.testing.assert_close(shown / shown.max(), exact / exact.max(), atol=5e-3, rtol=0)
        assert page.locator(".context .way").count() == 3
        share = facts(*TEXTS).explained_variance[state]
        assert f"shows {100 * share:.0f} % of" in page.inner_text(".context figure:has(.plane) figcaption")


def test_a_word_is_picked_in_a_sentence_in_the_list_and_by_the_link(show):
    page = show(RIVER, LOAN)
    assert chosen(page) == ["bank", "bank"]
    changes = {word.word: 1 - word.cosines[0].cosine[-1] for word in facts(RIVER, LOAN).words}
    listed = page.locator(".context .words button bdi").all_text_contents()
    assert listed == sorted(changes, key=lambda word: -changes[word])
    said = map(float, page.locator(".context .words button .much").all_text_contents())
    assert [*said] == pytest.approx([changes[word] for word in listed], abs=6e-4)
    page.locator(".context .shared", has_text="poem").nth(1).click()
    assert chosen(page) == ["poem", "poem"]
    assert page.inner_text(".context .chosen") == "“poem” compared with itself in sentence 0"
    page.locator(".context .words button", has_text="man").click()
    assert chosen(page) == ["man", "man"]
    assert state_of(page)["word"] == index_of("man")
    assert chosen(show(RIVER, LOAN, word=index_of("about"))) == ["about", "about"]


def test_the_keyboard_alone_does_it_all(show):
    page = show(RIVER, LOAN)
    page.locator(".context .sentences button[tabindex='0']").first.focus()
    for keys, word in (("ArrowLeft Enter", "man"), ("Home Space", "Write"), ("Tab Tab Home Enter", "a")):
        for key in keys.split():
            page.keyboard.press(key)
        assert chosen(page) == [word, word]
    for key in ("Tab", "Home", "ArrowRight"):
        page.keyboard.press(key)
    assert page.inner_text(".context .where") == "after layer 0"
    assert page.locator(".context input[type=range]").get_attribute("aria-valuetext") == "after layer 0"
    assert page.locator(".context tr.chosen").get_attribute("data-state") == "1"


def test_pointing_says_the_values_and_clicking_picks(show):
    page = show(RIVER, LOAN)
    cosine = facts(RIVER, LOAN).words[0].cosines[0].cosine
    mark = page.locator(".context .line path").nth(2)
    mark.scroll_into_view_if_needed()
    mark.click(force=True)
    assert page.inner_text(".context .chart + .readout") == f"after layer 1: sentence 1: {cosine[2]:.3f}"
    assert page.inner_text(".context .where") == "after layer 1"
    dot = page.locator(f".context .other[data-word='{index_of('about')}'][data-sentence='1'] path")
    dot.click(force=True)
    assert chosen(page) == ["about", "about"]


def test_sentences_stand_there_as_they_are_and_on_paper_without_controls(show):
    page = show(*TEXTS)
    shown = page.eval_on_selector_all(".context .sentences p", "all => all.map(each => each.textContent)")
    assert shown == [*TEXTS[:3], HEBREW.replace("\u202e", "⟨202e⟩")]
    assert page.locator(".context .sentences b").count() == 0
    page.emulate_media(media="print")
    parts = (".sentences .shared", ".chart svg", ".cosines", ".words", "input[type=range]")
    assert [page.locator(f".context {part}").first.is_visible() for part in parts] == [True] * 3 + [False] * 2


def test_of_many_words_some_are_searched(show):
    page = show(" ".join(MANY), " ".join(reversed(MANY)), width=360, height=700)
    page.fill(".context input[type=search]", "W2")
    shown = page.locator(".context .words button:visible .token").all_inner_texts()
    assert sorted(shown) == sorted(["w2", *(f"w{i}" for i in range(20, 30))])
    assert page.inner_text(".context .words [role=status]") == "11 of 31"
