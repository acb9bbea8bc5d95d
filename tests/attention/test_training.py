"""What a training loop meets: second derivatives, masks changed meanwhile, autocast, memory, numbers that overflow."""

import gc
import weakref

import pytest
import torch

import regard
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
def test_these_are_the_kernels(name, options):
    assert regard.plan(*qkv(), **options).kernel == name.split()[0]


@every_kernel
def test_a_second_derivative_is_refused_and_not_wrong(options):
    q, k, v = qkv()
    output = regard.attend(q, k, v, **options)
    with pytest.raises(NotImplementedError, match=r"no second derivative\. regard\.steps"):
        torch.autograd.grad(output.sum(), q, create_graph=True)


@every_kernel
def test_backward_twice_over_one_graph(options):
    q, k, v = qkv()
    output = regard.attend(q, k, v, **options)
    first = torch.autograd.grad(output.sum(), (q, k, v), retain_graph=True)
    for a, b in zip(first, torch.autograd.grad(output.sum(), (q, k, v)), strict=True):
        assert torch.equal(a, b)


def held():
    """Masks and biases, and the tensor of each that somebody may change."""
    may, bias = torch.rand(1100, 1100) < 0.5, torch.randn(1, 1100)
    relative = positions.T5Relative(2).requires_grad_(False)
    return {
        "allowed": ({"mask": mask.allowed(may)}, may),
        "inside a mask": ({"mask": ~mask.allowed(may) | mask.window(3)}, may),
        "bias": ({"mask": mask.window(5), "bias": bias}, bias),
        "frozen T5": ({"mask": mask.prefix(5), "bias": relative}, relative.weight),
    }


@pytest.mark.parametrize("name", held())
def test_what_a_mask_or_bias_holds_must_not_change_before_backward(name):
    (options, tensor), (q, k, v) = held()[name], qkv()
    output = regard.attend(q, k, v, **options)
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
    x, (_, k, v) = torch.randn(1, 2, 1100, 8, requires_grad=True), qkv()
    q = x * 2
    seen = weakref.ref(q)
    output = regard.attend(q, k, v, **options)
    del q
    output.sum().backward()
    gc.disable()  # by counting references alone
    try:
        assert seen() is None, "the output keeps q alive after its backward pass"
    finally:
        gc.enable()


class Hyper(PositionBias):
    """A bias whose numbers another network made: no parameter of its own."""

    num_heads = 2

    def __init__(self, made, shape=(2, -1, -1)):
        super().__init__()
        self.made, self.shape = made, shape

    def forward(self, query, key):
        return (self.made[:, None, None] * (key - query[:, None])).expand(self.shape)


def test_a_bias_that_would_lose_its_gradient_is_refused():
    q, k, v = qkv(30)
    with pytest.raises(ValueError, match=r"no nn\.Parameter of it.*bias\.dense\(queries, keys\)"):
        regard.attend(q, k, v, bias=Hyper(torch.ones(2, requires_grad=True)))
    made = torch.ones(2, requires_grad=True)
    table = Hyper(made).dense(30, 30)
    (gradient,) = torch.autograd.grad(regard.attend(q, k, v, bias=table).pow(2).sum(), made)
    assert gradient.abs().min() > 0


def test_a_bias_of_the_wrong_shape_is_named():
    with pytest.raises(ValueError, match=r"must return floating-point numbers \(heads=2, queries, keys\)"):
        regard.attend(*qkv(30), bias=Hyper(torch.ones(3), (3, -1, -1)))


@pytest.mark.parametrize("tokens", [10, 63, 64, 300])
@pytest.mark.parametrize("options", [{}, *KERNELS.values()], ids=["plain", *KERNELS])
def test_autocast_is_the_same_for_every_kernel(tokens, options):
    if "mask" in options and isinstance(options["mask"], type(mask.documents([0]))):
        options = {"mask": mask.documents(IDS[:tokens])}
    q, k, v = qkv(tokens)
    with torch.autocast("cpu"):
        output = regard.attend(q, k, v, sinks=torch.zeros(2), **options)
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    assert all(t.grad.dtype == torch.float32 and t.grad.isfinite().all() for t in (q, k, v))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [16, 80, 600])
@pytest.mark.parametrize("who", [None, mask.causal(), mask.prefix(3), mask.window(9)], ids=repr)
def test_infinity_in_half_precision_is_nan_and_not_zero(who, tokens, dtype):
    q, k, v = (t.detach() for t in qkv(tokens, dtype))
    k[0, 0, 3, 3] = torch.inf
    expected = regard.steps(q.double(), k.double(), v.double(), who).output.isnan()
    assert expected.any()
    assert torch.equal(regard.attend(q, k, v, who).isnan(), expected)


def test_nan_in_one_batch_row_leaves_the_bits_of_another():
    for who in (mask.padding([80, 60]), mask.prefix(3), mask.window(9), mask.documents(IDS[:80])):
        q, k, v = (t.detach() for t in qkv(80, batch=2))
        k[0, 0, 3] = torch.nan
        alone = mask.padding([60]) if "padding" in repr(who) else who
        assert torch.equal(regard.attend(q, k, v, who)[1:], regard.attend(q[1:], k[1:], v[1:], alone))


@pytest.mark.parametrize("tokens", [40, 1100])
def test_documents_that_lie_otherwise_in_one_row_leave_the_bits_of_another(tokens):
    q, k, v = (t.detach() for t in qkv(tokens, batch=2))
    ids = torch.stack([torch.arange(tokens) // 7, torch.arange(tokens) % 5])
    together = regard.attend(q, k, v, mask.documents(ids))
    for row in range(2):
        one = slice(row, row + 1)
        assert torch.equal(together[one], regard.attend(q[one], k[one], v[one], mask.documents(ids[one])))


def test_masks_of_batch_rows_in_tiles_leave_the_bits_of_one_another():
    q, k, v = (t.detach() for t in qkv(1100, batch=3))
    for make in (
        lambda rows: mask.prefix([[900, 0, 40][n] for n in rows]),
        lambda rows: mask.padding([[900, 3, 1100][n] for n in rows]) & ~mask.window(7),
    ):
        together = regard.attend(q, k, v, make([0, 1, 2]))
        for row in range(3):
            one = slice(row, row + 1)
            assert torch.equal(together[one], regard.attend(q[one], k[one], v[one], make([row])))
