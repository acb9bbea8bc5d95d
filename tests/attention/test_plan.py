"""Which kernel computes an attention, and why: what `plan` says is what `attend` does."""

import itertools
import re

import pytest
import torch

import regard
from cases import OperatorTrace
from regard import mask, positions

LONG = 4096
IDS = torch.arange(LONG) // 300


def square(tokens=LONG, heads=2):
    """Queries, keys and values that take no memory."""
    return [torch.empty(1, 1, 1, 8).expand(1, heads, tokens, 8)] * 3


@pytest.mark.parametrize(
    ("m", "kernel", "reason"),
    [
        (None, "fused", "no mask"),
        (mask.causal(), "fused", "the causal flag"),
        (mask.window(LONG, LONG), "fused", "blocks nothing"),
        (mask.window(LONG), "fused", "the causal flag"),
        (mask.padding([9]), "fused", r"padding\(\[9\]\) is the same for all queries"),
        (mask.padding([9]) & mask.causal(), "fused", "the same for all queries and the causal flag"),
        (~mask.padding([9]) | mask.padding([3]), "fused", "the same for all queries"),
        (mask.window(64), "bands", r"window\(64\) leaves 260,128 of 16,777,216 pairs"),
        (mask.window(64) & mask.causal(offset=-9), "bands", "leaves"),
        (mask.causal(offset=5), "bands", "leaves"),
        (mask.documents(IDS), "packed", "14 documents, each in one piece"),
        (mask.documents(IDS) & mask.causal(), "packed", "14 documents"),
        (mask.documents(IDS % 2), "tiles", "tile by tile"),
        (mask.documents(IDS) & mask.padding([LONG]), "tiles", "tile by tile"),
        (mask.prefix(5), "tiles", r"prefix\(5\) is evaluated tile by tile"),
        (mask.where(lambda i, j: i >= j), "tiles", "tile by tile"),
        (mask.window(5) | mask.prefix(9), "tiles", "tile by tile"),
        (mask.first(9), "fused", r"first\(9\) is the same for all queries"),
        (mask.causal() & (mask.window(64) | mask.first(4)), "tiles", "tile by tile"),
    ],
    ids=repr,
)
def test_the_mask_picks_the_kernel__pytorch_99878(m, kernel, reason):
    plan = regard.plan(*square(), m)
    assert plan.kernel == kernel
    assert re.search(reason, plan.reason)
    assert str(plan).startswith(f"{kernel}: {plan.reason}; ")
    assert "\n" not in str(plan)


@pytest.mark.parametrize(
    "options",
    [
        *({"softcap": 30}, {"dropout": 0.1}, {"scale": -1.0}, {"scale": 0}),
        *({"bias": bias} for bias in (torch.zeros(1, LONG, requires_grad=True), positions.T5Relative(2))),
    ],
    ids=str,
)
@pytest.mark.parametrize("m", [None, mask.window(9), mask.prefix(5)], ids=repr)
def test_what_the_fused_kernel_cannot_do_goes_by_rows(options, m):
    plan = regard.plan(*square(), m, **options)
    assert plan.kernel == "chunked"
    assert plan.reason.startswith("the fused kernel has no ")


def test_a_bias_that_learns_nothing_now_needs_no_gradient():
    with torch.no_grad():
        assert regard.plan(*square(), bias=positions.T5Relative(2)).kernel == "tiles"
        assert regard.plan(*square(), mask.window(9), bias=positions.ALiBi(2)).kernel == "bands"


@pytest.mark.parametrize(("tokens", "kernel"), [(1024, "dense"), (1025, "tiles")])
@pytest.mark.parametrize("batch", [1, 64])
def test_a_small_square_is_a_mask_of_each_pair_and_a_large_one_is_not_whatever_the_batch(batch, tokens, kernel):
    q = torch.empty(1, 1, 1, 8).expand(batch, 2, tokens, 8)
    assert regard.plan(q, q, q, mask.prefix(5)).kernel == kernel


@pytest.mark.parametrize("tokens", [1000, LONG])
def test_operations_are_two_products_of_every_pair(tokens):
    q, k, v = (t.expand(3, -1, -1, -1) for t in square(tokens))
    assert regard.plan(q, k, v).flops == 3 * 4 * 2 * tokens * tokens * 8
    assert regard.plan(q, k, v, mask.causal()).flops == 3 * 4 * 2 * tokens * (tokens + 1) // 2 * 8


@pytest.mark.parametrize("axes", [2, 3, 4])
def test_where_no_query_is_there_is_nothing_to_compute(axes):
    q, k, v = (t[(0,) * (4 - axes)] for t in square(9))
    plan = regard.plan(q[..., :0, :], k, v)
    assert str(plan) == "chunked: there is nothing to compute; 0 FLOP, 0 B"
    no_keys = regard.plan(q, k[..., :0, :], v[..., :0, :])
    assert (no_keys.kernel, no_keys.flops) == ("chunked", 0)


def test_a_window_costs_what_it_holds():
    plans = [regard.plan(*square(n), mask.window(64)) for n in (LONG, 2 * LONG, 4 * LONG)]
    for a, b in itertools.pairwise(plans):
        assert b.flops / a.flops == pytest.approx(2, rel=0.02)
        assert b.peak_bytes / a.peak_bytes == pytest.approx(2, rel=0.1)
    exact = 4 * 2 * 8 * int(mask.window(64).dense(LONG, LONG).sum())
    assert exact <= plans[0].flops <= 3 * exact


@pytest.mark.parametrize("m", [mask.window(64) & mask.window(512), mask.window(512) & mask.window(64)], ids=repr)
def test_two_windows_cost_what_the_narrower_one_holds(m):
    assert regard.plan(*square(), m).flops == regard.plan(*square(), mask.window(64)).flops


def test_the_peak_is_that_of_the_largest_document():
    halves, long_first, long_last = (
        regard.plan(*square(600), mask.documents([0] * first + [1] * (600 - first)), softcap=3.0).peak_bytes
        for first in (300, 536, 64)
    )
    assert halves < long_first == long_last


def test_keys_that_nobody_may_attend_to_cost_nothing():
    """Every 64th key: 64 times fewer pairs."""
    columns = mask.where(lambda i, j: (j % 64 == 0) & (i >= 0))
    assert regard.plan(*square(), columns).flops == regard.plan(*square()).flops // 64


@pytest.mark.parametrize("m", [None, mask.causal(), mask.window(64), mask.documents(IDS), mask.prefix(5)], ids=repr)
def test_it_is_what_runs(m):
    q = torch.randn(1, 1, LONG, 4)
    with OperatorTrace() as trace:
        regard.attend(q, q, q, m)
    assert "aten::_scaled_dot_product_attention_math" not in trace.operators
    assert trace.fused
    assert (len(trace.fused) == 1) is (regard.plan(q, q, q, m).kernel == "fused")


@pytest.mark.parametrize("m", [None, mask.causal()], ids=repr)
def test_around_the_kernel_a_plain_call_runs_two_small_operators(m):
    """What tells whether its numbers are finite; on short sequences each operator is a share of the whole."""
    q = torch.randn(1, 2, 9, 4)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        regard.attend(q, q, q, m)
    names = [event.name for event in profile.events() if event.name.startswith("aten::") and event.cpu_parent is None]
    assert names == ["aten::_scaled_dot_product_flash_attention_for_cpu", "aten::div", "aten::equal"]
