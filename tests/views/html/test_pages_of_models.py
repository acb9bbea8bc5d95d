"""Pages of models as they come: their groups, what cannot be shown, and rows that are the models' own."""

import copy
import io
import re
from base64 import b64decode
from dataclasses import dataclass
from functools import cache, partial
from itertools import cycle

import pytest
import torch
import transformers
from PIL import Image
from torch.nn import functional as F

import regard
from lens.model_cases import MODEL_CASES, load_model, make_inputs
from regard.lens.recording.recording import Recording
from views.html.decoded import Page, assert_rows_are_the_maps, decode

PICTURE = Image.linear_gradient("L").resize((16, 16))

PICTURED = {"sentence", "heads", "map"}
TABS = PICTURED | {"arithmetic", "whatif"}
"""What a page shows of pictures alone, and of heads that it carries whole."""


def record(name, **options):
    """A small model of a kind and what it attends to."""
    with torch.no_grad(), regard.watch(load_model(name), **options) as seen:
        load_model(name)(**make_inputs(name, "even"))
    return seen


def generated(**options):
    """A decoder that writes on, one token at a time, with its cache."""
    model = transformers.LlamaForCausalLM(copy.deepcopy(load_model("llama").config)).eval()
    ids = make_inputs("llama", "even")["input_ids"][:1, :5]
    settings = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with torch.no_grad(), regard.watch(model, **options) as seen:
        model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
    return seen


class Attends(torch.nn.Module):
    """Attention to itself, whatever it is given."""

    def forward(self, x):
        return F.scaled_dot_product_attention(x, x.flip(-1), x)


def changed(count=2):
    """Attentions one after the other; the queries of the first were written over since."""
    x, model = torch.randn(1, 2, 6, 4), torch.nn.Sequential(*(Attends() for _ in range(count)))
    with torch.no_grad(), regard.watch(model) as seen:
        model(x)
        x.add_(1)
    return seen


MADE = {
    **{name: partial(record, name) for name in ("bart", "clip", "vit")},
    "llama writes": generated,
    "steps of llama": lambda: generated(keep="summary"),
    "summaries": lambda: record("bart", keep="summary"),
    "changed": changed,
}
OPTIONS = {"vit": {"image": PICTURE}, "clip": {"image": PICTURE}, "bart": {"batch": 2}}


@dataclass
class Shown:
    """A recording, its page as a text, and what the page's own code reads in it."""

    recording: Recording
    text: str
    page: Page

    @property
    def groups(self):
        """The paths of each group."""
        found = {}
        for facts in self.page.facts["attentions"]:
            found.setdefault(facts["group"], []).append(facts["path"])
        return found

    def texts(self, facts):
        """The tokens of an attention's queries, and of its keys."""
        return [self.page.facts["texts"][facts[side]]["tokens"] for side in ("query_text", "key_text")]


@pytest.fixture(scope="session")
def shown(node):
    """A function from a name to its page, each made when a test first asks for it."""

    @cache
    def make(name):
        recording = MADE[name]()
        text = recording.to_html(**OPTIONS.get(name, {}))
        return Shown(recording, text, decode(node, text))

    return make


@pytest.fixture
def write(shown, tmp_path):
    """A function from a name to the file of its page."""

    def call(name):
        (tmp_path / "page.html").write_text(shown(name).text, encoding="utf-8")
        return tmp_path / "page.html"

    return call


@pytest.mark.parametrize("name", ["bart", "clip", "vit", "llama writes"])
def test_every_row_is_the_models(shown, name):
    page, recording = shown(name).page, shown(name).recording
    assert list(page.attentions) == list(recording)
    assert page.facts["omitted"] == []
    rows = sum(m.shape[1] * m.shape[2] for m in recording.values())
    assert assert_rows_are_the_maps(page, recording, OPTIONS.get(name, {}).get("batch", 0)) == rows
    assert all(facts["verified"] for facts in page.facts["attentions"])


def test_each_stack_tower_and_step_has_a_group_of_its_own(shown):
    stacks = {"encoder": [], "decoder": [], "cross": []}
    for spec in MODEL_CASES["bart"].attentions:
        group = "cross" if spec.kind == "cross" else "encoder" if "encoder" in spec.path[:7] else "decoder"
        stacks[group].append(spec.path)
    assert shown("bart").groups == stacks
    assert [len(paths) for paths in shown("steps of llama").groups.values()] == [2] * 4
    assert shown("vit").groups == {"self": [spec.path for spec in MODEL_CASES["vit"].attentions]}
    towers = {f"self of {name}.encoder.layers": 2 for name in ("text_model", "vision_model")}
    assert {group: len(paths) for group, paths in shown("clip").groups.items()} == towers


def test_cross_attention_has_two_texts(shown):
    facts = shown("bart").page.facts
    for attention in facts["attentions"]:
        sizes = [len(tokens) for tokens in shown("bart").texts(attention)]
        assert sizes == [attention["queries"], attention["keys"]]
        assert (attention["kind"] == "cross") == (attention["group"] == "cross") == (sizes == [7, 12])
    assert "This is text 2 of a batch of 3: to_html(batch=...) shows another." in facts["notes"]


def test_a_generation_is_stitched(shown):
    for facts in shown("llama writes").page.facts["attentions"]:
        assert (facts["queries"], facts["keys"], facts["query_offset"]) == (8, 8, 0)
        assert facts["query_text"] == facts["key_text"]


@pytest.mark.parametrize("name", ["summaries", "steps of llama"])
def test_summaries_are_pictures_and_say_how_to_get_more(shown, name):
    page, recording = shown(name).page, shown(name).recording
    assert page.whole == []
    assert list(page.attentions) == list(recording)
    why = 'pictures only: this recording keeps summaries; watch with keep="maps".'
    assert page.facts["omitted"] == [f"{path}: {why}" for path in recording]
    for path, heads in page.attentions.items():
        m = recording[path]
        pooled, types = m.pooled(*m.shape[2:])[0], recording.entry(path).head_types().names
        for i, head in enumerate(heads):
            assert head.facts["head_type"] == types[i]
            assert head.facts["entropy"] == pytest.approx(float(m.entropy()[0, i].mean()), abs=1e-5)
            torch.testing.assert_close(head.picture.float(), pooled[i], atol=0.01, rtol=0.02)


def test_what_cannot_be_shown_is_a_note_and_the_rest_is_there(shown):
    page = shown("changed").page
    assert page.whole == [("1", 0), ("1", 1)]
    assert any(re.match("0: .*changed in place", note) for note in page.facts["notes"])
    with pytest.raises(ValueError, match=r"there is no attention to show: .*changed in place"):
        changed(1).to_html()
    assert changed(1)._repr_html_() is None


@pytest.mark.parametrize("name", ["clip", "vit"])
def test_an_image_goes_to_the_tower_that_sees(shown, name):
    facts = shown(name).page.facts
    grid = {"first": 1, "rows": 4, "columns": 4, "stride": 4}
    for attention in facts["attentions"]:
        expected = None if "text_model" in attention["path"] else grid
        assert (attention["query_patches"], attention["key_patches"]) == (expected, expected)
    assert Image.open(io.BytesIO(b64decode(facts["image"]["source"].partition(",")[2]))).tobytes() == PICTURE.tobytes()


def test_an_image_is_a_path_or_bytes_or_pils(shown, tmp_path):
    path, vit = tmp_path / "picture.png", shown("vit")
    PICTURE.save(path)
    assert {vit.recording.to_html(image=image) for image in (path, str(path), path.read_bytes())} == {vit.text}
    for mode in ("RGBA", "CMYK", "P", "1", "I;16"):
        source = PICTURE.convert("L" if mode == "I;16" else "RGB").convert(mode)
        assert "data-bytes" in vit.recording.to_html(image=source)


@pytest.mark.more
@pytest.mark.parametrize(("name", "views"), [("bart", TABS), ("clip", TABS | {"patches"}), ("summaries", PICTURED)])
def test_every_group_and_every_tab_of_such_pages_opens(open_page, shown, write, name, views):
    page = open_page(write(name))
    groups = list(shown(name).groups)
    assert page.locator("#group option").all_text_contents() == groups
    tabs = page.get_by_role("tab").all()
    assert {tab.get_attribute("id") for tab in tabs} == {f"tab-{view}" for view in views}
    for group, tab in zip(cycle(groups), tabs, strict=False):
        page.select_option("#group", group)
        tab.click()
        view = page.locator(f"#{tab.get_attribute('aria-controls')}")
        assert view.is_visible()
        assert len(view.inner_text()) > 80, (group, tab)
