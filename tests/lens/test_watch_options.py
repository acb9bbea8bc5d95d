"""Layers, heads and summaries that are asked for, and what cannot be watched."""

import pytest
import torch
from torch import nn

import regard
from lens.model_cases import cached_eager_maps, load_model, make_inputs, token_mask
from lens.watching import FunctionModel, FunctionModule, assert_map


def test_some_layers_and_heads():
    model, path = load_model("llama"), "layers.1.self_attn"
    with torch.no_grad(), regard.watch(model, layers=[1], heads=[0, 3]) as recording:
        model(**make_inputs("llama", "right"))
    assert list(recording) == [path]
    assert_map(recording[path], cached_eager_maps("llama", "right")[path][:, [0, 3]], token_mask("right"))
    with pytest.raises(ValueError, match="rollout needs every layer"):
        recording.rollout(2)


def test_a_layer_that_is_skipped_keeps_the_others_numbers():
    model = FunctionModule(lambda x: model.layers[3](model.layers[2](model.layers[0](x))))
    model.layers = nn.ModuleList(regard.MultiHeadAttention(16, 2) for _ in range(4))
    with torch.no_grad(), regard.watch(model, layers=[2]) as recording:
        model(torch.randn(1, 5, 16))
    assert list(recording) == ["layers.2"]
    assert recording.entry("layers.2").layer == 2


def test_two_attentions_of_a_numbered_block_are_of_one_layer_and_of_a_model_are_two_layers():
    def two_attentions():
        module = FunctionModule(lambda x: module.attn2(module.attn1(x)))
        module.attn1, module.attn2 = (regard.MultiHeadAttention(16, 2) for _ in range(2))
        return module

    x = torch.randn(1, 5, 16)
    alone, blocks = two_attentions(), nn.Sequential(two_attentions(), two_attentions())
    with torch.no_grad(), regard.watch(alone) as recording:
        alone(x)
    assert [recording.entry(path).layer for path in ("attn1", "attn2")] == [0, 1]
    with torch.no_grad(), regard.watch(blocks, layers=[1]) as recording:
        blocks(x)
    assert list(recording) == ["1.attn1", "1.attn2"]


def test_summaries_answer_as_the_maps_do():
    model, model_inputs = load_model("t5"), make_inputs("t5", "right")
    with torch.no_grad():
        with regard.watch(model) as maps:
            expected = model(**model_inputs)[0]
        with regard.watch(model, keep="summary") as summaries:
            assert torch.equal(expected, model(**model_inputs)[0])
    assert list(maps) == list(summaries)
    for path in maps:
        ours, of_map = ((m.entropy(), m.received(), *m.distance(), m.error) for m in (summaries[path], maps[path]))
        torch.testing.assert_close(ours, of_map, atol=1e-6, rtol=1e-5)
        assert summaries[path].shape == maps[path].shape
        with pytest.raises(AttributeError, match='keep="maps"'):
            summaries[path].dense()


def test_a_float32_mask_in_bfloat16():
    q, mask = torch.randn(1, 2, 5, 8).bfloat16(), torch.randn(5, 5)
    with torch.no_grad(), regard.watch(model := FunctionModel()) as recording:
        model(q, q, q, mask)
    assert recording["attn"].verified
    assert "sdpa" in str(recording)


def test_a_model_without_attention_is_named():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(ValueError, match=r"no attention was seen in Sequential.*not called"), regard.watch(model):
        model(torch.randn(2, 4))


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [(None, "Module"), (FunctionModel, "Module"), ("a text", "got the text 'a text': for a text regard.see")],
)
def test_what_is_no_module_is_refused(wrong, message):
    with pytest.raises(TypeError, match=message), regard.watch(wrong):
        pass


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": "everything"}, "keep='everything'"),
        ({"layers": [7]}, r"layers=\[7\]: BertModel has 2 layers, 0 to 1"),
        ({"heads": [4]}, r"heads=\[4\]: BertModel has 4 heads, 0 to 3"),
        *(({"layers": wrong}, r"^layers=.*: a list of numbers counted from 0") for wrong in (1, "1", [], [-1], [1.0])),
        ({"heads": [True]}, r"^heads=.*: a list of numbers counted from 0, such as \[0, 3\]$"),
    ],
)
def test_options_that_do_not_exist_are_refused(options, message):
    model = load_model("bert")
    with pytest.raises(ValueError, match=message), torch.no_grad(), regard.watch(model, **options):
        model(**make_inputs("bert", "even"))
    assert torch._C._len_torch_function_stack() == 0
