"""The output of a map and what a metric owes to each key, against autograd of the definition in float64."""

import pytest
import torch
from hypothesis import given
from torch import nn

import regard
from cases import OperatorTrace
from grids import grid, some_examples
from lens.map_cases import KERNEL_LIMITS, Definition, LargeMap, assert_near, map_cases
from lens.recordings import random_map, refuse
from regard import mask
from regard.lens import AttentionMap


def assert_attribution(m, limit=1e-10):
    """The output, and the three sums against gradients by autograd."""
    exact = Definition(m)
    grad = torch.randn(exact.output.shape).to(m.dtype)
    dv, ds = exact.gradients(grad)
    ours = m.attribution(grad)
    assert_near(m.output(), exact.output, limit)
    assert_near(ours.output, (grad.double() * exact.output).sum(-1), limit)
    assert_near(ours.values, (exact.v * dv).sum(-1), limit)
    assert_near(ours.scores, ds.sum(-2), limit)


@pytest.mark.usefixtures("as_a_user_runs_it")
@some_examples(3)
@given(case=map_cases())
def test_output_and_attribution_are_those_of_autograd(case):
    with KERNEL_LIMITS[case.limits].apply():
        assert_attribution(case.make())


@grid(
    allowed=[None, mask.causal(), mask.window(9), mask.documents([0] * 25 + [1] * 15)],
    dtype=[torch.float32, torch.bfloat16, torch.float16],
    softcap=[None, 2.0],
)
def test_large_maps_and_half_precision_are_computed_in_float32(allowed, dtype, softcap):
    m = random_map(40, 40, heads=4, kv_heads=2, dtype=dtype, sampled=False, mask=allowed, softcap=softcap)
    large = LargeMap(m.q, m.k, m.v, allowed, softcap=softcap)
    assert large.output().dtype == torch.float32
    assert_attribution(large, 1e-4)


def test_a_row_that_may_attend_to_nothing_has_no_part_in_any_sum():
    m = random_map(4, 4, dtype=torch.float64, mask=mask.causal(offset=-2))
    grad = torch.ones(1, 2, 4, 5, dtype=torch.float64)
    only_two = grad.clone()
    only_two[:, :, :2] = 0
    assert not m.output()[:, :, :2].any()
    torch.testing.assert_close(m.attribution(grad), m.attribution(only_two), rtol=0, atol=1e-12)
    assert not m.attribution(grad).values[:, :, 2:].any()


def test_rows_to_which_a_model_adds_the_lowest_number_have_an_output():
    bias = torch.zeros(1, 2, 5, 7, dtype=torch.float64)
    bias[:, :, 2] = torch.finfo(torch.float32).min
    assert_attribution(random_map(5, 7, dtype=torch.float64, sampled=False, bias=bias))


# Attention weighted by the norms of the transformed values.


@some_examples(0.5)
@given(case=map_cases(max_tokens=12))
def test_value_weighted_attention_is_the_sum_of_the_norms(case):
    m = case.make()
    heads, queries, width = m.shape[1], m.shape[2], m.v.shape[-1]
    exact = Definition(m)
    for d_model in (1, 7, heads * width + 3):
        projection = torch.randn(d_model, heads * width, dtype=torch.float64)
        by_head = projection.view(d_model, heads, width)
        added = torch.einsum("bhij,bhjd,ohd->bhijo", exact.weights, exact.v.detach(), by_head)
        assert_near(m.value_weighted(projection), added.norm(dim=-1).sum(-2))
    norms = exact.v.detach().norm(dim=-1)
    assert_near(m.value_weighted(), exact.weights.sum(-2) * norms)
    rows = torch.linspace(0, 2, m.shape[0] * queries).double().view(-1, queries)
    assert_near(m.value_weighted(rows=rows), (exact.weights * rows[:, None, :, None]).sum(-2) * norms)


def test_the_projection_is_the_weight_of_the_layer_and_v_holds_the_bias_of_the_values():
    """Kobayashi et al.: f(x) = (x W^V + b^V) W^O, per head."""
    layer, x = nn.MultiheadAttention(12, 3, batch_first=True).double(), torch.randn(1, 6, 12).double()
    nn.init.normal_(layer.in_proj_bias)
    with torch.no_grad(), regard.watch(layer) as seen:
        layer(x, x, x, need_weights=False)
    (m,) = (seen[path] for path in seen)
    w_v, b_v, w_o = layer.in_proj_weight[24:], layer.in_proj_bias[24:], layer.out_proj.weight
    expected = torch.zeros(3, 6, dtype=torch.float64)
    for h in range(3):
        part = slice(4 * h, 4 * h + 4)
        f = (x[0] @ w_v[part].T + b_v[part]) @ w_o[:, part].T
        expected[h] = (m.dense()[0, h, :, :, None] * f).norm(dim=-1).sum(0)
    assert_near(m.value_weighted(w_o)[0], expected)


def test_a_projection_in_half_precision_is_read_as_it_is():
    m, projection = random_map(), torch.randn(7, 10).bfloat16()
    torch.testing.assert_close(m.value_weighted(projection), m.value_weighted(projection.float()), rtol=0, atol=0)


# What is refused.


GRAD = torch.ones(1, 2, 6, 5)
QUESTIONS = {
    "output": lambda m: m.output(),
    "attribution": lambda m: m.attribution(GRAD),
    "edge_attribution": lambda m: m.edge_attribution(GRAD, [0]),
    "without_key": lambda m: m.without_key([0], [0]),
    "value_weighted": lambda m: m.value_weighted(),
    "group_outputs": lambda m: m.group_outputs([0] * 6),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_map_without_values_says_what_it_needs(name):
    m = random_map()
    with pytest.raises(ValueError, match=rf"{name} needs the values, and this map has none: AttentionMap\(q, k, v"):
        QUESTIONS[name](AttentionMap(m.q, m.k))


@grid(name=QUESTIONS, value=[torch.nan, -torch.inf])
def test_values_that_are_no_numbers_are_refused(name, value):
    m = random_map()
    m.v[0, 0, 1, 2] = value
    with pytest.raises(ValueError, match=f"v holds NaN or infinity, so {name} is not defined"):
        QUESTIONS[name](m)


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_answer_asks_first_whether_the_tensors_are_what_they_were(name):
    with pytest.raises(RuntimeError, match="changed in place"):
        QUESTIONS[name](random_map(ensure_unchanged=refuse, sampled=False))


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("question", "error", "message"),
    [
        (lambda m: m.attribution(None), TypeError, "grad must be a floating-point tensor, d metric / d output"),
        (lambda m: m.attribution(GRAD.long()), TypeError, "grad must be a floating-point tensor"),
        (lambda m: m.attribution(GRAD.flatten(1, 2)), ValueError, r"must be \(1, 2, 6, 5\) .* got \(1, 12, 5\)"),
        (lambda m: m.edge_attribution(GRAD[..., :1], [0]), ValueError, r"got \(1, 2, 6, 1\)"),
        (lambda m: m.attribution(GRAD * torch.nan), ValueError, "grad holds NaN or infinity"),
        (lambda m: m.value_weighted([[1.0] * 10]), TypeError, "projection must be W_O, a floating-point tensor"),
        (lambda m: m.value_weighted(torch.ones(10, 4)), ValueError, r"must be \(d_model, 10\).*weight\.T"),
        (lambda m: m.value_weighted(torch.ones(10)), ValueError, r"got \(10,\)"),
        (lambda m: m.value_weighted(rows=torch.ones(1, 5)), ValueError, "finite numbers"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(question, error, message):
    with pytest.raises(error, match=message):
        question(random_map())


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0)])
def test_nothing_to_ask_about(shape):
    batch, heads, queries, keys = shape
    m = random_map(queries, keys, batch=batch, heads=heads, sampled=False)
    grad, rows = torch.ones(batch, heads, queries, 5), [0] * min(1, queries)
    assert torch.equal(m.output(), grad * 0)
    assert [t.shape for t in m.attribution(grad)] == [shape[:3], *[(batch, heads, keys)] * 2]
    assert m.attribution(grad.half()).values.dtype == torch.float32
    assert m.edge_attribution(grad, rows).shape == (batch, heads, len(rows), keys)
    assert m.value_weighted().shape == (batch, heads, keys)
    parts = m.group_outputs(torch.ones(2, keys) > 0)
    assert parts.output.shape == (*shape[:3], 2, 5)
    assert bool((parts.lse == -torch.inf).all())


# Time and memory.


@pytest.mark.parametrize(("answer", "calls"), [("output", 1), ("attribution", 2)])
def test_the_number_of_calls_of_the_fused_kernel(answer, calls):
    """The log-sum-exp that the transposed attention needs comes with the output."""
    m = LargeMap(*torch.randn(3, 1, 2, 400, 4), sinks=torch.zeros(2))
    with OperatorTrace() as trace:
        ANSWERS[answer](m)
    assert len(trace.fused) == calls


LARGE_GRAD = torch.ones(1, 2, 400, 4)
ANSWERS = {
    "output": lambda m: m.output(),
    "attribution": lambda m: m.attribution(LARGE_GRAD),
    "edge_attribution": lambda m: m.edge_attribution(LARGE_GRAD, [7, -1]),
    "without_key": lambda m: m.without_key([7, -1], [3, 4]),
    "value_weighted": lambda m: m.value_weighted(torch.ones(5, 8)),
    "group_outputs": lambda m: m.group_outputs([0] * 300 + [1] * 100),
}


@grid(name=ANSWERS, allowed=[None, mask.causal()], softcap=[None, 3.0])
def test_no_tensor_of_queries_x_keys_is_made(name, allowed, softcap):
    m = LargeMap(*torch.randn(3, 1, 2, 400, 4), allowed, softcap=softcap)
    with OperatorTrace() as trace, pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.attention.kernels.chunked.CHUNK_SCORES", 2**9)
        ANSWERS[name](m)
    assert trace.max_bytes < 2 * 400**2 * 4 / 4  # the weights in float32 have four times as many
