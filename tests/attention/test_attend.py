"""Whatever kernel runs, the output and the gradients are the definition's; and bugs that other libraries shipped."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given

import regard
from cases import HALF, LIMITS, SMALL_LIMITS, Attention, OperatorTrace, assert_is_the_definition, cases
from grids import grid, some_examples
from regard import mask


def qkv(*shape, dtype=torch.float32):
    return [torch.randn(*shape, dtype=dtype, requires_grad=True) for _ in "qkv"]


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "any"])
def test_attend_is_the_definition(plain):
    """Outputs and gradients, by every kernel; a plain call takes the early exit of attend.

    Other libraries dropped the mask beside an option (transformers#39389, keras#23038, pytorch#131254).
    """
    kernels = set()

    @some_examples(2.5)
    @given(cases(plain=plain))
    def check(case):
        with case.limits.apply():
            kernels.add(assert_is_the_definition(case.make()).kernel)

    check()
    assert plain or kernels == {"fused", "dense", "bands", "packed", "tiles", "chunked"}


@grid(queries=[2, 4], keys=[2, 4], heads=[(4, 2), (4, 1), (2, 2)])
def test_as_many_tokens_as_heads(queries, keys, heads):
    """Sizes that coincide: an axis that is read in place of another has the right length."""
    q, k, v = torch.randn(2, heads[0], queries, 8), *torch.randn(2, 2, heads[1], keys, 8)
    for m in (None, mask.causal(), mask.padding([1, 2])):
        torch.testing.assert_close(regard.attend(q, k, v, m), regard.steps(q, k, v, m).output)


@pytest.mark.parametrize(
    ("queries", "keys"), [(1, 1), (1, 7), (7, 1), (3, 7), (7, 3), (5, 5), (1, 70), (70, 1), (2, 70), (70, 66)]
)
def test_every_argument_of_every_mask_alone_and_in_pairs__pytorch_103082_108108__x_transformers_187(queries, keys):
    """With no other option a call takes the early exit of attend, which once took offset=0 for no offset.

    Fewer queries than keys are the last positions, as a cache needs (litgpt 2182).
    """
    q, k, v = (torch.randn(2, 2, n, 8) for n in (queries, keys, keys))
    offsets = [None, 0, 1, -1, keys - queries, keys, -queries]
    alone = [
        *(mask.causal(offset) for offset in offsets),
        *(mask.window(*widths, offset=offset) for widths in [(1, 0), (2, 0), (1, 2), (keys, 0)] for offset in offsets),
        *(mask.where(lambda i, j: (i + j) % 2 == 0, offset=offset) for offset in offsets),
        *(mask.padding([n, keys]) for n in {0, 1, keys}),
        *(mask.prefix(n) for n in (0, 1, keys, [0, keys])),
        mask.documents([j // 2 for j in range(keys)]),
        mask.documents([0] * queries, [j % 2 for j in range(keys)]),
        mask.allowed(torch.arange(keys) % 2 == torch.arange(queries)[:, None] % 2),
        mask.blocked((torch.arange(keys) == 0)[None, :]),
    ]
    pairs = [a & b for a in alone[:3] for b in alone[7::2]]
    for m in [None, *alone, *(~a for a in alone), *pairs]:
        expected = regard.steps(q.double(), k.double(), v.double(), m).output
        error = (regard.attend(q, k, v, m).double() - expected).abs().max()
        assert error <= 1e-6 * v.abs().max(), f"{m!r}: off by {error:.3g}"


def test_offset_0_is_pytorchs_causal_flag__mlx_2835():
    q, k, v = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 7, 4), torch.randn(1, 2, 7, 4)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(regard.attend(q, k, v, mask.causal(offset=0)), expected)


@pytest.mark.parametrize(
    "m",
    [
        None,
        mask.causal(),
        mask.causal(offset=-50),
        mask.padding([700, 0]),
        mask.blocked((torch.arange(700) < 600)[None, :]),
        mask.allowed(torch.arange(120)[:, None] % 3 == 0) & mask.causal(),
        mask.window(300, 20),
    ],
    ids=repr,
)
def test_more_tokens_than_the_kernel_takes_at_once(m):
    """The CPU kernel goes through the keys in blocks of up to 512; whole blocks may be out of bounds."""
    q, k, v = (torch.randn(2, *shape, requires_grad=True) for shape in ((2, 120, 16), (1, 700, 16), (1, 700, 8)))
    assert_is_the_definition(Attention(q, k, v, m, {}))


@pytest.mark.parametrize("m", [None, mask.causal(), mask.padding([3, 0]), mask.causal() & mask.padding([3, 3])])
@pytest.mark.parametrize("scale", [0.0, -0.5, 3.0, 5.8e-242, 1e-40, 1e-37])
def test_scale_of_any_sign_and_size(scale, m):
    """With its flag for causal, PyTorch 2.13's CPU kernel gives NaN for a scale that is 0 in float32 or negative."""
    assert_is_the_definition(Attention(*qkv(2, 2, 3, 4), m, {"scale": scale}))


@pytest.mark.parametrize("m", [None, mask.causal(), mask.window(9), mask.prefix(5)], ids=repr)
def test_whole_numbers_are_numbers(m):
    tensors = qkv(2, 2, 12, 4)
    output = regard.attend(*tensors, m, scale=1, softcap=2, dropout=0)
    assert torch.equal(output, regard.attend(*tensors, m, scale=1.0, softcap=2.0, dropout=0.0))


def test_a_float32_bias_is_trained_by_half_precision_inputs():
    """A module keeps its weights in float32 while autocast hands over half precision."""
    bias = regard.positions.T5Relative(2)
    tensors = qkv(1, 2, 9, 4, dtype=torch.bfloat16)
    output = regard.attend(*tensors, bias=bias)
    (gradient,) = torch.autograd.grad(output.float().sum(), bias.weight)
    assert (output.dtype, gradient.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(output, regard.attend(*(t.float() for t in tensors), bias=bias).bfloat16())


WIDE, NARROW = (2, 4, 9, 8), (2, 4, 9, 5)
FUSED = {
    "plain": (WIDE, WIDE, WIDE, None),
    "d_value wider": (NARROW, NARROW, WIDE, None),
    "five axes": ((3, *WIDE), (3, *WIDE), (3, *WIDE), None),
    "grouped heads": (WIDE, (2, 2, 9, 8), (2, 2, 9, 8), None),
    "causal, fewer queries": ((2, 4, 3, 8), WIDE, WIDE, mask.causal()),
    "padding and causal": (WIDE, WIDE, WIDE, mask.padding([9, 0]) & mask.causal()),
    "all at once": ((3, 2, 4, 5, 8), (3, 2, 2, 9, 8), (3, 2, 2, 9, 5), mask.padding([9, 4]) & mask.causal()),
}


@grid(name=FUSED, training=[False, True])
def test_the_fused_kernel_runs(name, training):
    *shapes, m = FUSED[name]
    with OperatorTrace() as trace:
        regard.attend(*(torch.randn(shape, requires_grad=training) for shape in shapes), m)
    assert trace.fused
    assert "aten::_scaled_dot_product_attention_math" not in trace.operators


@pytest.mark.parametrize("options", [{}, {"sinks": torch.zeros(1)}, {"scale": 0.3}], ids=list)
def test_a_causal_mask_is_a_flag_and_no_tensor(options):
    q = torch.randn(1, 1, 9, 4)
    with OperatorTrace() as trace:
        regard.attend(q, q, q, mask.causal(), **options)
    (call,) = trace.fused
    assert call["is_causal"]
    assert call.get("attn_mask") is None
    assert not {"aten::arange", "aten::tril", "aten::where"} & trace.operators
    with OperatorTrace() as trace:
        regard.attend(q, q, q, mask.causal(offset=1), **options)
    assert all(call["attn_mask"] is not None for call in trace.fused)


@pytest.mark.parametrize("dropout", [-0.1, 1.1, float("nan"), float("inf")])
def test_dropout_is_a_share(dropout):
    with pytest.raises(ValueError, match=r"dropout=.*between 0 and 1"):
        regard.attend(*qkv(1, 2, 3, 4), dropout=dropout)


@grid(
    m=[
        None,
        mask.padding([40, 17]),
        mask.window(9, 4),
        mask.documents([0] * 15 + [1] * 25) & mask.causal(),
        mask.prefix([20, 3]) & ~mask.window(2),
    ],
    options=[{}, {"softcap": 2.0}, {"sinks": torch.tensor([0.5, -1.0]).double()}],
)
def test_the_backward_pass_drops_the_weights_that_the_forward_pass_dropped(m, options):
    """With v = 1 (the identity) the output is the dropped weights themselves, from which every gradient follows."""
    q, k, _ = qkv(2, 2, 40, 8, dtype=torch.float64)
    v = torch.eye(40, dtype=torch.float64).expand(2, 2, 40, 40).clone().requires_grad_()
    with SMALL_LIMITS.apply():
        dropped = regard.attend(q, k, v, m, dropout=0.4, **options)
        cotangent = torch.randn_like(dropped)
        gradients = torch.autograd.grad(dropped, (q, k, v), cotangent)

    weights = regard.steps(q, k, v, m, **options).weights
    not_dropped = (dropped != 0).double()
    assert 0.55 < not_dropped.sum() / (weights != 0).sum() < 0.65
    assert not torch.equal(not_dropped[0, 0], not_dropped[0, 1])
    expected = weights * not_dropped / 0.6
    torch.testing.assert_close(dropped, expected)
    torch.testing.assert_close(gradients[:2], torch.autograd.grad(expected, (q, k), cotangent))
    torch.testing.assert_close(gradients[2], dropped.transpose(-2, -1) @ cotangent)


def test_every_row_has_its_own_dropped_weights():
    """A generator that began anew with every chunk would drop the same columns in each."""
    q = torch.zeros(3, 2, 64, 4)
    v = torch.eye(64).expand(3, 2, 64, 64)
    with SMALL_LIMITS.apply():
        not_dropped = regard.attend(q, q, v, dropout=0.5) != 0
    assert len(not_dropped.flatten(0, 2).unique(dim=0)) == 3 * 2 * 64


def test_a_seed_drops_the_same_weights_again():
    tensors = qkv(2, 2, 40, 8)

    def output(seed):
        torch.manual_seed(seed)
        return regard.attend(*tensors, mask.causal(), dropout=0.5)

    assert torch.equal(output(1), output(1))
    assert not torch.equal(output(1), output(2))


def test_without_dropout_no_random_number_is_drawn():
    tensors = qkv(1, 1, 3, 4)
    before = torch.get_rng_state()
    for options in ({}, {"softcap": 2.0}, {"dropout": 0.0}):
        regard.attend(*tensors, mask.causal(), **options)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("m", [None, mask.causal(), mask.window(2), mask.padding([3])], ids=repr)
def test_dropout_of_everything(m):
    tensors = qkv(1, 2, 3, 4)
    output = regard.attend(*tensors, m, dropout=1.0)
    assert (output == 0).all()
    assert all((gradient == 0).all() for gradient in torch.autograd.grad(output.sum(), tensors))


@grid(dtype=[torch.float32, *HALF], dropout=[0.0, 0.5])
def test_a_padded_row_gets_zeros_and_keeps_nan_out_of_the_gradient__pytorch_41508_103749_152028(dtype, dropout):
    tensors = qkv(2, 4, 3, 8, dtype=dtype)
    output = regard.attend(*tensors, mask.padding([3, 0]), dropout=dropout)
    for t in (output, *torch.autograd.grad(output.sum(), tensors)):
        assert t.isfinite().all()
        assert (t[1] == 0).all()


@grid(
    m=[
        None,
        mask.padding([40, 17]) & mask.causal(),
        mask.window(9),
        mask.documents([0] * 15 + [1] * 25) & mask.causal(),
        mask.prefix(5),
    ],
    options=[{}, {"softcap": 2.0}, {"sinks": torch.zeros(2)}],
    limits=LIMITS,
)
def test_the_same_bits_with_and_without_gradients__pytorch_86120__pytorch_97111(m, options, limits):
    q, k, v = qkv(2, 2, 40, 8)
    with LIMITS[limits].apply():
        training = regard.attend(q, k, v, m, **options)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                assert torch.equal(regard.attend(q, k, v, m, **options), training)
        detached = regard.attend(q.detach(), k.detach(), v.detach(), m, **options)
    assert torch.equal(detached, training)
    assert not detached.requires_grad


def test_every_batch_axis_has_its_documents():
    """Of two batch axes, only the first rows of the flattened batch were computed; the others came out as zeros."""
    ids = [[0] * 5 + [1] * 7, [0] * 8 + [1] * 4]
    with SMALL_LIMITS.apply():
        plan = assert_is_the_definition(Attention(*qkv(3, 2, 2, 12, 4), mask.documents(ids) & mask.causal(), {}))
    assert plan.kernel == "packed"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_in_half_precision_are_rounded_once(dtype):
    """PyTorch's kernel rounds the sum over the heads of a group and the blocks of rows after each term."""
    q, k, v = (torch.randn(1, heads, 256, 16, dtype=dtype, requires_grad=True) for heads in (8, 1, 1))
    wide, cotangent = [t.detach().double().requires_grad_() for t in (q, k, v)], torch.randn_like(q)
    expected = torch.autograd.grad(regard.steps(*wide, mask.causal()).output, wide, cotangent.double())
    found = torch.autograd.grad(regard.attend(q, k, v, mask.causal()), (q, k, v), cotangent)
    for gradient, exact in zip(found, expected, strict=True):
        assert float((gradient.double() - exact).abs().max() / exact.abs().max()) < 0.75 * torch.finfo(dtype).eps
