"""The page's own model computes what regard's model with the same 8-bit weights computes, edits included."""

import shutil
import subprocess
from base64 import b64decode
from pathlib import Path

import pytest
import torch

import regard
from regard.pretrained.pooling import Pooling
from regard.views.html.bundle import STATIC
from regard.views.html.quantized_model import quantize_model
from views.html.page_encoders import PageEncoder, edit_of
from views.html.page_runs import head, packed, unpacked
from weights import LOAN, RIVER, random_bert, random_checkpoint, sentences

ROOT = Path(__file__).parents[3]
IDS = [5, 7, 3, 11, 2, 9, 4]


@pytest.fixture
def page(page_encoder):
    """MiniLM."""
    return page_encoder


@pytest.fixture(scope="module")
def small(node, tmp_path_factory):
    """Two layers of three heads, of sizes that are no multiples of 8, with vectors that are not normalised."""
    folder = tmp_path_factory.mktemp("small")
    random_bert(folder, hidden_size=18, intermediate_size=29)
    return PageEncoder(node, folder, quantize_model(regard.load(folder)), "small")


def assert_same(found, expected, tolerance=1e-4):
    """All hidden states, queries, keys, values, outputs and the vector."""
    for name in ("hidden_states", "q", "k", "v", "output"):
        for one, other in zip(getattr(found, name), getattr(expected, name), strict=True):
            torch.testing.assert_close(
                one, other, atol=tolerance, rtol=0, msg=lambda text, name=name: f"{name}: {text}"
            )
    torch.testing.assert_close(found.vector, expected.vector, atol=tolerance, rtol=0)


@pytest.mark.parametrize("text", ["", RIVER, *sentences(2)], ids=["no word", "river", "prose", "more prose"])
def test_a_text_gives_the_numbers_of_regards_own_model(page, text):
    ids = page.ids(text)
    assert_same(page.run(ids), page.expected(ids)[0], 1e-5)


@pytest.mark.more
def test_the_longest_text_gives_the_numbers_of_regards_own_model(page):
    ids = [1000 + 7 * i for i in range(512)]
    found, (expected, _) = page.run(ids), page.expected(ids)
    torch.testing.assert_close(found.hidden_states[-1], expected.hidden_states[-1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("n", range(1, 10))
def test_sizes_need_not_fill_a_tile_of_the_kernel(small, n):
    ids = (IDS * 2)[:n]
    assert_same(small.run(ids), small.expected(ids)[0], 1e-5)


def test_roberta_counts_its_positions_from_another_row(node, tmp_path):
    random_checkpoint(tmp_path, "roberta")
    roberta = PageEncoder(node, tmp_path, quantize_model(regard.load(tmp_path)), "roberta")
    assert roberta.quantized.config["first_position"] == 2
    assert_same(roberta.run(IDS), roberta.expected(IDS)[0])


@pytest.mark.parametrize("pooling", [Pooling("cls"), Pooling("cls", True), Pooling("mean", True)], ids=str)
def test_the_vector_is_pooled_as_the_checkpoint_says(small, pooling):
    config = {**small.quantized.config, "pooling": {"mode": pooling.mode, "normalize": pooling.normalize}}
    assert small.open(config) is None
    try:
        found = small.run(IDS)
    finally:
        small.open(small.quantized.config)
    expected = pooling(found.hidden_states[-1], torch.tensor([len(IDS)]))[0]
    torch.testing.assert_close(found.vector, expected, atol=1e-6, rtol=0)


def edited(page, ids, *changes):
    """The last hidden states of regard's model with edits."""
    with torch.no_grad(), regard.intervene(page.model.model) as editor:
        for change in changes:
            change(editor)
        return page.model.model(torch.tensor(ids))


def ablated(heads):
    heads.ablate("zero")


def scaled(heads):
    heads.scale(0.25)


EDITS = {
    "block": (
        [
            head(2, 5, lambda heads: heads.block(queries=[4], keys=[1, 6])),
            head(4, 0, lambda heads: heads.block(keys=0)),
        ],
        [{"attention": 2, "head": 5, "query": 4, "mask": {1: False, 6: False}}, {"attention": 4, "removedKeys": [0]}],
    ),
    "scale": ([head(1, 3, scaled)], [{"attention": 1, "head": 3, "scale": 0.25 * 32**-0.5}]),
    "temperature": ([head(1, 3, scaled)], [{"attention": 1, "head": 3, "temperature": 4}]),
    "off": (
        [head(0, 7, ablated), head(5, 11, ablated)],
        [{"attention": 0, "head": 7, "off": True}, {"attention": 5, "head": 11, "off": True}],
    ),
}


@pytest.mark.parametrize(("changes", "edits"), EDITS.values(), ids=EDITS)
def test_an_edit_changes_the_model_as_regard_intervene_does(page, changes, edits):
    ids = page.ids(RIVER)
    expected = edited(page, ids, *changes)
    found = page.run(ids, edits)
    torch.testing.assert_close(found.hidden_states[-1], expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.vector, page.vector(expected), atol=1e-5, rtol=0)
    assert (found.hidden_states[-1] - page.run(ids).hidden_states[-1]).abs().max() > 1e-3


def test_a_hidden_token_is_attended_to_by_itself_only(page):
    ids = page.ids(RIVER)
    others = [query for query in range(len(ids)) if query != 3]
    hidden = [head(layer, slice(None), lambda heads: heads.block(queries=others, keys=[3])) for layer in range(6)]
    found = page.run(ids, hidden=[3])
    torch.testing.assert_close(found.hidden_states[-1], edited(page, ids, *hidden), atol=1e-5, rtol=0)


def test_a_row_that_may_attend_to_nothing_has_output_0(page):
    ids = page.ids(RIVER)
    found = page.run(ids, [{"attention": 3, "head": 2, "query": 1, "removedKeys": list(range(len(ids)))}])
    assert bool((found.output[3][2, 1] == 0).all())
    assert bool((found.output[3][2, 2] != 0).any())


def test_numbers_take_the_place_of_a_heads_output(small):
    numbers = torch.randn(len(IDS), 6)
    row = small.run(IDS, [{"head": 1, "query": 2, "output": numbers}])
    rows = small.run(IDS, [{"head": 1, "output": numbers}])
    assert torch.equal(rows.output[0][1], numbers)
    assert torch.equal(row.output[0][1, 2], numbers[2])
    assert torch.equal(row.output[0][1, 3], small.run(IDS).output[0][1, 3])


def test_of_two_edits_of_a_row_the_later_one_counts(small):
    off, warm = {"head": 2, "query": 1, "off": True}, {"head": 2, "query": 1, "temperature": 3}
    assert torch.equal(small.run(IDS, [off, warm]).vector, small.run(IDS, [warm]).vector)
    assert torch.equal(small.run(IDS, [warm, off]).vector, small.run(IDS, [off]).vector)


@pytest.mark.parametrize("layer", range(6))
def test_a_run_that_begins_again_is_the_full_run_bit_for_bit(page, layer):
    ids = page.ids(RIVER)
    edits = [{"attention": layer, "head": 4, "temperature": 0.5}, {"attention": 5, "head": 1, "off": True}]
    full, again = page.run(ids, edits), page.run(ids, edits, begin=True)
    for name in ("hidden_states", "q", "k", "v", "output"):
        for one, other in zip(getattr(full, name), getattr(again, name), strict=True):
            assert torch.equal(one, other)
    assert torch.equal(full.vector, again.vector)
    assert (full.layers, again.layers) == (6, 6 - layer)


def test_without_an_edit_nothing_is_computed_again(page):
    ids = page.ids(RIVER)
    again = page.run(ids, begin=True)
    assert again.layers == 0
    assert torch.equal(again.vector, page.run(ids).vector)


def test_a_hidden_token_begins_at_the_first_layer(page):
    assert page.run(page.ids(RIVER), hidden=[2], begin=True).layers == 6


def test_what_a_layer_throws_ends_the_run_and_leaves_the_model_whole(page):
    ids = page.ids(RIVER)
    before = page.run(ids)
    ended = page.node("encoderCancel", {"name": page.name, "ids": ids[::-1], "layers": 3})
    assert ended == {"seen": [[1, 6], [2, 6], [3, 6]], "ended": "AbortError"}
    assert torch.equal(page.run(ids).vector, before.vector)


def test_texts_that_are_read_at_the_same_time_do_not_mix(page):
    texts = [page.ids(text) for text in (RIVER, LOAN, "a")]
    together = page.node("encoderTogether", {"name": page.name, "texts": texts})["vectors"]
    for ids, vector in zip(texts, together, strict=True):
        assert torch.equal(unpacked(vector, -1), page.run(ids).vector)


REFUSED = {
    "no id": ({"ids": []}, "RangeError: the text has 0 tokens, and the model reads 1 to 20"),
    "too many": ({"ids": [1] * 21}, "RangeError: the text has 21 tokens, and the model reads 1 to 20"),
    "an id": ({"ids": [3, 40]}, "RangeError: token 1 has the id 40, and the model has 0 to 39"),
    "no number": ({"ids": ["x"]}, "RangeError: token 0 has the id NaN, and the model has 0 to 39"),
    "layer": ({"edits": [edit_of(2)]}, "RangeError: attention 2 is to be edited, and there are 0 to 1"),
    "head": ({"edits": [edit_of(0, -1)]}, "RangeError: head -1 is to be edited, and there are 0 to 2"),
    "query": ({"edits": [edit_of(0, 0, 7)]}, "RangeError: query 7 is to be edited, and there are 0 to 6"),
    "after another": ({"after": IDS[:-1]}, "RangeError: a run can only begin again after a run of the same ids"),
    "after edits": (
        {"after": IDS, "afterEdits": [edit_of(0, 0, off=True)]},
        "RangeError: a run can only begin again after a run without edits",
    ),
}


@pytest.mark.parametrize(("argument", "message"), REFUSED.values(), ids=REFUSED)
def test_what_the_model_cannot_read_is_refused(small, argument, message):
    asked = {"name": small.name, "ids": IDS, "edits": [], "after": None, "afterEdits": [], **argument}
    assert small.node("encoderRefusal", asked) == {"refusal": message}


BYTES = "the model's weights are {} bytes, and a model of these sizes has {}; save the page again"
SIZES = {
    "no number": ({"d_model": "24"}, "d_model of the model is 24, and not a whole number from 1 to 16777216"),
    "zero": ({"num_layers": 0}, "num_layers of the model is 0, and not a whole number from 1 to 1000"),
    "huge": ({"d_ff": 2**40}, f"d_ff of the model is {2**40}, and not a whole number from 1 to 16777216"),
    "layers": ({"num_layers": 1001}, "num_layers of the model is 1001, and not a whole number from 1 to 1000"),
    "heads": ({"num_heads": 5}, "d_model of the model is 18, which does not divide into num_heads = 5"),
    "scale": ({"attention_scale": None}, "attention_scale of the model is null, and not a finite number"),
    "eps": ({"norm_eps": -1}, "norm_eps of the model is -1, and not a number from 0 to 1"),
    "pooling": ({"pooling": {"mode": "max"}}, 'pooling of the model is max, and neither "mean" nor "cls"'),
    "another": ({"d_ff": 30}, BYTES.format(8668, 8756)),
}


@pytest.mark.parametrize(("changes", "message"), SIZES.values(), ids=SIZES)
def test_sizes_that_are_not_the_weights_are_refused(small, changes, message):
    assert small.open({**small.quantized.config, **changes}, name="refused") == message


def test_weights_of_another_length_are_refused(small, tmp_path):
    path, data = tmp_path / "weights", small.path.read_bytes()
    for length in (0, len(data) - 1, len(data) + 1):
        path.write_bytes((data + b"\0")[:length])
        message = BYTES.format(length, len(data))
        assert small.open(small.quantized.config, path, name="refused") == message


@pytest.mark.parametrize("bits", [b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\0\0\x80\xff"], ids=["nan", "inf", "-inf"])
def test_weights_that_are_not_finite_are_refused(small, tmp_path, bits):
    path, data = tmp_path / "weights", bytearray(small.path.read_bytes())
    data[40 * 4 : 41 * 4] = bits  # the first scale after those of the 40 tokens
    path.write_bytes(data)
    what = "embeddings.position.weight has numbers that are not finite"
    message = f"the model's weights are damaged: {what}; save the page again"
    assert small.open(small.quantized.config, path, name="refused") == message


def test_the_text_of_the_page_holds_the_weights(small):
    packed_model = small.quantized.pack()
    found = small.node("weightsDecoded", {"text": packed_model.text, "length": packed_model.length})
    assert b64decode(found["bytes"]) == small.quantized.bytes()


def test_a_damaged_or_cut_text_is_refused(small):
    packed_model = small.quantized.pack()
    text, length = packed_model.text, packed_model.length
    middle = len(text) // 2
    damaged = text[:middle] + ("a" if text[middle] != "a" else "b") + text[middle + 1 :]
    for each, words in ((damaged, "are damaged"), (text[:middle], "are cut off"), ("", "are cut off")):
        message = small.node("weightsDecoded", {"text": each, "length": length})["refusal"]
        assert message.startswith(f"the model's weights {words}")
        assert message.endswith("; save the page again")


def test_gelu_is_exact_to_float32(node):
    x = torch.cat([torch.linspace(-9, 9, 20_001), torch.tensor([0.0, -0.0, 1e-30, 30.0, -30.0, 3e38, -3e38])])
    found = unpacked(node("geluOf", {"numbers": packed(x)})["numbers"], -1)
    expected = torch.nn.functional.gelu(x.double()).float()
    torch.testing.assert_close(found, expected, atol=1e-8, rtol=1e-6)


def test_the_wasm_in_the_repository_is_built_from_its_text(tmp_path):
    tool = ROOT / "node_modules/.bin/wat2wasm"
    if not (tool.exists() and shutil.which("node")):
        pytest.skip("wabt is not installed: make lint-page")
    built = tmp_path / "kernels.wasm"
    subprocess.run([tool, STATIC / "model/kernels.wat", f"--output={built}"], check=True)
    assert built.read_bytes() == (STATIC / "model/kernels.wasm").read_bytes()
