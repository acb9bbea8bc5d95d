"""Pages of models as they come: their groups, what cannot be shown, and rows that are the models' own."""

import copy
import io
import json
from base64 import b64decode
from dataclasses import dataclass
from urllib.parse import quote

import pytest
import torch
import transformers
from PIL import Image

import regard
from lens.model_cases import MODEL_CASES, load_model, make_inputs
from regard.lens.recording.recording import Recording
from views.html.decoded import Page, holds, opened

PICTURE = Image.linear_gradient("L").resize((16, 16))

DECODERS = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM"}

PICTURED = {"sentence", "heads", "map"}
TABS = PICTURED | {"arithmetic", "whatif"}
"""What a page shows of pictures alone, and of heads that it carries whole."""


def record(name, **options):
    """A small model of a kind and what it attends to."""
    with torch.no_grad(), regard.watch(load_model(name), **options) as seen:
        load_model(name)(**make_inputs(name, "even"))
    return seen


def generated(name, prompt=5, **options):
    """A decoder that writes on, one token at a time, with its cache."""
    model = getattr(transformers, DECODERS[name])(copy.deepcopy(load_model(name).config)).eval()
    model.base_model.load_state_dict(load_model(name).state_dict())
    ids = make_inputs(name, "even")["input_ids"][:1, :prompt]
    with torch.no_grad(), regard.watch(model, **options) as seen:
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=4,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
    return seen


def continued():
    """The last three of eight tokens, of which a cache holds the first five."""
    ids = make_inputs("gpt2", "even")["input_ids"][:1, :8]
    with torch.no_grad():
        cache = load_model("gpt2")(ids[:, :5], use_cache=True).past_key_values
        with regard.watch(load_model("gpt2")) as seen:
            load_model("gpt2")(ids[:, 5:], past_key_values=cache)
    seen.label([f"word{i}" for i in range(8)])
    return seen


class Attends(torch.nn.Module):
    """Attention to itself, whatever it is given."""

    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(x, x.flip(-1), x)


def changed():
    """An attention whose queries were written over since, beside one that is as it was."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Attends(), Attends()

        def forward(self, x):
            return self.second(self.first(x))

    x = torch.randn(1, 2, 6, 4)
    with torch.no_grad(), regard.watch(model := Model()) as seen:
        model(x)
        x.add_(1)
    return seen


def by_hand():
    """Two layers of which one computes attention in a way that no eye sees."""
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(**load_model("bert").config.to_diff_dict())).eval()
    model.encoder.layer[1].attention.self.config = copy.deepcopy(model.config)
    model.encoder.layer[1].attention.self.config._attn_implementation = "eager"
    with torch.no_grad(), regard.watch(model) as seen:
        model(**make_inputs("bert", "even"))
    return seen


MADE = {
    "bart": lambda: record("bart"),
    "t5": lambda: record("t5"),
    "clip": lambda: record("clip"),
    "vit": lambda: record("vit"),
    "gpt2 writes": lambda: generated("gpt2"),
    "llama writes": lambda: generated("llama"),
    "steps of llama": lambda: generated("llama", keep="summary"),
    "a cache": continued,
    "summaries": lambda: record("bart", keep="summary"),
    "changed": changed,
    "by hand": by_hand,
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
        for about in self.page.facts["attentions"]:
            found.setdefault(about["group"], []).append(about["path"])
        return found


@pytest.fixture(scope="module")
def shown(node):
    """Every model's, read by one process."""
    recordings = {name: make() for name, make in MADE.items()}
    texts = {name: seen.to_html(**OPTIONS.get(name, {})) for name, seen in recordings.items()}
    pages = opened(node, *texts.values())
    return {name: Shown(recordings[name], text, page) for (name, text), page in zip(texts.items(), pages, strict=True)}


@pytest.mark.parametrize("name", ["bart", "t5", "clip", "vit", "gpt2 writes", "llama writes", "a cache"])
def test_every_row_is_the_models(shown, name):
    one = shown[name]
    assert list(one.page.attentions) == list(one.recording)
    assert one.page.facts["omitted"] == []
    rows = sum(m.shape[1] * m.shape[2] for m in one.recording.values())
    assert holds(one.page, one.recording, OPTIONS.get(name, {}).get("batch", 0)) == rows
    assert all(about["verified"] for about in one.page.facts["attentions"])


def test_layers_stand_in_their_groups(shown):
    for name in ("bart", "t5"):
        stacks = {"encoder": [], "decoder": [], "cross": []}
        for spec in MODEL_CASES[name].attentions:
            group = "cross" if spec.kind == "cross" else "encoder" if "encoder" in spec.path[:7] else "decoder"
            stacks[group].append(spec.path)
        assert shown[name].groups == stacks
    assert shown["vit"].groups == {"self": [spec.path for spec in MODEL_CASES["vit"].attentions]}
    towers = shown["clip"].groups
    assert len(towers) == 2
    for group, paths in towers.items():
        (tower,) = {path.split(".")[0] for path in paths}
        assert tower in group
        assert len(paths) == 2


def test_cross_attention_has_two_texts(shown):
    for about in shown["bart"].page.facts["attentions"]:
        texts = [len(shown["bart"].page.facts["texts"][about[side]]["tokens"]) for side in ("query_text", "key_text")]
        assert texts == [about["queries"], about["keys"]]
        assert (about["kind"] == "cross") == (about["group"] == "cross") == (texts == [7, 12])
    assert "This is text 2 of a batch of 3: to_html(batch=...) shows another." in shown["bart"].page.facts["notes"]


def test_a_generation_is_stitched_and_a_cache_has_fewer_queries_than_keys(shown):
    for name in ("gpt2 writes", "llama writes"):
        sizes = [(each["queries"], each["keys"], each["query_offset"]) for each in shown[name].page.facts["attentions"]]
        assert sizes == [(8, 8, 0)] * 2
    (about, _), page = shown["a cache"].page.facts["attentions"], shown["a cache"].page
    assert (about["queries"], about["keys"], about["query_offset"]) == (3, 8, 5)
    texts = [page.facts["texts"][about[side]]["tokens"] for side in ("query_text", "key_text")]
    assert texts == [[f"word{i}" for i in range(5, 8)], [f"word{i}" for i in range(8)]]


@pytest.mark.parametrize("name", ["summaries", "steps of llama"])
def test_summaries_are_pictures_and_say_how_to_get_more(shown, name):
    page, recording = shown[name].page, shown[name].recording
    assert page.whole == []
    assert list(page.attentions) == list(recording)
    why = 'pictures only: this recording keeps summaries; watch with keep="maps".'
    assert page.facts["omitted"] == [f"{path}: {why}" for path in recording]
    for path, heads in page.attentions.items():
        m = recording[path]
        pooled = m.pooled(*m.shape[2:])[0]
        for head, facts in enumerate(heads):
            assert facts.facts["head_type"] == recording.entry(path).head_types().names[head]
            assert facts.facts["entropy"] == pytest.approx(float(m.entropy()[0, head].mean()), abs=1e-5)
            torch.testing.assert_close(facts.picture.float(), pooled[head], atol=0.01, rtol=0.02)


def test_steps_of_a_generation_are_groups_of_their_own(shown):
    groups = shown["steps of llama"].groups
    assert len(groups) == 4
    assert all(len(paths) == 2 for paths in groups.values())


def test_what_cannot_be_shown_is_a_note_and_the_rest_is_there(shown):
    page = shown["changed"].page
    assert list(page.attentions) == ["second"]
    (note,) = page.facts["notes"]
    assert note.startswith("first: ")
    assert "changed in place" in note
    hand = shown["by hand"].page
    assert list(hand.attentions) == ["encoder.layer.0.attention.self"]
    (note,) = (each for each in hand.facts["notes"] if "by hand" in each)
    assert "encoder.layer.1.attention.self" in note
    assert len(hand.whole) == 4


def test_nothing_that_can_be_shown_says_why():
    x = torch.randn(1, 2, 6, 4)
    with torch.no_grad(), regard.watch(model := Attends()) as seen:
        model(x)
    x.add_(1)
    with pytest.raises(ValueError, match=r"there is no attention to show: .*changed in place"):
        seen.to_html()
    assert seen._repr_html_() is None


def test_an_image_goes_to_the_tower_that_sees(shown):
    for name in ("clip", "vit"):
        image = shown[name].page.facts["image"]
        assert {name: image[name] for name in ("rows", "columns", "first_patch")} == {
            "rows": 4,
            "columns": 4,
            "first_patch": 1,
        }
        assert Image.open(io.BytesIO(b64decode(image["source"].partition(",")[2]))).tobytes() == PICTURE.tobytes()


def test_an_image_is_a_path_or_bytes_or_pils(shown, tmp_path):
    seen = shown["vit"].recording
    PICTURE.save(tmp_path / "picture.png")
    data = (tmp_path / "picture.png").read_bytes()
    pages = {seen.to_html(image=image) for image in (tmp_path / "picture.png", str(tmp_path / "picture.png"), data)}
    assert pages == {shown["vit"].text}
    for mode in ("RGBA", "CMYK", "P", "1", "I;16"):
        assert "data-bytes" in seen.to_html(image=PICTURE.convert("L" if mode == "I;16" else "RGB").convert(mode))


def test_every_tab_of_such_pages_opens(open_page, shown, tmp_path):
    for name, groups, views in (
        ("bart", ["encoder", "decoder", "cross"], TABS),
        ("clip", list(shown["clip"].groups), TABS | {"patches"}),
        ("summaries", ["encoder", "decoder", "cross"], PICTURED),
    ):
        path = tmp_path / f"{name}.html"
        path.write_text(shown[name].text, encoding="utf-8")
        page = open_page(path)
        page.wait_for_selector("html[data-ready]")
        assert page.locator("#group option").all_text_contents() == groups
        tabs = page.get_by_role("tab")
        assert {each.get_attribute("id") for each in tabs.all()} == {f"tab-{view}" for view in views}
        for group in groups:
            page.select_option("#group", group)
            for tab in tabs.all():
                tab.click()
                view = tab.get_attribute("aria-controls")
                assert page.locator(f"#{view}").is_visible()
                assert len(page.locator(f"#{view}").inner_text()) > 80, (name, group, view)


def test_a_link_to_a_head_that_is_a_picture_opens(open_page, shown, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(shown["summaries"].text, encoding="utf-8")
    for view in ("heads", "arithmetic"):
        page = open_page(path, hash=quote(json.dumps({"view": view, "attention": 5, "head": 3, "query": 6})))
        page.wait_for_selector("html[data-ready]")
        assert page.locator(f"#view-{view if view in PICTURED else 'sentence'}").is_visible()
        assert page.locator("#head").input_value() == "3"
