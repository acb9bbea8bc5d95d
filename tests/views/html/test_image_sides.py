"""Which side of an attention lies over the image in a browser: the keys, or the queries where only they are patches."""

import pytest
import torch
from PIL import Image

import regard
from views.html.rows import assert_heat, assert_weights, heat_is_there, read, state_of, weights_by
from vision_models import A, B, UNetBlock, pixels, plain_llava, prompt, run

PICTURE = Image.linear_gradient("L").resize((24, 36))
WORDS = ["<bos>", "a", "red", "cat"]
LANGUAGE = "model.language_model.layers.0.self_attn"


def sharp(model):
    """Weights that differ clearly."""
    for name, parameter in model.named_parameters():
        if name.endswith(("q_proj.weight", "q.weight")):
            parameter.data.normal_(std=2.0)
    return model


@pytest.fixture(scope="module")
def unet(tmp_path_factory):
    """A UNet's recording, and its page."""
    latents, text = torch.randn(1, 8, 6, 4), torch.randn(1, len(WORDS), 8)
    seen = run(sharp(UNetBlock()), hidden_states=latents, encoder_hidden_states=text)
    seen.label([f"latent{i}" for i in range(24)], WORDS)
    return seen, written(seen, tmp_path_factory)


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    """The recording of a language model that reads an image behind two words, and its page."""
    seen = run(sharp(plain_llava()), input_ids=[prompt(B, 16, A)], pixel_values=pixels())
    return seen, written(seen, tmp_path_factory)


def written(seen, tmp_path_factory):
    """The page of a recording that was saved and loaded."""
    folder = tmp_path_factory.mktemp("sides")
    seen.save(folder / "seen.safetensors")
    regard.Recording.load(folder / "seen.safetensors").to_html(folder / "page.html", image=PICTURE)
    return folder / "page.html"


@pytest.fixture
def show(open_page):
    """A function that opens a page at an attention: the page when the heat is there."""

    def call(recorded, path, **state):
        seen, file = recorded
        page = open_page(file, {"view": "patches", "attention": list(seen).index(path), "head": 0, **state})
        heat_is_there(page)
        return page, seen[path][0, 0].double()

    return call


@pytest.mark.parametrize("query", [7, 18])
def test_the_first_patch_of_a_language_model_is_its_first_image_token(show, llava, query):
    """Of a patch and of a word."""
    page, m = show(llava, LANGUAGE, query=query)
    assert_heat(page, m[query, 2:18], (4, 4))
    names = dict(zip(map(int, read(page, ".patches tbody tr", "token")), rows(page), strict=True))
    assert all(names[key] == f"row {(key - 2) // 4}, column {(key - 2) % 4}" for key in names if 2 <= key < 18)
    assert all("row" not in name for key, name in names.items() if not 2 <= key < 18)
    others = [int(number) for number in read(page, ".patches .others button", "chosen")]
    assert others == [0, 1, 18]


def rows(page):
    return page.locator(".patches tbody th").all_text_contents()


def test_a_word_shows_which_patches_take_from_it(show, unet):
    page, m = show(unet, "cross", query=5)
    assert page.locator(".patches .others button").all_text_contents() == WORDS
    for key in (2, 3):
        page.locator(".patches .others button").nth(key).click()
        assert page.locator(".patches .chosen").text_content() == f"Key: token {key} '{WORDS[key]}'"
        assert_weights(weights_by(page, ".patches tbody", "token"), m[:, key])
    assert_heat(page, m[:, 3], (6, 4))
    # A patch is a query: choosing one changes neither the word nor the heat.
    page.mouse.move(0, 0)
    page.focus(".patches .grid")
    page.keyboard.press("ArrowRight")
    assert {name: state_of(page)[name] for name in ("query", "key")} == {"query": 6, "key": 3}
    assert float(page.locator(".readout").get_attribute("data-weight")) == pytest.approx(float(m[6, 3]), abs=1e-3)


def test_self_attention_of_latents_shows_the_row_of_a_patch(show, unet):
    page, m = show(unet, "own", query=9)
    assert page.locator(".patches .chosen").text_content() == "Query: patch at row 2, column 1"
    assert_heat(page, m[9], (6, 4))
