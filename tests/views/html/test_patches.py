"""The image in a browser: the heat of a real vision transformer's patches lies where its weights say."""

import json
import re
from urllib.parse import quote

import pytest
import torch
from PIL import Image, ImageDraw
from transformers import ViTConfig, ViTModel

import regard

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


def opened(open_page, path, state, **options):
    page = open_page(path, hash=quote(json.dumps({"view": "patches", **state})), **options)
    page.wait_for_function("document.querySelector('.patches img').naturalWidth > 0")
    page.wait_for_function(
        "(() => { const c = document.querySelector('.heat'); return c.width > 0 && c.height > 100; })()"
    )
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    return page


@pytest.mark.parametrize("dark", [False, True])
def test_heat_lies_where_the_weights_say(open_page, vit, dark):
    recording, path = vit
    for attention, head, query in ((0, 3, 17), (1, 0, 0)):
        weights = recording[recording.layers[attention]][0, head, query][1:].double()
        page = opened(open_page, path, {"attention": attention, "head": head, "query": query}, dark=dark)
        seen = torch.tensor(page.locator(".heat").evaluate(CENTRES, SIDE), dtype=torch.float64)
        assert seen[:, 3].min() > 0
        light = seen[:, :3] @ torch.tensor([0.2126, 0.7152, 0.0722], dtype=torch.float64)
        heat = light if dark else -light
        assert int(heat.argmax()) == int(weights.argmax())
        # Light falls with the square root of the weight: no patch stands in another's place.
        roots = (weights / weights.max()).sqrt()
        assert torch.corrcoef(torch.stack([heat, roots]))[0, 1] > 0.98
        clear = roots[:, None] - roots[None] > 0.03
        assert clear.any()
        assert (heat[:, None] > heat[None])[clear].all()


def test_the_list_and_the_pointer_say_pythons_weights(open_page, vit):
    recording, path = vit
    page = opened(open_page, path, {"attention": 0, "head": 2, "query": 5})
    exact = recording[recording.layers[0]][0, 2, 5]
    rows = page.locator(".patches tbody tr")
    for i in range(rows.count()):
        key, weight = int(rows.nth(i).get_attribute("data-key")), float(rows.nth(i).get_attribute("data-weight"))
        assert weight == pytest.approx(float(exact[key]), abs=1e-3)
        named = rows.nth(i).locator("th").text_content()
        assert named == ("[CLS]" if key == 0 else f"row {(key - 1) // SIDE}, column {(key - 1) % SIDE}")
    box = page.locator(".grid").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 2.5 / SIDE, box["y"] + box["height"] * 1.5 / SIDE)
    said = page.locator(".readout").text_content()
    assert said.startswith("Patch at row 1, column 2: ")
    share = float(re.search(r"([\d.]+) %", said)[1])
    assert share == pytest.approx(100 * float(exact[1 + SIDE + 2]), abs=0.11)
    sums = re.findall(r"([\d.]+) %", page.locator(".rest").text_content())
    assert [float(each) for each in sums] == pytest.approx(
        [100 * float(exact[1:].sum()), 100 * float(exact[0])], abs=0.2
    )


def test_patches_are_chosen_by_click_by_arrows_and_the_class_token_by_its_button(open_page, vit):
    recording, path = vit
    page = opened(open_page, path, {"attention": 1, "head": 1, "query": 1}, width=360)
    m = recording[recording.layers[1]][0, 1]

    def shown():
        first = page.locator(".patches tbody tr").first
        return int(first.get_attribute("data-key")), float(first.get_attribute("data-weight"))

    def held(query):
        key, weight = shown()
        assert weight == pytest.approx(float(m[query].max()), abs=1e-3)
        assert float(m[query, key]) == pytest.approx(float(m[query].max()), abs=1e-3)

    box = page.locator(".grid").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 4.5 / SIDE, box["y"] + box["height"] * 3.5 / SIDE)
    assert page.locator(".patches .chosen").text_content() == "Query: patch at row 3, column 4"
    held(1 + 3 * SIDE + 4)
    page.focus(".patches .grid")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    assert page.locator(".patches .chosen").text_content() == "Query: patch at row 2, column 3"
    held(1 + 2 * SIDE + 3)
    page.click(".patches .others button")
    assert page.locator(".patches .chosen").text_content() == "Query: token 0 '[CLS]'"
    assert page.locator(".patches .others button").get_attribute("aria-pressed") == "true"
    held(0)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_no_image_no_view(open_page, tmp_path, vit):
    recording, _ = vit
    recording.to_html(tmp_path / "page.html")
    page = open_page(tmp_path / "page.html")
    page.wait_for_selector("html[data-ready]")
    assert page.locator("#tab-patches").count() == 0
