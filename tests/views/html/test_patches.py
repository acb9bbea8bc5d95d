"""The image in a browser: the heat of a vision transformer's patches lies where its weights say, and a text's, too."""

import re

import pytest
import torch
from PIL import Image, ImageDraw
from transformers import ViTConfig, ViTModel

import regard
from captioners import image, random_captioner
from views.html.decoded import decode
from views.html.rows import painted, weights_by

SIZE, PATCH = 56, 8
SIDE = SIZE // PATCH

CENTRES = """(canvas, side) => {
  const { data, width, height } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return Array.from({ length: side * side }, (_, i) => {
    const x = Math.floor(((i % side) + 0.5) * width / side);
    const y = Math.floor((Math.floor(i / side) + 0.5) * height / side);
    return [...data.slice((y * width + x) * 4, (y * width + x) * 4 + 4)];
  });
}"""


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    """A small random vision transformer that was watched on a drawing, and its page."""
    torch.manual_seed(1)
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    model = ViTModel(ViTConfig(image_size=SIZE, patch_size=PATCH, initializer_range=0.25, **sizes)).eval()
    picture = Image.new("RGB", (SIZE, SIZE), "skyblue")
    ImageDraw.Draw(picture).ellipse((10, 20, 35, 50), fill="firebrick")
    pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    with torch.no_grad(), regard.watch(model) as recording:
        model(pixels.reshape(1, SIZE, SIZE, 3).permute(0, 3, 1, 2) / 127.5 - 1)
    recording.label(["[CLS]", *(f"patch {i}" for i in range(SIDE**2))])
    path = tmp_path_factory.mktemp("vit") / "page.html"
    recording.to_html(path, image=picture)
    return recording, path


@pytest.fixture
def show(open_page):
    """A function that opens the view of a page; the heat is there."""

    def call(path, attention, head, query, **options):
        page = open_page(path, {"view": "patches", "attention": attention, "head": head, "query": query}, **options)
        page.wait_for_function("document.querySelector('.patches img').naturalWidth > 0")
        page.wait_for_function("(heat => heat.width > 0 && heat.height > 100)(document.querySelector('.heat'))")
        painted(page)
        return page

    return call


def listed(page):
    """The weights in the list, by key."""
    return weights_by(page, ".patches tbody", "key")


def query(page):
    return page.locator(".patches .chosen").text_content()


def place(page, row, column):
    """The middle of a patch in the window."""
    box = page.locator(".grid").bounding_box()
    return box["x"] + box["width"] * (column + 0.5) / SIDE, box["y"] + box["height"] * (row + 0.5) / SIDE


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("attention", "head", "query"), [(0, 3, 17), (1, 0, 0)])
def test_heat_lies_where_the_weights_say(show, vit, dark, attention, head, query):
    recording, path = vit
    weights = recording[recording.layers[attention]][0, head, query][1:].double()
    page = show(path, attention, head, query, dark=dark)
    pixels = torch.tensor(page.locator(".heat").evaluate(CENTRES, SIDE), dtype=torch.float64)
    assert pixels[:, 3].min() > 0
    light = pixels[:, :3] @ torch.tensor([0.2126, 0.7152, 0.0722], dtype=torch.float64)
    heat = light if dark else -light
    assert int(heat.argmax()) == int(weights.argmax())
    # Light falls with the square root of the weight: no patch stands in another's place.
    roots = (weights / weights.max()).sqrt()
    assert torch.corrcoef(torch.stack([heat, roots]))[0, 1] > 0.98
    clear = roots[:, None] - roots[None] > 0.03
    assert clear.any()
    assert (heat[:, None] > heat[None])[clear].all()


def test_the_list_and_the_pointer_say_pythons_weights(show, vit):
    recording, path = vit
    page = show(path, 0, 2, 5)
    exact = recording[recording.layers[0]][0, 2, 5]
    assert listed(page) == pytest.approx({key: float(exact[key]) for key in listed(page)}, abs=1e-3)
    places = [divmod(key - 1, SIDE) for key in listed(page)]
    names = [f"row {row}, column {column}" if row >= 0 else "[CLS]" for row, column in places]
    assert page.locator(".patches tbody tr th").all_text_contents() == names
    page.mouse.move(*place(page, 1, 2))
    readout = re.match(r"Patch at row 1, column 2: .*?([\d.]+) %", page.locator(".readout").text_content())
    assert float(readout[1]) == pytest.approx(100 * float(exact[1 + SIDE + 2]), abs=0.11)
    sums = [float(number) for number in re.findall(r"([\d.]+) %", page.locator(".rest").text_content())]
    assert sums == pytest.approx([100 * float(exact[1:].sum()), 100 * float(exact[0])], abs=0.2)


def test_patches_are_chosen_by_click_by_arrows_and_the_class_token_by_its_button(show, vit):
    recording, path = vit
    page = show(path, 1, 1, 1, width=360)
    m = recording[recording.layers[1]][0, 1]

    def assert_chosen(name, query_):
        assert query(page) == f"Query: {name}"
        key, weight = next(iter(listed(page).items()))
        assert weight == pytest.approx(float(m[query_].max()), abs=1e-3)
        assert float(m[query_, key]) == pytest.approx(weight, abs=2e-3)

    page.mouse.click(*place(page, 3, 4))
    assert_chosen("patch at row 3, column 4", 1 + 3 * SIDE + 4)
    page.focus(".patches .grid")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    assert_chosen("patch at row 2, column 3", 1 + 2 * SIDE + 3)
    page.click(".patches .others button")
    assert page.locator(".patches .others button").get_attribute("aria-pressed") == "true"
    assert_chosen("token 0 '[CLS]'", 0)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_no_image_no_view(open_page, river_page):
    assert open_page(river_page[1]).locator("#tab-patches").count() == 0


# A model that writes about an image: the heat lies on what the text looks at.

TOKENS = ["[class]", *(f"{row},{column}" for row in range(4) for column in range(4))]


@pytest.fixture(scope="module")
def captioner(tmp_path_factory):
    """A model, transformers' own, and the recording of a text as long as the image has tokens.

    So only the kind can tell the image's tokens and the text's apart.
    """
    folder = tmp_path_factory.mktemp("captioner")
    reference = random_captioner(folder, encoder={"image_size": 8, "patch_size": 2})
    reference.set_attn_implementation("eager")
    pretrained = regard.load(folder)
    pixels, ids = pretrained.pixel_values(image()), torch.randint(61, (1, len(TOKENS)))
    with torch.no_grad(), regard.watch(pretrained.model) as recording:
        pretrained.model(pixels, ids)
        expected = reference(pixel_values=pixels, decoder_input_ids=ids, output_attentions=True)
    recording.label([f"w{i}" for i in ids[0].tolist()], pretrained.config.patches.token_names)
    return pretrained, recording, expected.cross_attentions


def test_the_text_looks_at_the_patches_as_in_transformers(captioner):
    _, recording, expected = captioner
    kinds = [(entry.stack, entry.kind) for entry in map(recording.entry, recording)]
    assert kinds == [("encoder.blocks", "self")] * 3 + [("decoder.blocks", "self"), ("decoder.blocks", "cross")] * 2
    cross = recording.subset("cross")
    for path, weights in zip(cross, expected, strict=True):
        assert cross[path].error < 1e-5
        assert (cross[path].dense() - weights).abs().max() < 1e-5
        assert list(cross[path].tokens[1]) == TOKENS
        assert cross[path].tokens[0][0].startswith("w")
    assert list(recording["encoder.blocks.0.attention"].tokens[0]) == TOKENS


def test_a_generation_is_one_map(captioner):
    pretrained, _, _ = captioner
    with regard.watch(pretrained.model) as recording:
        ids = regard.generate(pretrained, pretrained.pixel_values(image())[0], max_new_tokens=6, stop=())
    assert recording["decoder.blocks.1.cross_attention"].shape == (1, 4, len(ids) - 1, len(TOKENS))


def test_the_image_is_what_cross_attention_and_the_encoder_look_at(captioner, node):
    _, recording, _ = captioner
    page = decode(node, recording.to_html(image=image()))
    facts = page.facts["image"]
    paths = [page.facts["attentions"][index]["path"] for index in facts["attentions"]]
    assert (facts["rows"], facts["columns"], facts["first_patch"]) == (4, 4, 1)
    assert sorted(paths) == sorted(path for path in recording if "encoder" in path or "cross" in path)
    # Said by hand, a text of as many tokens as patches does not take the image's place either.
    assert decode(node, recording.to_html(image=image(), patches=(4, 4))).facts["image"] == facts


def test_the_page_shows_what_a_word_looks_at(open_page, show, captioner, tmp_path):
    _, recording, _ = captioner
    path, paths = tmp_path / "page.html", list(recording)
    recording.to_html(path, image=image())
    page = show(path, paths.index("decoder.blocks.0.cross_attention"), 2, 5)
    exact = recording["decoder.blocks.0.cross_attention"][0, 2, 5]
    assert len(listed(page)) > 3
    assert listed(page) == pytest.approx({key: float(exact[key]) for key in listed(page)}, abs=1e-3)
    # The query is a word; a click on a patch asks for its weight and moves no query.
    assert query(page).startswith("Query: token 5 'w")
    page.locator(".patches .grid").click(position={"x": 5, "y": 5})
    assert query(page).startswith("Query: token 5 'w")
    assert page.locator(".readout").get_attribute("data-key") == "1"
    own = {"view": "patches", "attention": paths.index("decoder.blocks.0.attention"), "query": 1}
    page = open_page(path, own, ready=".patches .missing button")
    assert "not the patches of the image" in page.locator(".patches .missing").text_content()
