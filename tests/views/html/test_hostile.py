"""Whatever stands in a token, a title, a name or a path stays text, in the page and in a notebook's frame."""

import re
import unicodedata
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from PIL import Image
from torch import nn

import regard
from regard.lens.text.contextual import ContextualCosines, ContextualPart, ContextualVectors, ContextualWord
from views.html.hostile import HOSTILE, MARK, TOKENS

SCRIPT = HOSTILE["the end of the script"]
WHOLE = [token for token in TOKENS if not any("\ud800" <= c <= "\udfff" for c in token)]
TITLE = " ".join(token[:60] for token in WHOLE)
FORBIDDEN = [
    "iframe",
    "object",
    "embed",
    "link",
    "base",
    "audio",
    "video",
    "template",
    "body style",
    "body meta",
    "body > title",
]
"""What a token could become, and no page of ours is made of; its images and scripts are counted."""


class Attends(nn.Module):
    """Two heads over random vectors."""

    def forward(self, x):
        heads = x.view(len(x), 2, -1).transpose(0, 1)[None]
        return nn.functional.scaled_dot_product_attention(heads, heads.flip(-1), heads)


class Model(nn.Module):
    """Attentions whose paths are hostile, too."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({name.replace(".", "·"): Attends() for name in (SCRIPT, "<!--", "0")})

    def forward(self, x):
        return [layer(x) for layer in self.layers.values()]


@cache
def recording():
    with regard.watch(model := Model()) as seen, torch.no_grad():
        model(torch.randn(len(TOKENS), 16, generator=torch.Generator().manual_seed(0)))
    seen.label(TOKENS)
    seen.add_note(f"a note {SCRIPT}")
    return seen


def hostile_context():
    """Words in context that no tokenizer would make."""
    points = [[(float(i), float(i % 7)), (float(i % 5), float(i))] for i in range(len(WHOLE))]
    kept = [
        ContextualWord(word, [ContextualCosines(1, [1.0, 0.5])], [at, at])
        for word, at in zip(WHOLE, points, strict=True)
    ]
    parts = [part for i, word in enumerate(WHOLE) for part in (ContextualPart(word, i), ContextualPart(SCRIPT, None))]
    return ContextualVectors([parts, parts], kept, kept, len(kept), [0.5, 0.5], 1)


@cache
def page_of(kind):
    """The page, or a notebook's page with it in a frame."""
    path = Path(mkdtemp()) / "page.html"
    if kind == "page":
        picture = Image.new("RGB", (12, 12), "teal")
        context = hostile_context().to_dict()
        recording().to_html(path, title=TITLE, model=TITLE, image=picture, patches=(4, 4), context=context)
    else:
        path.write_text(
            f"<!doctype html><meta charset=utf-8><title>notebook</title>{recording()._repr_html_()}", "utf-8"
        )
    return path


def shown(token):
    """How the page writes a token, except that a view may cut it: see visible() in dom.js."""
    whole = token.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return "∅" if whole == "" else whole


def visible_part(text):
    """What is left of a text without what is written in other ways, or not at all: its letters, marks and signs."""
    text = re.sub(r"⟨[0-9a-f]+⟩|[⏎⇥␣∅…\ufffd]", "", text)
    return "".join(c for c in text if unicodedata.category(c)[0] not in "CZ")


def everything_is_text(frame, image):
    """Nothing in a document but what the page itself makes."""
    found = frame.evaluate(
        """(forbidden) => ({
          forbidden: forbidden.filter((name) => document.querySelector(name)),
          scripts: document.scripts.length,
          images: [...document.images].map((each) => each.src.slice(0, 22)),
          handlers: [...document.querySelectorAll("*")].flatMap((each) =>
            each.getAttributeNames().filter((name) => name.startsWith("on"))),
          marked: document.documentElement.hasAttribute("data-hacked"),
          ready: document.documentElement.dataset.ready,
        })""",
        FORBIDDEN,
    )
    assert found["ready"] == "yes"
    assert not found["marked"], MARK
    assert found["forbidden"] == []
    assert (found["scripts"], found["handlers"]) == (3, [])
    # The image that was given, and pictures of heads, which the page draws itself: none of a token.
    assert set(found["images"]) <= {"data:image/png;base64,"}
    assert len(found["images"]) >= image


def visit(frame, view, image):
    """Opens a view, shows all that opens in it, and looks around in it a little."""
    frame.locator(f"#tab-{view}").click()
    panel = frame.locator(f"#view-{view}")
    panel.wait_for(state="visible")
    everything_is_text(frame, image)
    frame.evaluate(f"document.querySelectorAll('#view-{view} details').forEach((each) => (each.open = true))")
    panel.hover(position={"x": 150, "y": 150})
    for key in ("Tab", "Tab", "ArrowDown", "ArrowRight", "Enter"):
        panel.press(key) if key == "Tab" else frame.locator(":focus").first.press(key)
    everything_is_text(frame, image)


VIEWS = ["sentence", "heads", "map", "arithmetic", "whatif", "context", "patches"]


@pytest.mark.parametrize("view", VIEWS)
def test_hostile_tokens_stay_text_in_every_view(open_page, view):
    page = open_page(page_of("page"))
    page.wait_for_selector("[data-ready]", state="attached")
    assert [tab.get_attribute("id") for tab in page.locator("[role=tab]").all()] == [f"tab-{name}" for name in VIEWS]
    visit(page, view, image=view == "patches")


def test_title_and_model_stay_text(open_page):
    page = open_page(page_of("page"))
    page.wait_for_selector("h1")
    title = visible_part(shown(TITLE))
    assert visible_part(page.title()) == title
    assert visible_part(page.locator("h1").text_content()) == title
    assert visible_part(page.locator(".model").text_content()) == title
    assert page.locator(".notes").text_content() == f"a note {SCRIPT}"


def test_every_token_is_shown_as_it_is(open_page):
    page = open_page(page_of("page"))
    page.locator("#tab-sentence").click()
    texts = set()
    for query in range(0, len(TOKENS), 8):  # of a long text some tokens around the query are there
        page.evaluate(f"location.hash = encodeURIComponent(JSON.stringify({{query: {query}}}))")
        page.wait_for_timeout(100)
        texts |= set(page.eval_on_selector_all("#view-sentence .token", "all => all.map((each) => each.textContent)"))
    beginnings = {visible_part(text)[:12] for text in texts}
    for name, token in HOSTILE.items():
        assert visible_part(shown(token))[:12] in beginnings, name
    nothing = ("Cc", "Cf", "Zl", "Zp", "Zs")
    unseen = [text for text in texts if all(unicodedata.category(character) in nothing for character in text)]
    assert not unseen, "a token that cannot be seen is written in another way"


@pytest.mark.parametrize("view", VIEWS[:5])
def test_a_notebooks_frame_shows_the_same(open_page, view):
    page = open_page(page_of("frame"))
    (frame,) = page.frames[1:]
    frame.wait_for_selector("[data-ready]", state="attached")
    assert frame.evaluate("location.href") == "about:srcdoc"
    visit(frame, view, image=False)
    assert page.locator("body > *").count() == 1
    assert page.evaluate(f"document.documentElement.hasAttribute('{MARK}')") is False
    assert page.title() == "notebook"


@pytest.mark.parametrize("half", [{"title": "a \ud83d"}, {"model": "\ude00 b"}, {}])
def test_halves_of_characters_are_no_reason_not_to_write_a_page(half):
    """Without a title the page takes its tokens: here one of them is half a character."""
    with regard.watch(model := Attends()) as seen:
        model(torch.randn(2, 8))
    seen.label(["\ud83d", "b"])
    assert seen.to_html(**half).count("<script") == 3
