"""A model that writes about an image: its recording, and the page whose heat lies on what the text looks at."""

import json
from urllib.parse import quote

import pytest
import torch

import regard
from captioners import image, random_captioner
from views.html.decoded import opened

PATCHES = ["[class]", *(f"{row},{column}" for row in range(4) for column in range(4))]
LAYERS = (3, 2)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """The recording of a text as long as the image has tokens, so that only the kind can tell them apart."""
    folder = tmp_path_factory.mktemp("captioner")
    random_captioner(folder, encoder={"image_size": 8, "patch_size": 2})
    pretrained = regard.load(folder)
    ids = torch.randint(61, (1, len(PATCHES)))
    with torch.no_grad(), regard.watch(pretrained.model) as recording:
        pretrained.model(pretrained.pixel_values(image()), ids)
    recording.label([f"w{i}" for i in ids[0].tolist()], pretrained.config.patches.token_names)
    return pretrained, recording


def test_the_text_looks_at_the_patches(seen):
    pretrained, recording = seen
    assert pretrained.config.patches.token_names == PATCHES
    kinds = [(entry.stack, entry.kind) for entry in map(recording.entry, recording)]
    assert kinds == [("encoder.blocks", "self")] * 3 + [("decoder.blocks", "self"), ("decoder.blocks", "cross")] * 2
    cross = recording.subset("cross")
    for path in cross:
        m = cross[path]
        assert m.shape == (1, 4, len(PATCHES), len(PATCHES))
        assert m.error < 1e-5
        assert list(m.tokens[1]) == PATCHES
        assert m.tokens[0][0].startswith("w")
    assert list(recording["encoder.blocks.0.attention"].tokens[0]) == PATCHES


def test_what_was_seen_is_what_transformers_computed(tmp_path):
    theirs = random_captioner(tmp_path)
    theirs.set_attn_implementation("eager")
    pretrained = regard.load(tmp_path)
    pixels, ids = pretrained.pixel_values(image()), torch.randint(61, (1, 5))
    with torch.no_grad(), regard.watch(pretrained.model) as recording:
        pretrained.model(pixels, ids)
    with torch.no_grad():
        expected = theirs(pixel_values=pixels, decoder_input_ids=ids, output_attentions=True)
    for layer, weights in enumerate(expected.cross_attentions):
        m = recording[f"decoder.blocks.{layer}.cross_attention"]
        assert (m.dense() - weights).abs().max() < 1e-5
    assert len(expected.cross_attentions) == 2


def test_a_generation_is_one_map(seen):
    pretrained, _ = seen
    with regard.watch(pretrained.model) as recording:
        ids = regard.generate(pretrained, pretrained.pixel_values(image())[0], max_new_tokens=6, stop=())
    cross = recording["decoder.blocks.1.cross_attention"]
    assert cross.shape == (1, 4, len(ids) - 1, len(PATCHES))


def test_the_image_is_what_cross_attention_and_the_encoder_look_at(seen, node):
    _, recording = seen
    (page,) = opened(node, recording.to_html(image=image()))
    facts = page.facts["image"]
    paths = [page.facts["attentions"][number]["path"] for number in facts["attentions"]]
    assert (facts["rows"], facts["columns"], facts["first_patch"]) == (4, 4, 1)
    assert sorted(paths) == sorted(path for path in recording if "encoder" in path or "cross" in path)
    # Said by hand, a text of as many tokens as patches does not take the image's place either.
    (again,) = opened(node, recording.to_html(image=image(), patches=(4, 4)))
    assert again.facts["image"] == facts


def test_the_page_shows_what_a_word_looks_at(open_page, seen, tmp_path):
    _, recording = seen
    path = tmp_path / "page.html"
    recording.to_html(path, image=image())
    number = list(recording).index("decoder.blocks.0.cross_attention")
    page = open_page(path, hash=quote(json.dumps({"view": "patches", "attention": number, "head": 2, "query": 5})))
    page.wait_for_function("document.querySelector('.patches img').naturalWidth > 0")
    exact = recording["decoder.blocks.0.cross_attention"][0, 2, 5]
    rows = page.locator(".patches tbody tr")
    assert rows.count() > 3
    for i in range(rows.count()):
        key, weight = int(rows.nth(i).get_attribute("data-key")), float(rows.nth(i).get_attribute("data-weight"))
        assert weight == pytest.approx(float(exact[key]), abs=1e-3)
    # The query is a word; a click on a patch asks for its weight and moves no query.
    assert page.locator(".patches .chosen").text_content().startswith("Query: token 5 'w")
    page.locator(".patches .grid").click(position={"x": 5, "y": 5})
    assert page.locator(".patches .chosen").text_content().startswith("Query: token 5 'w")
    assert page.locator(".readout").get_attribute("data-key") == "1"
    own = list(recording).index("decoder.blocks.0.attention")
    page = open_page(path, hash=quote(json.dumps({"view": "patches", "attention": own, "head": 0, "query": 1})))
    page.wait_for_selector(".patches .missing button")
    assert "not the patches of the image" in page.locator(".patches .missing").text_content()
