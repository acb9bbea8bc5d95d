"""How the library's objects show themselves: short at a prompt, as HTML in a notebook, and as `print` has them."""

import os
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import pytest
import torch

import regard
import terminals
from lens.explained import pretrained
from regard import mask
from regard.check import Report
from regard.lens.effects.table import effects_table
from regard.notebook import TextPicture, html_table, preformatted
from regard.views.terminal.explanation import draw
from views.html.test_hostile import SCRIPT, TOKENS, WHOLE, hostile_effects, watched
from views.made_effects import head_effects
from views.recordings import random_map, river
from weights import RIVER, minilm

MAX_REPR = 400
"""Characters: a few lines of a prompt."""

MAX_HTML_BYTES = 12_000
VOID = {"img", "br"}


@cache
def explanation():
    return regard.explain(RIVER, "bank", minilm())


@cache
def objects():
    q = torch.randn(1, 2, 30, 16)
    return {
        "Explanation": explanation(),
        "AttentionRow": explanation().row,
        "InputVectors": explanation().input,
        "Report": Report("mine", "wrong", notes=("a note",)),
        "Steps": regard.steps(q, q, q, mask.causal()),
        "Mask": mask.causal() & (mask.window(4) | mask.first(2)),
        "Plan": regard.plan(q, q, q),
        "Recording": river(),
        "AttentionMap": river()["blocks.0.attention"],
        "Effects": head_effects(),
        "Pretrained": minilm(),
        "AttentionPage": regard.see(RIVER, model=minilm(), layer=0),
    }


SHOWN = sorted(["Explanation", "Report", "Steps", "Mask", "Plan", "AttentionMap", "Effects", "Pretrained"])
"""Those whose HTML is a text, a table or a picture, and no page."""


class Markup(HTMLParser):
    """The elements of a piece of HTML, its attributes and its text; every element that is opened is closed."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.text, self.cells, self._open = set(), set(), "", [], []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if self._open and self._open[-1] in ("th", "td"):
            self.cells.append(data)


@pytest.mark.parametrize(
    "name", [*SHOWN, "AttentionRow", "InputVectors", "Recording", "AttentionPage"], ids=lambda name: name
)
def test_at_a_prompt_every_object_is_short(name):
    assert len(repr(objects()[name])) < MAX_REPR
    assert "tensor(" not in repr(objects()[name])


@pytest.mark.parametrize("name", SHOWN)
def test_the_html_of_an_object_is_small_and_has_neither_a_script_nor_a_background(name):
    """So that dark notebooks can show it."""
    html = objects()[name]._repr_html_()
    markup = Markup(html)
    assert len(html) < MAX_HTML_BYTES
    assert markup.tags <= {"pre", "span", "b", "div", "table", "thead", "tbody", "tr", "th", "td", "img"}
    assert markup.attributes <= {"style", "src", "alt"}
    assert [word for word in ("background", "#000000") if word in html.replace("background: none", "")] == []


PROOF = ("1. The tokens, and what goes in", "river     0.8468", "4. The proof", "The proof holds")


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (explanation, PROOF),
        (lambda: objects()["Steps"], ["masked", "1 x 2 x 30 x 30", "-inf to"]),
        (lambda: mask.documents([0, 0, 1]), ["3 queries (down) x 3 keys (across)"]),
        (mask.causal, ["8 queries (down) x 8 keys (across)"]),
        (lambda: mask.padding([20, 3]), ["20 keys (across)"]),
    ],
)
def test_the_html_of_an_object_says_what_its_text_does(make, parts):
    text = Markup(make()._repr_html_()).text
    assert [part for part in parts if part not in text] == []


def test_the_html_of_a_report_is_its_text():
    assert Markup(objects()["Report"]._repr_html_()).text == str(objects()["Report"])


def test_what_print_shows_of_an_explanation_is_one_sentence():
    assert str(explanation()).startswith("'bank' gives 'river' 0.8468 in layer 0 head 4 of ")


def test_what_print_shows_of_a_model_is_its_whole_config():
    assert "max_positions=512" in str(minilm())
    assert repr(minilm()) == (
        "Pretrained('sentence-transformers/all-MiniLM-L6-v2', encoder, 6 layers of 12 heads, d_model 384, "
        "2 ignored weights)"
    )


@pytest.mark.parametrize(
    ("family", "layers", "positions"),
    [
        ("gpt2", "3 layers of 3 heads", "learned, at most 64"),
        ("bart", "3 layers of 4 heads, decoder 2 of 2", "learned, at most 64"),
        ("t5", "3 layers of 3 heads, decoder 2 of 3", "t5"),
    ],
)
def test_a_model_of_each_kind_shows_its_sizes(family, layers, positions):
    model = pretrained(family)
    cells = Markup(model._repr_html_()).cells
    assert cells[cells.index("layers") + 1] == layers
    assert cells[cells.index("positions") + 1] == positions
    assert cells[cells.index("parameters") + 1] == f"{sum(p.numel() for p in model.model.parameters()):,}"


def test_show_is_what_regard_explain_prints():
    assert explanation().show() == terminals.drawn(draw, explanation(), max_keys=20).rstrip("\n")


def test_show_lists_as_many_keys_as_wanted():
    few, all_ = explanation().show(max_keys=4), explanation().show(max_keys=None)
    assert "9 other tokens are not shown." in few  # 14, without the word and four keys
    assert "are not shown" not in all_


def test_show_breaks_lines_at_the_width():
    assert max(map(len, explanation().show(width=60).split("\n"))) <= 60


@pytest.mark.parametrize("width", [0, -1, 10**6])
def test_show_refuses_a_width_that_no_console_has(width):
    with pytest.raises(ValueError, match=rf"width={width}: a number of columns, from 1"):
        explanation().show(width=width)


def test_the_html_of_effects_has_the_strongest_and_the_sentence_that_sums_them_up():
    effects = head_effects()
    text = " ".join(Markup(effects._repr_html_()).text.split())
    assert all(each.name in text for each in effects.top(10))
    assert " ".join(effects_table(effects, 10, None).split("\n")[-2].split()) in text


def test_a_picture_of_a_mask_is_shown_as_it_prints():
    picture = mask.causal().show(3, 3)
    assert repr(picture) == str(picture) == f"{picture}"
    assert "\n2  ██████" in repr(picture)


def test_a_picture_of_a_mask_is_an_ordinary_text():
    picture = mask.causal().show(2, 2)
    assert picture == str.__str__(picture)
    assert hash(picture) == hash(str(picture))
    assert picture.splitlines()[0] == "causal()   2 queries (down) x 2 keys (across)"


def test_a_map_without_weights_to_show_has_no_html():
    empty = random_map(0, 4)
    assert empty._repr_html_() is None


@pytest.mark.parametrize("token", WHOLE[:14])
def test_a_hostile_text_stays_text(token):
    for html in (preformatted(token), TextPicture(token)._repr_html_(), html_table(token, [(token, token)], (token,))):
        assert Markup(html).tags <= {"pre", "div", "b", "table", "thead", "tbody", "tr", "th", "td"}


def test_hostile_tokens_stay_text_in_every_object():
    explained = explanation()
    texts = replace(explained.keys, tokens=[SCRIPT] * 14)
    tampered = replace(explained, text=SCRIPT, queries=texts, keys=texts, word=replace(explained.word, text=SCRIPT))
    recording = watched(TOKENS, SCRIPT)
    report = Report(SCRIPT, "wrong", notes=(SCRIPT,), reasons=(SCRIPT,))
    for each in (tampered, report, recording[SCRIPT], *hostile_effects()):
        markup = Markup(each._repr_html_())
        assert markup.tags <= {"pre", "span", "b", "img"}
        assert markup.attributes <= {"style", "src", "alt"}


def test_see_writes_no_file_unless_one_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = regard.see(RIVER, model=minilm(), layer=0)
    assert (page.path, page.to_dict()["path"], list(tmp_path.iterdir())) == (None, None, [])
    with pytest.raises(regard.InputError, match=r"this page is in no file: page\.to_html"):
        os.fspath(page)


def test_a_page_that_see_returns_can_be_written(tmp_path):
    page = objects()["AttentionPage"]
    assert page.to_html(tmp_path / "page.html") == (tmp_path / "page.html").read_text("utf-8") == page.text


def test_a_page_that_see_returns_shows_itself_in_a_frame():
    html = objects()["AttentionPage"]._repr_html_()
    assert html.startswith('<div class="regard-frame"')
    assert html.count("<iframe srcdoc=") == 1
    assert html.count('<img class="regard-static" src="data:image/svg+xml;base64,') == 1
