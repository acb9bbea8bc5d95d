"""An image in a browser: the heat of its patches lies where the weights of a model that writes about it say."""

import re

import pytest
import torch

import regard
from captioners import image, random_captioner
from views.html.decoded import decode
from views.html.rows import assert_heat, assert_weights, heat_is_there, weights_by

SIDE = 4
TOKENS = ["[class]", *(f"{row},{column}" for row in range(SIDE) for column in range(SIDE))]
GRID = {"first": 1, "rows": SIDE, "columns": SIDE, "stride": SIDE}
CROSS, OWN = "decoder.blocks.0.cross_attention", "decoder.blocks.0.attention"


@pytest.fixture(scope="module")
def captioner(tmp_path_factory):
    """A model's recording of a text, and its page.

    The text is as long as the image has tokens, so that only the kind can tell them apart.
    """
    folder = tmp_path_factory.mktemp("captioner")
    random_captioner(folder, encoder={"image_size": 8, "patch_size": 2})
    pretrained = regard.load(folder)
    pixels, ids = pretrained.pixel_values(image()), torch.arange(len(TOKENS))[None]
    with torch.no_grad(), regard.watch(pretrained.model) as recording:
        pretrained.model(pixels, ids)
    recording.label([f"w{i}" for i in ids[0].tolist()], pretrained.config.patches.token_names)
    recording.to_html(folder / "page.html", image=image())
    return recording, folder / "page.html"


@pytest.fixture
def show(open_page, captioner):
    """A function that opens the view of a head and a query: the page when the heat is there, and the map."""

    def call(name, head, query, **options):
        recording, path = captioner
        state = {"view": "patches", "attention": list(recording).index(name), "head": head, "query": query}
        page = open_page(path, state, **options)
        heat_is_there(page)
        return page, recording[name][0, head]

    return call


def listed(page):
    """The weights in the list, by key."""
    return weights_by(page, ".patches tbody", "token")


def place(page, row, column):
    """The middle of a patch in the window."""
    box = page.locator(".grid").bounding_box()
    return box["x"] + box["width"] * (column + 0.5) / SIDE, box["y"] + box["height"] * (row + 0.5) / SIDE


def test_the_image_is_what_cross_attention_and_the_encoder_look_at(captioner, node):
    recording, path = captioner
    page = decode(node, path.read_text())
    sees = {path for path in recording if "encoder" in path or "cross" in path}
    for facts in page.facts["attentions"]:
        is_encoder = "encoder" in facts["path"]
        assert facts["key_patches"] == (GRID if facts["path"] in sees else None)
        assert facts["query_patches"] == (GRID if is_encoder else None)
    # Said by hand, a text of as many tokens as patches does not take the image's place either.
    said = decode(node, recording.to_html(image=image(), patches=(4, 4)))
    assert said.facts["attentions"] == page.facts["attentions"]


@pytest.mark.parametrize(("name", "query", "dark"), [("encoder.blocks.0.attention", 0, False), (CROSS, 7, True)])
def test_heat_lies_where_the_weights_say(show, name, query, dark):
    page, weights = show(name, 2, query, dark=dark)
    assert_heat(page, weights[query, 1:], (SIDE, SIDE), dark=dark)


def test_the_list_and_the_pointer_say_pythons_weights_of_a_patch(show):
    page, m = show("encoder.blocks.0.attention", 2, 5)
    assert_weights(listed(page), m[5])
    places = [divmod(key - 1, SIDE) for key in listed(page)]
    names = [f"row {row}, column {column}" if row >= 0 else "[class]" for row, column in places]
    assert page.locator(".patches tbody tr th").all_text_contents() == names
    page.mouse.move(*place(page, 1, 2))
    readout = re.match(r"Patch at row 1, column 2: .*?([\d.]+) %", page.locator(".readout").text_content())
    assert float(readout[1]) == pytest.approx(100 * float(m[5, 1 + SIDE + 2]), abs=0.11)
    sums = [float(number) for number in re.findall(r"([\d.]+) %", page.locator(".rest").text_content())]
    assert sums == pytest.approx([100 * float(m[5, 1:].sum()), 100 * float(m[5, 0])], abs=0.2)


def test_the_list_says_what_a_word_looks_at_and_a_click_moves_no_word(show):
    page, m = show(CROSS, 2, 5)
    assert_weights(listed(page), m[5])
    page.mouse.click(*place(page, 0, 0))
    assert page.locator(".patches .chosen").text_content().startswith("Query: token 5 'w")
    assert page.locator(".readout").get_attribute("data-token") == "1"


def test_patches_are_chosen_by_click_by_arrows_and_the_class_token_by_its_button(show):
    page, m = show("encoder.blocks.1.attention", 1, 1, width=360)

    def assert_chosen(name, query):
        assert page.locator(".patches .chosen").text_content() == f"Query: {name}"
        assert_weights(listed(page), m[query])

    page.mouse.click(*place(page, 3, 3))
    assert_chosen("patch at row 3, column 3", 16)
    page.focus(".patches .grid")
    for key in ("ArrowDown", "ArrowUp", "ArrowLeft"):  # below the last row there is none
        page.keyboard.press(key)
    assert_chosen("patch at row 2, column 2", 1 + 2 * SIDE + 2)
    page.click(".patches .others button")
    assert page.locator(".patches .others button").get_attribute("aria-pressed") == "true"
    assert_chosen("token 0 '[class]'", 0)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_attention_to_something_else_says_so_and_leads_to_the_image(open_page, captioner):
    recording, path = captioner
    state = {"view": "patches", "attention": list(recording).index(OWN), "query": 1}
    page = open_page(path, state, ready=".patches .missing button")
    assert "No token of this attention is known to be a patch" in page.locator(".patches .missing").text_content()
