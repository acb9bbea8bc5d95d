"""Transforms of `torch.func`: gradients, forward derivatives and batches of calls."""

import pytest
import test_gpu as gpu
import torch
from torch import func

import regard
from grids import grid
from regard import mask, positions

OPTIONS = {**gpu.OPTIONS, "ALiBi": {"bias": positions.ALiBi(4)}}

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # within torch


def gradients(call, qkv):
    """The gradients, and those of a backward pass."""
    leaves = [t.requires_grad_() for t in qkv]
    expected = torch.autograd.grad(call(*leaves), leaves)
    return func.grad(call, (0, 1, 2))(*(t.detach() for t in leaves)), expected


def forward_derivatives(call, qkv):
    """The slope in a direction, and the gradients' product with it."""
    directions = tuple(map(torch.randn_like, qkv))
    pairs = zip(func.grad(call, (0, 1, 2))(*qkv), directions, strict=True)
    return func.jvp(call, qkv, directions)[1], sum((gradient * direction).sum() for gradient, direction in pairs)


def batch_of_calls(call, qkv):
    """Several calls at once, and one after the other."""
    batch = [torch.stack([t, 2 * t, -t]) for t in qkv]
    return func.vmap(call)(*batch), torch.stack([call(*row) for row in zip(*batch, strict=True)])


@grid(
    name=["full", "causal", "documents per row", "per head", "algebra"],
    option=OPTIONS,
    transform=[gradients, forward_derivatives, batch_of_calls],
)
def test_every_kind_of_attention(name, option, transform):
    qkv = tuple(torch.randn(2, heads, 160, 8, dtype=torch.float64) for heads in (4, 2, 2))
    options = {key: value.double() if torch.is_tensor(value) else value for key, value in OPTIONS[option].items()}
    result, expected = transform(lambda q, k, v: regard.attend(q, k, v, gpu.MASKS[name], **options).square().sum(), qkv)
    torch.testing.assert_close(result, expected)


def test_second_derivatives():
    q, k, v = torch.randn(3, 1, 3, 2, dtype=torch.float64)
    hessian = func.hessian(lambda q: regard.attend(q, k, v, mask.causal()).square().sum())(q)
    expected = torch.autograd.functional.hessian(
        lambda q: regard.steps(q, k, v, mask.causal()).output.square().sum(), q
    )
    torch.testing.assert_close(hessian, expected)


def test_gradients_of_each_text_by_itself():
    model, x = regard.MultiHeadAttention(8, 2, positions=positions.Rotary(4)), torch.randn(3, 5, 8)
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights, row):
        return func.functional_call(model, weights, (row[None],), {"mask": mask.causal()}).square().sum()

    by_text = func.vmap(func.grad(loss), (None, 0))(weights, x)
    for i, row in enumerate(x):
        expected = torch.autograd.grad(model(row[None], mask=mask.causal()).square().sum(), list(model.parameters()))
        torch.testing.assert_close([by_text[name][i] for name, _ in model.named_parameters()], list(expected))


def test_dropout_draws_anew_for_each_call():
    q = torch.ones(2, 1, 64, 4)

    def call(q):
        return regard.attend(q, q, q, dropout=0.5)

    outputs = func.vmap(call, randomness="different")(q)
    assert 0.8 < float(outputs.mean()) < 1.2
    assert not torch.equal(outputs[0], outputs[1])


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_wrong_arguments_are_named_there_too():
    with pytest.raises(ValueError, match="softcap=-1 must be above 0"):
        func.vmap(lambda q: regard.attend(q, q, q, softcap=-1))(torch.randn(2, 1, 3, 4))
