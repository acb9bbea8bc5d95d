"""What a training loop needs: second derivatives, masks changed meanwhile, autocast, memory, numbers that overflow."""

import gc
import weakref

import pytest
import torch

import regard
from grids import grid
from regard import mask, positions
from regard.attention.bias import PositionBias

IDS = torch.arange(1100) // 300
KERNELS = {
    "bands": {"mask": mask.window(5)},
    "packed": {"mask": mask.documents(IDS)},
    "tiles": {"mask": mask.prefix(7)},
    "chunked": {"softcap": 2.0},
    "chunked with dropout": {"mask": mask.causal(), "dropout": 0.3},
}
every_kernel = pytest.mark.parametrize("options", KERNELS.values(), ids=KERNELS)


def qkv(tokens=1100, dtype=torch.float32, batch=1):
    return [torch.randn(batch, 2, tokens, 8, dtype=dtype, requires_grad=True) for _ in "qkv"]


@pytest.mark.parametrize(("name", "options"), KERNELS.items(), ids=KERNELS)
def test_backward_twice_over_one_graph_but_no_second_derivative(name, options):
    tensors = qkv()
    assert regard.plan(*tensors, **options).kernel == name.split()[0]
    output = regard.attend(*tensors, **options)
    first = torch.autograd.grad(output.sum(), tensors, retain_graph=True)
    for a, b in zip(first, torch.autograd.grad(output.sum(), tensors, retain_graph=True), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(NotImplementedError, match=r"no second derivative\. regard\.steps"):
        torch.autograd.grad(output.sum(), tensors, create_graph=True)


ALLOWED, BIAS = torch.ones(1100, 1100).bool(), torch.randn(1, 1100)
FROZEN = positions.T5Relative(2).requires_grad_(False)


@pytest.mark.parametrize(
    ("options", "tensor"),
    [
        ({"mask": mask.allowed(ALLOWED)}, ALLOWED),
        ({"mask": ~mask.allowed(ALLOWED) | mask.window(3)}, ALLOWED),
        ({"mask": mask.window(5), "bias": BIAS}, BIAS),
        ({"mask": mask.prefix(5), "bias": FROZEN}, FROZEN.weight),
    ],
    ids=["allowed", "inside a mask", "bias", "frozen T5"],
)
def test_a_tensor_of_the_mask_or_bias_must_not_change_before_backward(options, tensor):
    output = regard.attend(*qkv(), **options)
    tensor.zero_()
    with pytest.raises(RuntimeError, match="changed in place between the forward and the backward pass"):
        output.sum().backward()


def test_lengths_and_ids_are_copied():
    lengths, ids = torch.tensor([3]), torch.tensor([0, 0, 1])
    masks = mask.padding(lengths), mask.prefix(lengths), mask.documents(ids)
    before = [m.dense(3, 3).clone() for m in masks]
    lengths.fill_(99)
    ids.fill_(0)
    assert all(torch.equal(m.dense(3, 3), dense) for m, dense in zip(masks, before, strict=True))


@every_kernel
def test_queries_are_freed_with_the_graph(options):
    x, k, v = qkv()
    q = x * 2
    reference = weakref.ref(q)
    output = regard.attend(q, k, v, **options)
    del q
    output.sum().backward()
    gc.disable()  # by counting references alone
    try:
        assert reference() is None, "the output keeps q alive after its backward pass"
    finally:
        gc.enable()


class BiasOfSlopes(PositionBias):
    """A bias whose numbers another network returned: no parameter of its own."""

    num_heads = 2

    def __init__(self, slopes):
        super().__init__()
        self.slopes = slopes

    def forward(self, query, key):
        return self.slopes[:, None, None] * (key - query[:, None])


def test_a_bias_that_would_lose_its_gradient_is_refused():
    tensors, slopes = qkv(30), torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match=r"no nn\.Parameter of it.*bias\.dense\(queries, keys\)"):
        regard.attend(*tensors, bias=BiasOfSlopes(slopes))
    output = regard.attend(*tensors, bias=BiasOfSlopes(slopes).dense(30, 30))
    (gradient,) = torch.autograd.grad(output.pow(2).sum(), slopes)
    assert gradient.abs().min() > 0


def test_a_bias_of_the_wrong_shape_is_named():
    with pytest.raises(ValueError, match=r"must return floating-point numbers \(heads=2, queries, keys\)"):
        regard.attend(*qkv(30), bias=BiasOfSlopes(torch.ones(3)))


@grid(tokens=[10, 63, 64, 300], name=["plain", *KERNELS])
def test_autocast_is_the_same_for_every_kernel(tokens, name):
    options = {"mask": mask.documents(IDS[:tokens])} if name == "packed" else {**KERNELS, "plain": {}}[name]
    q, k, v = qkv(tokens)
    with torch.autocast("cpu"):
        output = regard.attend(q, k, v, sinks=torch.zeros(2), **options)
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    assert all(t.grad.dtype == torch.float32 and t.grad.isfinite().all() for t in (q, k, v))
