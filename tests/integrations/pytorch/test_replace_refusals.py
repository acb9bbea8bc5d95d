"""What `regard.replace` refuses: each module by its name, and with the reason."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

import regard
from regard.integrations.pytorch.modules import Replacement


class OwnForward(nn.MultiheadAttention):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


class OwnLayer(nn.TransformerEncoderLayer):
    def _sa_block(self, *args, **kwargs):
        return super()._sa_block(*args, **kwargs)


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def with_attention(attention):
    return nn.ModuleDict({"plain": nn.MultiheadAttention(8, 2), "other": attention})


def own_forward_on_the_object():
    attention = nn.MultiheadAttention(8, 2)
    attention.forward = attention.forward
    return attention


def parametrized():
    attention = nn.MultiheadAttention(8, 2)
    parametrize.register_parametrization(attention, "in_proj_weight", Doubled())
    return attention


def compiled():
    attention = nn.MultiheadAttention(8, 2)
    attention.compile(backend="eager")
    return attention


def quantized():
    attention = nn.MultiheadAttention(8, 2)
    attention.out_proj = nn.Identity()
    return attention


def quantized_queries():
    attention = nn.MultiheadAttention(8, 2, kdim=4)
    del attention.q_proj_weight
    attention.q_proj_weight = nn.Identity()
    return attention


REFUSED = {
    "has a forward of its own class": lambda: OwnForward(8, 2),
    "has a forward that was set on this object": own_forward_on_the_object,
    r"is parametrized \(torch.nn.utils.parametrize\)": parametrized,
    "is compiled: give the model as it was before torch.compile": compiled,
    "has a projection whose weight is no tensor": quantized,
    r"has a projection whose weight is no tensor \(a quantized module\?\)": quantized_queries,
    "is on the meta device": lambda: nn.MultiheadAttention(8, 2, device="meta"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_an_attention_that_cannot_be_replaced_is_named_and_nothing_is_replaced(reason):
    model = with_attention(REFUSED[reason]())
    with pytest.raises(ValueError, match=rf"cannot replace other \(\w+\) {reason}.*Nothing was replaced; skip="):
        regard.replace(model)
    assert not any(isinstance(module, Replacement) for module in model.modules())
    with regard.replace(model, skip=["other"]) as replaced:
        assert [m.paths for m in replaced.modules] == [("plain",)]


def test_a_compiled_model_is_refused():
    model = torch.compile(nn.MultiheadAttention(8, 2), backend="eager")
    with pytest.raises(ValueError, match=r"the model itself \(OptimizedModule\) is compiled: give the model as it was"):
        regard.replace(model)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_a_layer_of_torchscript_is_refused():
    model = nn.Sequential(torch.jit.script(nn.TransformerEncoderLayer(8, 2, 16)))
    with pytest.raises(ValueError, match=r"0 \(RecursiveScriptModule\) is compiled by TorchScript"):
        regard.replace(model)


def test_a_layer_with_code_of_its_own_is_left_and_its_attention_is_replaced():
    model = nn.Sequential(OwnLayer(8, 2, 16, batch_first=True))
    replaced = regard.replace(model, torch.randn(2, 5, 8))
    assert [m.paths for m in replaced.modules] == [("0.self_attn",)]
    assert "0 (OwnLayer) has _sa_block of its own class, so the layer is left; its attention is replaced" in str(
        replaced
    )


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_what_is_no_module_is_refused():
    with pytest.raises(TypeError, match=r"wants a torch.nn.Module; got str"):
        regard.replace("model")


def test_a_model_without_such_a_module_is_refused():
    with pytest.raises(ValueError, match=r"Linear has no nn.MultiheadAttention to replace"):
        regard.replace(nn.Linear(2, 2))


def test_a_second_replacement_of_everything_is_refused():
    model = nn.MultiheadAttention(8, 2)
    regard.replace(model)
    with pytest.raises(ValueError, match=r"all 1 modules of RegardMultiheadAttention .* are replaced already"):
        regard.replace(model)


def test_a_path_to_skip_that_is_not_there_is_named():
    with pytest.raises(KeyError, match=r"skip='layers.7' is no module of MultiheadAttention"):
        regard.replace(nn.MultiheadAttention(8, 2), skip=["layers.7"])


@pytest.mark.parametrize("look", [regard.watch, regard.intervene])
def test_a_model_that_is_being_watched_or_edited_is_refused(look):
    model = nn.MultiheadAttention(8, 2)
    x = torch.randn(3, 1, 8)
    with look(model) as looked:
        if look is regard.intervene:
            looked[""].heads[0].ablate("zero")
        with pytest.raises(ValueError, match=r"a model is being watched or edited: replace it before"):
            regard.replace(model)
        model(x, x, x)


def test_a_class_that_was_changed_since_is_named_by_restore():
    model = nn.Sequential(nn.MultiheadAttention(8, 2))
    replaced = regard.replace(model)
    parametrize.register_parametrization(model[0], "in_proj_weight", Doubled())
    with pytest.raises(ValueError, match=r"cannot restore: 0 is now of the class ParametrizedRegardMultiheadAttention"):
        replaced.restore()
    parametrize.remove_parametrizations(model[0], "in_proj_weight")
    replaced.restore()
    assert type(model[0]) is nn.MultiheadAttention


CHANGES = {
    "the outputs": lambda output: output * (1 + 1e-6),
    "the gradients of": lambda output: output + (output - output.detach()),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("example", [None, torch.randn(2, 5, 8)], ids=["random input", "example"])
def test_a_pytorch_that_computes_something_else_is_noticed(monkeypatch, what, example):
    """As where a library has patched PyTorch's function: the outputs, or the gradients alone, are other ones."""
    pytorchs = F.multi_head_attention_forward

    def patched(*args, **kwargs):
        output, weights = pytorchs(*args, **kwargs)
        return CHANGES[what](output), weights

    monkeypatch.setattr(F, "multi_head_attention_forward", patched)
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    named = rf"cannot replace 0(\.self_attn)? \(\w+\): {what} .*differ by .* in float64.*Nothing was replaced"
    with pytest.raises(ValueError, match=named):
        regard.replace(model, example)
    assert not any(isinstance(module, Replacement) for module in model.modules())


class ByClass(nn.Module):
    """A model that computes something else where its attention is not of PyTorch's class."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)

    def forward(self, x):
        sign = 1 if type(self.attention) is nn.MultiheadAttention else -1
        return sign * self.attention(x, x, x)[0]


def test_a_model_whose_output_changes_is_restored_and_refused():
    model = ByClass()
    with pytest.raises(ValueError, match=r"output 0 of the model differs by .* every module by itself is equal"):
        regard.replace(model, torch.randn(5, 2, 8))
    assert type(model.attention) is nn.MultiheadAttention


class Silent(ByClass):
    def forward(self, x):
        super().forward(x)
        return "done"


def test_a_model_without_a_tensor_to_compare_is_refused_with_example_inputs():
    model = Silent()
    with pytest.raises(ValueError, match=r"returned 0 tensors before and 0 after"):
        regard.replace(model, torch.randn(5, 2, 8))
    assert type(model.attention) is nn.MultiheadAttention


def test_rows_that_pytorch_makes_nan_are_not_compared_but_a_whole_of_nan_is_refused():
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(1, 4, 8)
    blocked = torch.zeros(4, 4).bool()
    blocked[0] = True
    with regard.replace(model, (x, x, x, None, True, blocked)):
        assert model(x, x, x, attn_mask=blocked)[0].isfinite().all()
    with pytest.raises(ValueError, match="output 0 of the model has no finite number"):
        regard.replace(model, (x, x, x, None, True, torch.ones(4, 4).bool()))
