"""The fused kernel against the definition in float64, and what it must never do."""

from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard import mask

# Any attention that fits together: first as plain facts, which read well when one of them fails, then as tensors.


@dataclass
class Case:
    lead: list[int]
    heads: tuple[int, int] | None
    """Query heads and key heads; None for (tokens, width)."""
    queries: int
    keys: int
    d_key: int
    d_value: int
    layouts: list[str]
    masks: list[tuple[str, Any]]
    bias: list[int] | None
    scale: float | None
    dtype: torch.dtype
    seed: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    tokens, width = st.integers(0, 9), st.integers(1, 9)
    lead = draw(st.lists(st.integers(0, 3), max_size=3))
    kv_heads = draw(st.integers(1, 3))
    heads = (kv_heads * draw(st.integers(1, 3)), kv_heads) if lead or draw(st.booleans()) else None
    queries, keys = draw(tokens), draw(tokens)
    scores = [*lead, *([heads[0]] if heads else []), queries, keys]

    def broadcastable(least: int) -> st.SearchStrategy[list[int]]:
        """Shapes that broadcast to the scores: axes left out at the front, and axes of size 1."""
        return st.integers(0, len(scores) - least).flatmap(
            lambda skipped: st.tuples(*[st.sampled_from([1, n]) for n in scores[skipped:]]).map(list)
        )

    kinds = {
        "causal": st.none() | st.integers(-3, 9),
        "allowed": broadcastable(2),
        "blocked": broadcastable(2),
    }
    if lead:
        kinds["padding"] = st.lists(st.integers(0, keys), min_size=lead[-1], max_size=lead[-1])
    a_mask = st.sampled_from(sorted(kinds)).flatmap(lambda kind: st.tuples(st.just(kind), kinds[kind]))

    return Case(
        lead=lead,
        heads=heads,
        queries=queries,
        keys=keys,
        d_key=draw(width),
        d_value=draw(width | st.just(0)),
        layouts=draw(st.lists(st.sampled_from(["contiguous", "tokens first", "every other"]), min_size=3, max_size=3)),
        masks=draw(st.lists(a_mask, max_size=3)),
        bias=draw(st.none() | broadcastable(0)),
        scale=draw(st.none() | st.floats(-1, 2)),
        dtype=draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16])),
        seed=draw(st.integers(0, 2**32)),
    )


def check_case(case: Case) -> None:
    """Make the tensors and the mask of this case, and check them."""
    torch.manual_seed(case.seed)

    def tensor(heads: list[int], tokens: int, width: int, layout: str) -> torch.Tensor:
        if layout == "every other":
            return torch.randn(*case.lead, *heads, tokens, 2 * width).to(case.dtype)[..., ::2]
        if layout == "tokens first" and heads:
            return torch.randn(*case.lead, tokens, *heads, width).to(case.dtype).transpose(-3, -2)
        return torch.randn(*case.lead, *heads, tokens, width).to(case.dtype)

    q_heads, kv_heads = ([], []) if case.heads is None else ([case.heads[0]], [case.heads[1]])
    q = tensor(q_heads, case.queries, case.d_key, case.layouts[0])
    k = tensor(kv_heads, case.keys, case.d_key, case.layouts[1])
    v = tensor(kv_heads, case.keys, case.d_value, case.layouts[2])
    make = {
        "causal": mask.causal,
        "padding": mask.padding,
        "allowed": lambda shape: mask.allowed(torch.rand(shape) < 0.6),
        "blocked": lambda shape: mask.blocked(torch.rand(shape) < 0.4),
    }
    masks = [make[kind](given) for kind, given in case.masks]
    bias = None if case.bias is None else torch.randn(case.bias).to(case.dtype)
    check(q, k, v, reduce(and_, masks) if masks else None, bias=bias, scale=case.scale)


def check(q, k, v, who=None, *, bias=None, scale=None):
    """The outputs, and the gradients of every input, are the definition's in float64."""

    def run(compute, dtype):
        # As leaves; the layout in memory stays as it is.
        leaves = [t.to(dtype).detach().requires_grad_() for t in (q, k, v, bias) if t is not None]
        output = compute(*leaves[:3], who, scale=scale, bias=None if bias is None else leaves[3])
        output = output.output if compute is regard.steps else output
        cotangent = torch.arange(output.numel()).cos().reshape(output.shape).to(dtype)
        return output.detach(), torch.autograd.grad(output, leaves, cotangent, materialize_grads=True)

    output, gradients = run(regard.attend, q.dtype)
    expected, expected_gradients = run(regard.steps, torch.float64)
    assert output.dtype == q.dtype

    if q.dtype in (torch.float32, torch.float64):
        # PyTorch's own tolerances for float32; for float64 rounding errors and nothing else.
        within = {"rtol": 1.3e-6, "atol": 1e-5} if q.dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
        torch.testing.assert_close(output.double(), expected, **within)
        for ours, definitions in zip(gradients, expected_gradients, strict=True):
            torch.testing.assert_close(ours.double(), definitions, **within)
    else:
        # An output is a mean of values. The weights and the result are each rounded to the dtype, which moves it by
        # half an eps of the largest value, twice.
        largest = v.abs().max().item() if v.numel() else 0.0
        torch.testing.assert_close(output.double(), expected, rtol=0, atol=torch.finfo(q.dtype).eps * largest)
        for gradient in gradients:
            assert gradient.isfinite().all()


@settings(max_examples=300, deadline=None)
@given(cases())
def test_attend_is_the_definition(case):
    check_case(case)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None)
@given(cases())
def test_attend_is_the_definition_at_length(case):
    check_case(case)


@pytest.mark.parametrize(
    "who",
    [
        None,
        mask.causal(),
        mask.causal(offset=0),
        mask.causal(offset=-50),
        mask.padding([700, 0]),
        mask.blocked((torch.arange(700) < 600)[None, :]),
        mask.allowed(torch.arange(900)[:, None] % 3 == 0) & mask.causal(),
    ],
    ids=repr,
)
def test_more_tokens_than_the_kernel_takes_at_once(who):
    """The CPU kernel goes through the keys in blocks of up to 512; whole blocks may be out of bounds."""
    q, k, v = torch.randn(2, 2, 900, 16), torch.randn(2, 1, 700, 16), torch.randn(2, 1, 700, 8)
    check(q, k, v, who)


@pytest.mark.parametrize(
    "who", [None, mask.causal(), mask.padding([3, 0]), mask.causal() & mask.padding([3, 3])], ids=repr
)
@pytest.mark.parametrize("scale", [0.0, -0.5, 3.0])
def test_scale_of_any_sign(scale, who):
    """With is_causal=True, PyTorch 2.13's CPU kernel multiplies its own -inf by the scale: NaN at 0 and below."""
    check(*(torch.randn(2, 2, 3, 4) for _ in "qkv"), who, scale=scale)


def test_gradients_in_float64():
    q, k, v = (torch.randn(2, 2, n, 3).double().requires_grad_() for n in (2, 4, 4))
    for who in (None, mask.causal(), mask.padding([4, 0]), mask.causal(offset=-1)):
        assert torch.autograd.gradcheck(lambda *qkv, who=who: regard.attend(*qkv, who), (q, k, v))


# The kernel that runs.


def kernels(compute):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        compute()
    return {event.key for event in seen.key_averages()}


FITS_THE_KERNEL = {
    "plain": ((2, 4, 9, 8), (2, 4, 9, 8), (2, 4, 9, 8), None),
    "d_value narrower": ((2, 4, 9, 8), (2, 4, 9, 8), (2, 4, 9, 5), None),
    "d_value wider": ((2, 4, 9, 5), (2, 4, 9, 5), (2, 4, 9, 8), None),
    "three axes": ((4, 9, 8), (4, 9, 8), (4, 9, 8), None),
    "two axes": ((9, 8), (9, 8), (9, 8), None),
    "five axes": ((3, 2, 4, 9, 8), (3, 2, 4, 9, 8), (3, 2, 4, 9, 8), None),
    "grouped heads": ((2, 4, 9, 8), (2, 2, 9, 8), (2, 2, 9, 8), None),
    "causal": ((2, 4, 9, 8), (2, 4, 9, 8), (2, 4, 9, 8), mask.causal()),
    "causal, fewer queries": ((2, 4, 3, 8), (2, 4, 9, 8), (2, 4, 9, 8), mask.causal()),
    "padding": ((2, 4, 9, 8), (2, 4, 9, 8), (2, 4, 9, 8), mask.padding([9, 4])),
    "padding and causal": ((2, 4, 9, 8), (2, 4, 9, 8), (2, 4, 9, 8), mask.padding([9, 0]) & mask.causal()),
    "all at once": ((3, 2, 4, 5, 8), (3, 2, 2, 9, 8), (3, 2, 2, 9, 5), mask.padding([9, 4]) & mask.causal()),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("q", "k", "v", "who"), FITS_THE_KERNEL.values(), ids=FITS_THE_KERNEL)
def test_the_fused_kernel_runs(q, k, v, who, training):
    q, k, v = (torch.randn(shape, requires_grad=training) for shape in (q, k, v))
    ran = kernels(lambda: regard.attend(q, k, v, who))
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in ran
    assert "aten::_scaled_dot_product_attention_math" not in ran


def test_a_causal_mask_is_a_flag_and_no_tensor():
    q = torch.randn(1, 1, 9, 4)
    allocated = kernels(lambda: regard.attend(q, q, q, mask.causal()))
    assert not {"aten::arange", "aten::ge"} & allocated
    assert {"aten::arange", "aten::ge"} <= kernels(lambda: regard.attend(q, q, q, mask.causal(offset=1)))


# What the kernel cannot do is refused by name.


@pytest.mark.parametrize(
    ("name", "value"), [("softcap", 30.0), ("softcap", 0.5), ("sinks", torch.zeros(2)), ("sinks", torch.ones(2))]
)
def test_options_without_a_kernel(name, value):
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(NotImplementedError, match=f"{name}=.*regard.steps"):
        regard.attend(q, q, q, **{name: value})


@pytest.mark.parametrize("dropout", [-0.1, 1.1, float("nan"), float("inf")])
def test_dropout_is_a_share(dropout):
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(ValueError, match=r"dropout=.*between 0 and 1"):
        regard.attend(q, q, q, dropout=dropout)


# Dropout.


def test_dropped_weights_are_zero_and_the_others_make_good():
    """With one key of value 1 the output is the weight itself."""
    q, k, v = torch.randn(1, 1, 10_000, 4), torch.randn(1, 1, 1, 4), torch.ones(1, 1, 1, 1)
    weights = regard.attend(q, k, v, dropout=0.2).flatten()
    kept = weights != 0
    torch.testing.assert_close(weights[kept], torch.full_like(weights[kept], 1 / 0.8))
    # Five standard deviations of 10,000 coin tosses.
    assert abs(kept.float().mean().item() - 0.8) < 5 * (0.8 * 0.2 / 10_000) ** 0.5


def test_the_mean_under_dropout_is_the_output_without():
    q, k, v = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 6)
    many = [t.expand(20_000, *t.shape[1:]) for t in (q, k, v)]
    dropped = regard.attend(*many, dropout=0.3).double()
    error = dropped.mean(dim=0) - regard.attend(q, k, v)[0]
    assert (error.abs() < 5 * dropped.std(dim=0) / 20_000**0.5).all()


def test_dropout_of_everything():
    q = torch.randn(1, 2, 3, 4)
    assert (regard.attend(q, q, q, mask.causal(), dropout=1.0) == 0).all()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_nothing_to_attend_to_under_dropout__pytorch_152028(dropout):
    q, k, v = (torch.randn(2, 2, 3, 4, requires_grad=True) for _ in "qkv")
    output = regard.attend(q, k, v, mask.padding([3, 0]), dropout=dropout)
    assert (output[1] == 0).all()
    for t in (output, *torch.autograd.grad(output.sum(), (q, k, v))):
        assert t.isfinite().all()


# Bugs that other libraries shipped.


def test_rectangular_causal_aligns_last_positions__pytorch_108108():
    q, k, v = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 7, 4), torch.randn(1, 2, 7, 4)
    whole = torch.cat([torch.randn(1, 2, 4, 4), q], dim=-2)
    torch.testing.assert_close(
        regard.attend(q, k, v, mask.causal()), regard.attend(whole, k, v, mask.causal())[:, :, 4:]
    )


def test_rectangular_causal_from_the_first_position_is_pytorchs__mlx_2835():
    q, k, v = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 7, 4), torch.randn(1, 2, 7, 4)
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(regard.attend(q, k, v, mask.causal(offset=0)), theirs)


def test_one_cached_query_attends_to_every_key__pytorch_103082():
    q, k, v = torch.randn(1, 2, 1, 4), torch.randn(1, 2, 7, 4), torch.randn(1, 2, 7, 4)
    torch.testing.assert_close(regard.attend(q, k, v, mask.causal()), regard.attend(q, k, v))


def test_queries_before_the_first_key_get_zeros__x_transformers_187():
    q, k, v = torch.randn(1, 2, 7, 4), torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4)
    output = regard.attend(q, k, v, mask.causal())
    assert (output[:, :, :4] == 0).all()
    torch.testing.assert_close(output[:, :, 4:], regard.attend(q[:, :, 4:], k, v, mask.causal()))


def test_allowed_reads_true_as_pytorchs_fused_function_does__pytorch_170400():
    t = torch.rand(3, 5) < 0.6
    q, k, v = torch.randn(2, 4, 3, 8), torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=t)
    torch.testing.assert_close(regard.attend(q, k, v, mask.allowed(t)), theirs)
    torch.testing.assert_close(regard.attend(q, k, v, mask.blocked(~t)), theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_padded_row_gets_zeros_and_keeps_nan_out_of_the_gradient__pytorch_41508_103749(dtype):
    q, k, v = (torch.randn(2, 4, 3, 8, dtype=dtype, requires_grad=True) for _ in "qkv")
    output = regard.attend(q, k, v, mask.padding([3, 0]))
    assert (output[1] == 0).all()
    for gradient in torch.autograd.grad(output.sum(), (q, k, v)):
        assert gradient.isfinite().all()
        assert (gradient[1] == 0).all()


def test_a_row_of_minus_infinity_in_the_bias_gets_zeros__pytorch_103963():
    q, k, v = (torch.randn(2, 4, 3, 8) for _ in "qkv")
    bias = torch.zeros(3, 3)
    bias[1] = -torch.inf
    output = regard.attend(q, k, v, bias=bias)
    assert (output[:, :, 1] == 0).all()
    torch.testing.assert_close(output[:, :, ::2], regard.attend(q[:, :, ::2], k, v))


def test_a_bias_does_not_drop_the_mask__pytorch_131254():
    q, k, v = (torch.randn(2, 4, 3, 8) for _ in "qkv")
    for who in (mask.causal(), mask.padding([2, 3])):
        torch.testing.assert_close(
            regard.attend(q, k, v, who, bias=torch.zeros(3, 3)), regard.attend(q, k, v, who), rtol=0, atol=1e-6
        )


def test_padding_on_the_left_is_what_allowed_says():
    real = torch.tensor([[False, False, True, True, True]])
    q, k, v = (torch.randn(1, 2, 5, 4) for _ in "qkv")
    padded = regard.attend(q, k, v, mask.causal() & mask.allowed(real[:, None, None, :]))
    torch.testing.assert_close(padded[:, :, 2:], regard.attend(q[:, :, 2:], k[:, :, 2:], v[:, :, 2:], mask.causal()))
    assert (padded[:, :, :2] == 0).all()


# One row of the batch does not know of another.


@pytest.mark.parametrize("who", [None, mask.causal(), mask.allowed(torch.rand(33, 33) < 0.7)], ids=repr)
@pytest.mark.parametrize("d_value", [16, 7])
def test_rows_of_a_batch_are_independent_bit_for_bit(who, d_value):
    q, k, v = torch.randn(5, 4, 33, 16), torch.randn(5, 2, 33, 16), torch.randn(5, 2, 33, d_value)
    together = regard.attend(q, k, v, who)
    for rows in (slice(0, 1), slice(0, 3), slice(3, 5), slice(2, 3)):
        assert torch.equal(regard.attend(q[rows], k[rows], v[rows], who), together[rows])


def test_rows_of_a_padded_batch_are_independent_bit_for_bit():
    lengths = [33, 20, 0, 1, 5]
    q, k, v = (torch.randn(5, 4, 33, 16) for _ in "qkv")
    together = regard.attend(q, k, v, mask.padding(lengths))
    for row, n in enumerate(lengths):
        one = slice(row, row + 1)
        assert torch.equal(regard.attend(q[one], k[one], v[one], mask.padding([n])), together[one])


def test_what_stands_in_the_padding_changes_nothing():
    q, k, v = (torch.randn(2, 4, 9, 8) for _ in "qkv")
    before = regard.attend(q, k, v, mask.padding([9, 4]))
    k[1, :, 4:], v[1, :, 4:] = 1e4, -1e4
    assert torch.equal(regard.attend(q, k, v, mask.padding([9, 4])), before)
