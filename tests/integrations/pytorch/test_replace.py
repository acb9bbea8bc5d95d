"""`regard.replace`: what is replaced, what stays, and the way back."""

import copy
import io

import pytest
import torch
from torch import nn

import regard
from regard.integrations.pytorch.modules import RegardMultiheadAttention, RegardTransformerEncoderLayer

PYTORCH = {nn.MultiheadAttention, nn.TransformerEncoderLayer}
REGARD = {RegardMultiheadAttention, RegardTransformerEncoderLayer}


def encoder(**options):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, **{"batch_first": True, **options})
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def classes(model):
    return {type(module) for module in model.modules()} & (PYTORCH | REGARD)


class Subclass(nn.MultiheadAttention):
    """A name of its own, and PyTorch's forward."""


class Cross(nn.Module):
    """One attention under two paths, one that is of a subclass, and one that is never called."""

    def __init__(self):
        super().__init__()
        self.first = Subclass(8, 2, kdim=6, vdim=6)
        self.second = self.again = nn.MultiheadAttention(8, 2)
        self.unused = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x, context):
        x = self.first(x, context, context)[0]
        return self.again(self.second(x, x, x)[0], x, x, average_attn_weights=False)


def test_layers_and_attentions_get_regards_class_and_their_own_back():
    model = encoder()
    replaced = regard.replace(model)
    assert classes(model) == REGARD
    assert [m.paths for m in replaced.modules] == [
        ("layers.0",),
        ("layers.0.self_attn",),
        ("layers.1",),
        ("layers.1.self_attn",),
    ]
    replaced.restore()
    assert classes(model) == PYTORCH
    replaced.restore()  # a second time changes nothing
    assert classes(model) == PYTORCH


def test_the_block_of_a_with_ends_with_pytorchs_classes_also_after_an_error():
    model = encoder()
    with regard.replace(model):
        assert classes(model) == REGARD
    assert classes(model) == PYTORCH
    with pytest.raises(ZeroDivisionError), regard.replace(model):
        _ = 1 / 0
    assert classes(model) == PYTORCH


def test_with_example_inputs_the_models_own_calls_are_proved():
    replaced = regard.replace(Cross(), (torch.randn(5, 2, 8), torch.randn(3, 2, 6)))
    proofs = {m.paths: (m.original, m.proved_on, m.calls) for m in replaced.modules}
    assert proofs == {
        ("first",): (Subclass, "example inputs", 1),
        ("second", "again"): (nn.MultiheadAttention, "example inputs", 2),
        ("unused",): (nn.MultiheadAttention, "random input", 5),
    }
    assert 0 <= replaced.output_difference < 1e-6


def test_the_table_names_every_module_with_its_classes_its_difference_and_its_proof():
    text = str(regard.replace(Cross(), (torch.randn(5, 2, 8), torch.randn(3, 2, 6))))
    assert text.startswith("Cross: 3 modules replaced; its output on the example inputs differs by ")
    lines = [line.split() for line in text.splitlines()]
    assert lines[3][:3] == ["first", "Subclass", "RegardSubclass"]
    assert lines[3][4:] == ["example", "inputs,", "1", "call"]
    assert lines[4][:5] == ["second", "(and", "again)", "MultiheadAttention", "RegardMultiheadAttention"]
    assert lines[5][-4:] == ["random", "input,", "5", "calls"]


def test_parameters_and_an_optimizer_made_before_stay():
    model = encoder(dropout=0.0)
    reference = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9) for m in (model, reference)]
    before = list(model.parameters())
    regard.replace(model)
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
    x = torch.randn(2, 5, 8)
    for _ in range(2):
        for m, optimizer in zip((model, reference), optimizers, strict=True):
            optimizer.zero_grad()
            m(x, mask=torch.ones(5, 5).bool().triu(1)).square().sum().backward()
            optimizer.step()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_state_dict_goes_both_ways():
    model, other = encoder(), encoder()
    with torch.no_grad():
        for p in other.parameters():
            p.normal_()
    keys = list(model.state_dict())
    regard.replace(model)
    assert list(model.state_dict()) == keys
    model.load_state_dict(other.state_dict())
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(model.eval()(x), other.eval()(x))
    other.load_state_dict(model.state_dict())


def test_copies_and_files_of_the_whole_model_keep_the_replacement_and_can_be_restored():
    model, x = Cross().eval(), (torch.randn(5, 2, 8), torch.randn(3, 2, 6))
    replaced = regard.replace(model, x)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert type(twin.first) is type(model.first)
        assert twin.second is twin.again
        torch.testing.assert_close(twin(*x), model(*x))
        replaced.restore(twin)
        assert [type(twin.first), type(twin.second)] == [Subclass, nn.MultiheadAttention]
    assert type(model.second) is RegardMultiheadAttention


def test_hooks_stay_and_none_is_called_by_the_proof_of_a_module():
    model, calls = encoder(), []
    model.layers[0].self_attn.register_forward_hook(lambda module, args, output: calls.append(len(output)))
    model.layers[1].linear1.register_forward_pre_hook(lambda module, args: calls.append("pre"))
    regard.replace(model)
    assert calls == []
    model(torch.randn(2, 5, 8))
    assert calls == [2, "pre"]


def test_modes_gradients_flags_and_random_numbers_are_left_as_they_were():
    model = encoder().train()
    model.layers[1].eval()
    model.layers[0].linear1.weight.requires_grad_(False)
    modes = [m.training for m in model.modules()]
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    regard.replace(model, torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.rand(2), expected)
    assert [m.training for m in model.modules()] == modes
    assert all(p.grad is None for p in model.parameters())
    assert not model.layers[0].linear1.weight.requires_grad
    assert torch.backends.mha.get_fastpath_enabled()
    assert not model.layers[0]._forward_hooks


@pytest.mark.parametrize("inputs", [torch.randn(2, 5, 8), (torch.randn(2, 5, 8),), {"src": torch.randn(2, 5, 8)}])
def test_example_inputs_are_a_value_a_tuple_or_a_dict(inputs):
    assert regard.replace(encoder(), inputs).output_difference < 1e-6


def test_the_model_may_be_the_attention_itself():
    model = nn.MultiheadAttention(8, 2)
    with regard.replace(model) as replaced:
        assert type(model) is RegardMultiheadAttention
        assert "the model itself" in str(replaced)
    assert type(model) is nn.MultiheadAttention


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_model_of_any_precision_is_proved(dtype):
    model = nn.MultiheadAttention(16, 2, batch_first=True).to(dtype)
    (module,) = regard.replace(model, (torch.randn(2, 9, 16).to(dtype),) * 3).modules
    assert module.difference <= 4 * torch.finfo(dtype).eps


def test_under_inference_mode_it_is_proved_too():
    model = encoder().eval()
    with torch.inference_mode():
        x = torch.randn(2, 5, 8)
        assert regard.replace(model, x).output_difference < 1e-6
    model(torch.randn(2, 5, 8)).sum().backward()


def test_what_is_skipped_stays():
    model = encoder()
    with regard.replace(model, skip=["layers.0"]):
        assert classes(model.layers[0]) == PYTORCH
        assert classes(model.layers[1]) == REGARD
    with regard.replace(model, skip=["layers.0.self_attn"]) as replaced:
        # A layer around an attention of PyTorch's is left.
        assert [m.paths[0] for m in replaced.modules] == ["layers.1", "layers.1.self_attn"]


def test_what_is_replaced_already_is_left_to_the_one_who_replaced_it():
    model = encoder()
    first = regard.replace(model, skip=["layers.0"])
    with regard.replace(model) as second:
        assert [m.paths[0] for m in second.modules] == ["layers.0", "layers.0.self_attn"]
    assert classes(model.layers[1]) == REGARD
    first.restore()
    assert classes(model) == PYTORCH
