"""Models of transformers as they come: what `watch` shows is what the model gives out itself when told to be eager."""

import copy

import pytest
import torch
import transformers

import regard
from grids import grid
from lens.interventions.architectures import EAGER
from lens.model_cases import (
    CASES,
    GPT2,
    MODEL_CASES,
    WIDTHS,
    ModelCase,
    cached_eager_maps,
    counted_rows,
    eager_maps,
    load_model,
    make_inputs,
    token_mask,
)
from lens.statistics_by_definition import Dense, assert_every_statistic
from lens.watching import MODES, assert_map, record, sharpen, train_once


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def one_pass(request):
    """The name of a model, where its padding stands, and the recording of one forward pass."""
    name, padding = request.param
    with torch.no_grad():
        return name, padding, record(load_model(name), **make_inputs(name, padding))[0]


def test_every_attention_is_there_once_in_order_with_its_kind(one_pass):
    name, _, recording = one_pass
    kinds = {spec.path: spec.kind for spec in MODEL_CASES[name].attentions}
    assert [(path, recording.entry(path).kind) for path in recording] == list(kinds.items())
    for kind in set(kinds.values()):
        assert list(recording.subset(kind)) == [path for path in kinds if kinds[path] == kind]
    assert not recording.notes
    assert all(path in str(recording) for path in kinds)


def test_every_statistic_is_that_of_the_eager_map(one_pass):
    """In rows that do not count, where models differ, it is that of the map itself."""
    name, padding, recording = one_pass
    for spec in {spec.output: spec for spec in MODEL_CASES[name].attentions}.values():  # the last layer of each stack
        m, rows = recording[spec.path], counted_rows(spec, padding)
        expected = cached_eager_maps(name, padding)[spec.path]
        if rows is not None:
            expected = expected.where(rows[:, None, :, None], m.dense())
        assert_every_statistic(m, Dense(expected.double()))


@grid(name=list(MODEL_CASES), padding=["even", "right", "left"], mode=MODES, where=lambda name, padding, mode: (
    padding in MODEL_CASES[name].paddings
))  # fmt: skip
def test_outputs_have_the_same_bits_and_maps_are_those_that_the_eager_model_gives_out(name, padding, mode):
    with mode():
        recording, _ = record(load_model(name), **make_inputs(name, padding), output_hidden_states=True)
    for spec in MODEL_CASES[name].attentions:
        assert_map(recording[spec.path], cached_eager_maps(name, padding)[spec.path], counted_rows(spec, padding))


@grid(name=list(MODEL_CASES), training=[False, True])
def test_gradients_have_the_same_bits(name, training):
    model = copy.deepcopy(load_model(name)).train(training)
    model_inputs = make_inputs(name, MODEL_CASES[name].paddings[-1])
    expected = train_once(model, **model_inputs)
    with regard.watch(model) as recording:
        got = train_once(model, **model_inputs)
    assert len(got) > 10
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    assert len(recording) == len(MODEL_CASES[name].attentions)
    assert all(m.error < 1e-4 for m in recording.values())


@grid(name=["llama", "bert", "t5"], dtype=[torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(name, dtype):
    model, model_inputs = copy.deepcopy(load_model(name)).to(dtype), make_inputs(name, "right")
    with torch.no_grad():
        recording, _ = record(model, **model_inputs)
    maps, wide = eager_maps(name, model_inputs, model), dtype == torch.float64
    for spec in MODEL_CASES[name].attentions:
        m, rows = recording[spec.path], counted_rows(spec, "right")
        assert m.dense().dtype == (torch.float64 if wide else torch.float32)
        assert m.error < (1e-10 if wide else 2e-2)
        assert m.verified
        # The eager model rounds scores and weights to its own few bits; Llama's rotation and softmax are in float32.
        if spec.layer == 0 or wide:
            limits = {torch.float64: 1e-6 if name == "llama" else 1e-12, torch.bfloat16: 0.08, torch.float16: 0.01}
            assert ((m.dense() - maps[spec.path]) * rows[:, None, :, None]).abs().max() < limits[dtype]


def test_layers_that_share_their_weights_have_a_map_each():
    """ALBERT runs one module as often as it has layers."""
    config = transformers.AlbertConfig(**{**WIDTHS, "num_hidden_layers": 3}, embedding_size=16)
    model = sharpen(transformers.AlbertModel(config))
    with torch.no_grad(), regard.watch(model) as recording:
        model(**make_inputs("bert", "right"))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = model(**make_inputs("bert", "right"), output_attentions=True).attentions
    for m, expected in zip(recording.values(), maps, strict=True):
        assert_map(m, expected, token_mask("right"))


def test_two_passes_in_one_block_are_kept_apart():
    model, first = load_model("bert"), make_inputs("bert", "right")
    second = {key: value[:2, :9] for key, value in make_inputs("bert", "right", seed=1).items()}
    with torch.no_grad(), regard.watch(model) as recording:
        model(**first)
        model(**second)
    assert len(recording) == 4
    for model_inputs, suffix in ((first, ""), (second, "#1")):
        for path, expected in eager_maps("bert", model_inputs).items():
            assert_map(recording[path + suffix], expected, model_inputs["attention_mask"].bool())


@pytest.mark.parametrize("name", MODEL_CASES)
def test_an_eager_model_is_recorded_as_the_others(name):
    case, padding = MODEL_CASES[name], MODEL_CASES[name].paddings[-1]
    model = copy.deepcopy(load_model(name))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        recording, _ = record(model, **make_inputs(name, padding))
    assert not recording.notes
    for spec in case.attentions:
        entry = recording.entry(spec.path)
        assert (entry.kind, entry.kernel) == (spec.kind, "eager, weights kept")
        assert_map(recording[spec.path], cached_eager_maps(name, padding)[spec.path])


ONLY_EAGER = {
    **EAGER,
    "ctrl": ModelCase("CTRL", {**GPT2, "dff": 40}, []),
    "big_bird": ModelCase("BigBird", {**WIDTHS, "attention_type": "original_full"}, []),
    "xlnet": ModelCase("XLNet", {"vocab_size": 40, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 40}, []),
}


@pytest.mark.parametrize("name", ONLY_EAGER)
def test_attention_that_no_fused_kernel_computes(name):
    model = ONLY_EAGER[name].build()
    model.set_attn_implementation("eager")
    ids = make_inputs("bert", "even")["input_ids"]
    with torch.no_grad():
        recording, _ = record(model, input_ids=ids)
        maps = model(input_ids=ids, output_attentions=True).attentions
    assert not recording.notes
    assert len(recording) == len(maps) == 2
    for m, expected in zip(recording.values(), maps, strict=True):
        assert_map(m, expected.view(m.shape))


def test_an_eager_recording_is_saved_and_opened(tmp_path):
    model = copy.deepcopy(load_model("llama"))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        recording, _ = record(model, **make_inputs("llama", "left"))
    recording.save(tmp_path / "llama.safetensors")
    again = regard.lens.Recording.load(tmp_path / "llama.safetensors")
    for path, m in recording.items():
        assert torch.equal(again[path].dense(), m.dense())
        assert again[path].error == m.error
