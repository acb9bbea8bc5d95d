"""The projections' products: oneDNN's in inference, the module's own wherever somebody may look."""

from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn

import regard
from cases import OperatorTrace
from grids import grid
from regard.attention.linear import apply_linear

ONEDNN = "mkldnn::_linear_pointwise"
needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch was built without oneDNN")


def linear(width=256, outputs=260, *, bias=True, dtype=torch.float32):
    return nn.Linear(width, outputs, bias=bias).to(dtype)


def layouts(rows, width=256):
    return {
        "contiguous": torch.randn(2, rows, width),
        "one text": torch.randn(rows, width),
        "every other feature": torch.randn(2, rows, 2 * width)[..., ::2],
        "tokens first": torch.randn(rows, 2, width).transpose(0, 1),
        "one row for all": torch.randn(1, 1, width).expand(2, rows, width),
    }


@needs_onednn
@grid(layout=layouts(4), rows=[4, 33], bias=[True, False], mode=[torch.no_grad, torch.inference_mode])
def test_it_is_the_product_in_float64(layout, rows, bias, mode):
    module, x = linear(bias=bias), layouts(rows)[layout]
    with mode():
        with OperatorTrace() as trace:
            result = apply_linear(module, x)
        exact = module.double()(x.double())
    assert ONEDNN in trace.operators
    assert result.shape == exact.shape
    torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-5)


def hooked(module):
    module.register_forward_hook(lambda module, inputs, output: output + 1)
    return module


def replaced(module):
    module.forward = lambda x: x[..., :1]
    return module


def transposed(module):
    module.weight = nn.Parameter(torch.randn(256, 260).T)
    return module


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


OTHERS = {
    "a hook": lambda: hooked(linear()),
    "a forward of its own": lambda: replaced(linear()),
    "a subclass": lambda: Doubled(256, 260),
    "a weight of another layout": lambda: transposed(linear()),
    "float64": lambda: linear(dtype=torch.float64),
    "bfloat16": lambda: linear(dtype=torch.bfloat16),
    "few weights": lambda: linear(outputs=8),
    "no projection": nn.Identity,
}


@contextmanager
def turned_off(backend):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "enabled", False)
        yield


@pytest.mark.parametrize("other", OTHERS)
@torch.no_grad()
def test_another_module_is_called(other):
    module = OTHERS[other]()
    x = torch.randn(2, 9, 256, dtype=next((p.dtype for p in module.parameters()), torch.float32))
    with OperatorTrace() as trace:
        result = apply_linear(module, x)
    assert torch.equal(result, module(x))
    assert ONEDNN not in trace.operators


@pytest.mark.parametrize(
    "context",
    [torch.enable_grad, lambda: torch.autocast("cpu"), lambda: turned_off(torch.backends.mkldnn)],
    ids=["gradients", "autocast", "oneDNN turned off"],
)
def test_pytorchs_own_product_where_it_is_asked_for(context):
    module, x = linear(), torch.randn(2, 9, 256)
    with torch.no_grad(), context(), OperatorTrace() as trace:
        result = apply_linear(module, x)
        assert torch.equal(result, module(x))
    assert ONEDNN not in trace.operators


def test_a_transform_reaches_the_weights():
    module, x = linear(), torch.randn(3, 9, 256)
    with torch.no_grad():
        torch.testing.assert_close(torch.func.vmap(lambda row: apply_linear(module, row))(x), module(x))


@pytest.mark.parametrize("shape", [(256,), (3, 256), (0, 256), (0, 9, 256), (64, 3, 256)], ids=str)
@torch.no_grad()
def test_few_tokens_are_left_to_pytorch_in_any_batch(shape):
    module, x = linear(), torch.randn(shape)
    assert torch.equal(apply_linear(module, x), module(x))


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_a_wrong_width_is_refused_as_pytorch_does():
    with torch.no_grad(), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        apply_linear(linear(), torch.randn(2, 9, 255))


def test_a_hook_of_every_module_sees_the_projections():
    attention, seen = regard.MultiHeadAttention(256, 4).eval(), []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module)))
    try:
        with torch.no_grad():
            attention(torch.randn(2, 9, 256))
    finally:
        handle.remove()
    assert seen.count(nn.Linear) == 2


@needs_onednn
@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode])
def test_attention_in_inference_is_that_of_training_but_for_rounding(mode):
    attention, x = regard.MultiHeadAttention(256, 4, bias=True).eval(), torch.randn(2, 9, 256)
    with mode():
        output = attention(x)
    torch.testing.assert_close(output, attention(x))
    torch.testing.assert_close(output.double(), attention.double().steps(x.double()).projected, rtol=1e-5, atol=1e-5)
