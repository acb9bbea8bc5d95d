"""Linear layers of an update by oneDNN against PyTorch's own, and what is left to PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from runs import build_task
from torch import nn

from grids import grid
from regard.training import linear
from regard.training.linear import OneDNNLinear, is_supported
from regard.training.loss import LinearLogits, linear_cross_entropy
from regard.training.loss_module import LossModule
from regard.transformer import Config, Decoder

pytestmark = pytest.mark.skipif(
    not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()),
    reason="this PyTorch has no MKL or no oneDNN, so every product is PyTorch's",
)


@pytest.fixture(autouse=True)
def products_of_any_size(monkeypatch):
    monkeypatch.setattr(linear, "MIN_MULTIPLICATIONS", 1)


@pytest.fixture
def num_products(monkeypatch):
    """A list with one entry for each product by oneDNN."""
    calls = []
    multiply = linear.multiply

    def counted(*args):
        calls.append(args)
        return multiply(*args)

    for module in ("linear", "loss"):
        monkeypatch.setattr(f"regard.training.{module}.multiply", counted)
    return calls


class TestOneDNNLinear:
    @grid(shape=[(5, 12), (2, 5, 12), (1, 2, 3, 12)], bias=[True, False], trained=["all", "weights", "input"])
    def test_output_and_gradients_equal_pytorchs(self, shape, bias, trained, num_products):
        layer = nn.Linear(12, 7, bias=bias).requires_grad_(trained != "input")
        x = torch.randn(shape).requires_grad_(trained != "weights")
        inputs = [tensor for tensor in (x, *layer.parameters()) if tensor.requires_grad]
        factor = torch.randn(*shape[:-1], 7)
        with OneDNNLinear():
            found = layer(x)
        found_grads = torch.autograd.grad((found * factor).sum(), inputs)
        assert len(num_products) == {"all": 3, "weights": 2, "input": 2}[trained]
        wanted = layer(x)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(found_grads, torch.autograd.grad((wanted * factor).sum(), inputs))

    def test_a_transposed_input_and_the_gradient_of_a_sum(self):
        layer, x = nn.Linear(12, 7), torch.randn(12, 5).t().requires_grad_()
        inputs = [x, *layer.parameters()]
        with OneDNNLinear():
            found = torch.autograd.grad(layer(x).sum(), inputs)  # the gradient is one number, expanded
        torch.testing.assert_close(found, torch.autograd.grad(layer(x).sum(), inputs))

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_other_dtypes_are_left_to_pytorch(self, dtype, num_products):
        with OneDNNLinear():
            F.linear(torch.randn(5, 12, dtype=dtype), torch.randn(7, 12, dtype=dtype))
        assert not num_products

    def test_autocast_and_small_products_are_left_to_pytorch(self, monkeypatch):
        x, weight = torch.randn(5, 12), torch.randn(7, 12)
        with torch.autocast("cpu", torch.bfloat16):
            assert not is_supported(x, weight)
        monkeypatch.setattr(linear, "MIN_MULTIPLICATIONS", 5 * 12 * 7)
        assert is_supported(x, weight)
        assert not is_supported(x[:4], weight)


class TestLoss:
    @grid(vocab_size=[16, 17], bias=[True, False], max_chunk_logits=[40, 1000])
    def test_rows_that_do_not_begin_on_a_cache_line(self, vocab_size, bias, max_chunk_logits, num_products):
        shapes = [(9, 12), (vocab_size, 12), *([(vocab_size,)] if bias else [])]
        inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
        targets = torch.randint(vocab_size, (9,))
        found = linear_cross_entropy(LinearLogits(*inputs), targets, max_chunk_logits=max_chunk_logits)
        assert bool(num_products) == (vocab_size == 17)
        wanted = F.cross_entropy(F.linear(*inputs), targets, reduction="sum")
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(torch.autograd.grad(found, inputs), torch.autograd.grad(wanted, inputs))

    def test_an_update_multiplies_by_onednn_and_an_evaluation_by_pytorch(self, num_products, monkeypatch):
        config = Config(num_layers=2, d_model=16, num_heads=2, d_ff=32, vocab_size=32, max_positions=16)
        task = build_task("lm")
        module = LossModule(Decoder(config), task, dropout=0.0)
        examples = [{"ids": [1, 2, 3, 4, 5], "targets": [2, 3, 4, 5, 6], "location": ""}]
        tensors = task.batch(examples).tensors
        module.train()
        found = module(tensors)
        found.backward()
        assert len(num_products) == 2 * 4 * 3  # layers, projections, the products of each
        grads = {name: parameter.grad for name, parameter in module.named_parameters()}
        module.zero_grad()
        num_products.clear()
        module.eval()
        torch.testing.assert_close(found, module(tensors))
        assert not num_products
        monkeypatch.setattr(linear, "MIN_MULTIPLICATIONS", 2**60)
        module.train()
        module(tensors).backward()
        wanted = {name: parameter.grad for name, parameter in module.named_parameters()}
        torch.testing.assert_close(grads, wanted)
