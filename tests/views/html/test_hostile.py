"""Whatever stands in a token, a title, a name or a path stays text, in the page and in a notebook's frame."""

import re
import unicodedata

import pytest
import torch
from PIL import Image

import regard
from regard.lens import AttentionMap
from regard.lens.effects.effects import Effects
from regard.lens.text.contextual import ContextualCosines, ContextualPart, ContextualVectors, ContextualWord

RUN = "document.documentElement.setAttribute('data-hacked','yes')"
SCRIPT = "</script><img src=x onerror=alert(1)>"
TOKENS = [
    SCRIPT,
    f'<img src=x onerror="{RUN}">',
    "<img src=http://127.0.0.1:9/x.png>",
    f"<svg onload={RUN}><style>*{{display:none}}</style></svg>",
    f'<iframe srcdoc="<script>parent.{RUN}</script>">',
    f"\"' autofocus onfocus={RUN} x='\"",
    '"></iframe><img src=x onerror=alert(1)>',
    f"</title></style></template><script>{RUN}</script>",
    "${alert(1)} {{constructor.constructor('alert(1)')()}} $title $script",
    "<!--",
    "--!>",
    "]]><![CDATA[",
    "&lt;&#60;img&#62;",
    "=cmd|'/c calc'!A1",
    "__proto__",
    "constructor",
    "👩\u200d👩\u200d👧\u200d👦",
    "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "e\u0301\u0323" + "\u0336" * 40,
    "\u0301",
    "السلام، عليكم؟",
    "שלום! (עולם)",
    "abc\u202etxt.exe\u202c",
    "\u2067right\u2066left\u2069\u2069\u200e\u200f",
    "a\x00b",
    "\x01\x07\x08\x1b[31mred\x7f\x85",
    "a\r\nb\nc\u2028d\u2029e",
    "\t  two  spaces  ",
    "\ud83d",  # half a character
    "\ude00x",
    "\uffff\ufffe",
    "\ue000\U0010ffff",
    "漢" * 2_000,
    "",
    " ",
    "\u200b\u200c\u2060\ufeff",
    "riv\u200ber\u00ad",
]
"""If one ran, data-hacked stood on the root element, or a dialog opened."""

WHOLE = [token for token in TOKENS if not any("\ud800" <= c <= "\udfff" for c in token)]
TITLE = " ".join(token[:60] for token in WHOLE)
FORBIDDEN = ["iframe", "object", "embed", "link", "base", "audio", "video", "template", "body style", "body meta"]
"""What a token could become, and no page of ours is made of; its images and scripts are counted."""
VIEWS = ["sentence", "heads", "effect", "map", "arithmetic", "whatif", "context", "patches"]


def watched(tokens, *paths):
    """Attentions whose tokens and paths are hostile."""
    recording = regard.Recording()
    for layer, path in enumerate(paths):
        facts = {"shape": (1, 2, len(tokens), len(tokens)), "mask": None, "kernel": "", "kind": "self", "layer": layer}
        recording.add(path, AttentionMap(*torch.randn(3, 1, 2, len(tokens), 8)), **facts)
    recording.label(tokens)
    recording.add_note(f"a note {SCRIPT}")
    return recording


def hostile_context():
    """Words in context that no tokenizer would make."""
    cosines = [ContextualCosines(1, [1.0, 0.5])]
    points = [[[(float(i), i % 7.0), (i % 5.0, float(i))]] * 2 for i in range(len(WHOLE))]
    words = [ContextualWord(word, cosines, own) for word, own in zip(WHOLE, points, strict=True)]
    parts = [part for i, word in enumerate(WHOLE) for part in (ContextualPart(word, i), ContextualPart(SCRIPT, None))]
    return ContextualVectors([parts, parts], words, words, len(words), [0.5, 0.5], 1)


def hostile_effects():
    """Effects of heads and of tokens, whose names are hostile."""
    facts = {"metric": SCRIPT, "ablation": SCRIPT, "method": "both", "paths": (SCRIPT, "<!--"), "names": (SCRIPT, "b")}
    facts |= {"tokens": (tuple(TOKENS),), "baseline": torch.ones(1), "notes": (SCRIPT,), "looked_at_name": SCRIPT}
    heads, tokens = torch.randn(3, 1, 2, 2), torch.randn(3, 1, len(TOKENS))
    shapes = (("heads", heads), ("tokens", tokens))
    return [Effects(over, values=t[0], estimates=t[1], looked_at=t[2], **facts) for over, t in shapes]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The page, and a notebook's page with it in a frame."""
    folder, recording = tmp_path_factory.mktemp("hostile"), watched(TOKENS, SCRIPT, "<!--", "0")
    page, notebook = folder / "page.html", folder / "notebook.html"
    more = {"image": Image.new("RGB", (12, 12), "teal"), "patches": (21, 4, 4), "context": hostile_context().to_dict()}
    recording.to_html(page, title=TITLE, model=TITLE, effects=hostile_effects(), **more)
    notebook.write_text(f"<!doctype html><meta charset=utf-8><title>notebook</title>{recording._repr_html_()}", "utf-8")
    return page, notebook


def shown(token):
    """How the page writes a token, except that a view may cut it: see visible() in dom.js."""
    return token.encode("utf-16", "surrogatepass").decode("utf-16", "replace") or "∅"


def visible_part(text):
    """What is left of a text without what is written in other ways, or not at all: its letters, marks and signs."""
    text = re.sub(r"⟨[0-9a-f]+⟩|[⏎⇥␣∅…\ufffd]", "", text)
    return "".join(c for c in text if unicodedata.category(c)[0] not in "CZ")


def assert_everything_is_text(frame, image):
    """Nothing in a document but what the page itself makes."""
    found = frame.evaluate(
        """(forbidden) => ({
          forbidden: forbidden.filter((name) => document.querySelector(name)),
          scripts: document.scripts.length,
          images: [...document.images].map((each) => each.src.slice(0, 22)),
          handlers: [...document.querySelectorAll("*")].flatMap((each) =>
            each.getAttributeNames().filter((name) => name.startsWith("on"))),
          marked: document.documentElement.hasAttribute("data-hacked"),
        })""",
        [*FORBIDDEN, "body > title"],
    )
    # The image that was given, and pictures of heads, which the page draws itself: none of a token.
    images = found.pop("images")
    assert set(images) <= {"data:image/png;base64,"}
    assert len(images) >= image
    assert found == {"forbidden": [], "scripts": 3, "handlers": [], "marked": False}


def visit(frame, view):
    """Opens a view, shows all that opens in it, and looks around in it a little."""
    frame.locator(f"#tab-{view}").click()
    panel = frame.locator(f"#view-{view}")
    panel.wait_for(state="visible")
    assert_everything_is_text(frame, view == "patches")
    frame.evaluate(f"document.querySelectorAll('#view-{view} details').forEach((each) => (each.open = true))")
    panel.hover(position={"x": 150, "y": 150})
    for key in ("Tab", "Tab", "ArrowDown", "ArrowRight", "Enter"):
        panel.press(key) if key == "Tab" else frame.locator(":focus").first.press(key)
    assert_everything_is_text(frame, view == "patches")


def test_hostile_tokens_title_and_model_stay_text_in_every_view(open_page, pages):
    page = open_page(pages[0])
    title = visible_part(shown(TITLE))
    texts = [page.title(), page.locator("h1").text_content(), page.locator(".model").text_content()]
    assert [visible_part(text) for text in texts] == [title] * 3
    assert page.locator(".notes").text_content() == f"a note {SCRIPT}"
    assert [tab.get_attribute("id") for tab in page.locator("[role=tab]").all()] == [f"tab-{name}" for name in VIEWS]
    for view in VIEWS:
        visit(page, view)


def test_every_token_is_shown_as_it_is(open_page, pages):
    page = open_page(pages[0], {"view": "sentence"})
    texts = set()
    for query in range(0, len(TOKENS), 8):  # of a long text some tokens around the query are there
        page.evaluate(f"location.hash = encodeURIComponent(JSON.stringify({{query: {query}}}))")
        page.wait_for_selector(f'#view-sentence .queries [data-index="{query}"][data-mark="focus"]')
        texts |= set(page.eval_on_selector_all("#view-sentence .token", "all => all.map((each) => each.textContent)"))
    beginnings = {visible_part(text)[:12] for text in texts}
    assert [token for token in TOKENS if visible_part(shown(token))[:12] not in beginnings] == []
    nothing = ("Cc", "Cf", "Zl", "Zp", "Zs")
    unseen = [text for text in texts if all(unicodedata.category(character) in nothing for character in text)]
    assert not unseen, "a token that cannot be seen is written in another way"


def test_a_notebooks_frame_shows_the_same(open_page, pages):
    page = open_page(pages[1], ready="iframe")
    (frame,) = page.frames[1:]
    frame.wait_for_selector("[data-ready]", state="attached")
    visit(frame, "sentence")
    assert page.locator("body > *").count() == 1
    assert page.evaluate("document.documentElement.hasAttribute('data-hacked')") is False
    assert page.title() == "notebook"


@pytest.mark.parametrize("half", [{"title": "a \ud83d"}, {"model": "\ude00 b"}, {}])
def test_halves_of_characters_are_no_reason_not_to_write_a_page(half):
    """Without a title the page takes its tokens: here one of them is half a character."""
    assert watched(["\ud83d", "b"], "0").to_html(**half).count("<script") == 3


def test_no_view_is_wider_than_a_phone(open_page, pages):
    page = open_page(pages[0], width=360)
    for view in VIEWS:
        page.locator(f"#tab-{view}").click()
        assert page.locator(f"#view-{view}").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
