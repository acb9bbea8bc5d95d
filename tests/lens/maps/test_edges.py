"""Rows without one of their keys, against the definition with that key blocked."""

import pytest
import torch
from hypothesis import given

from grids import some_examples
from lens.map_cases import Definition, assert_near, map_cases
from lens.recordings import random_map
from regard import mask
from regard.lens import AttentionMap

GRAD = torch.ones(1, 2, 6, 5)


def without_each_key(m):
    """The output with each key blocked for every query, (batch, heads, queries, keys, d_value)."""
    key = torch.arange(m.shape[3])
    return torch.stack([Definition(m, mask.allowed((key != j)[None])).output for j in key], -2)


@pytest.mark.usefixtures("as_a_user_runs_it")
@some_examples(2)
@given(case=map_cases(max_tokens=12))
def test_a_row_without_one_key_is_the_definition_with_that_key_blocked(case):
    m = case.make()
    queries, keys = m.shape[2:]
    blocked, exact = without_each_key(m), Definition(m)
    query, key = (t.flatten() for t in torch.meshgrid(torch.arange(queries), torch.arange(keys), indexing="ij"))
    assert_near(m.without_key(query, key), blocked.flatten(2, 3))
    grad = torch.randn(exact.output.shape).double()
    expected = (grad[:, :, :, None] * (blocked - exact.output[:, :, :, None])).sum(-1)
    assert_near(m.edge_attribution(grad, range(queries)), expected)


def test_an_edge_with_a_weight_below_a_half_follows_the_formula():
    m, grad = random_map(dtype=torch.float64), GRAD.double()
    w, output = m[:, :, 2:], m.output()[:, :, 2:]
    by_row = (grad[:, :, 2:] * output).sum(-1, keepdim=True)
    expected = w / (1 - w) * (by_row - grad[:, :, 2:] @ m.v.mT)
    assert_near(m.edge_attribution(grad, [2, 3, -2, -1])[w < 0.5], expected[w < 0.5])


@pytest.mark.parametrize("gap", [5.0, 30.0, 40.0, 2000.0])
def test_no_digits_are_lost_where_a_weight_is_near_1(gap):
    """From 37 on, float64 rounds the weight to 1, and nothing of the others is left in the output."""
    q, k = torch.ones(1, 1, 1, 1).double(), torch.tensor([gap, 0.0, -1.0]).double().view(1, 1, 3, 1)
    v = torch.tensor([[1.0, 5.0], [2.0, 3.0], [7.0, -4.0]]).double()[None, None]
    m = AttentionMap(q, k, v, scale=1.0)
    others = torch.tensor([0.0, -1.0]).double().softmax(0) @ v[0, 0, 1:]
    assert_near(m.without_key([0, 0], [0, -3])[0, 0], others.expand(2, -1))
    grad = torch.tensor([1.0, 2.0]).double()
    change = m.edge_attribution(grad.view(1, 1, 1, 2), [0])[0, 0, 0, 0]
    assert_near(change, grad @ (others - Definition(m).output[0, 0, 0]))


@pytest.mark.parametrize("sinks", [None, torch.zeros(2).double()])
def test_a_row_whose_only_key_is_blocked_is_zero(sinks):
    m, grad = random_map(dtype=torch.float64, mask=mask.causal(), sinks=sinks), GRAD.double()
    assert not m.without_key([0, 0], [0, 3])[:, :, 0].any()
    expected = -(grad * m.output()).sum(-1)[:, :, 0]
    assert_near(m.edge_attribution(grad, [0])[:, :, 0, 0], expected)
    assert not m.edge_attribution(grad, [0])[:, :, 0, 1:].any()


def test_a_key_that_is_blocked_already_changes_nothing():
    m, grad = random_map(dtype=torch.float64, mask=mask.causal()), GRAD.double()
    assert_near(m.without_key([2, 2], [3, 5]), m.output()[:, :, [2, 2]])
    assert not m.edge_attribution(grad, [2])[..., 3:].any()


def test_positions_count_from_either_end_and_may_occur_again():
    m = random_map(6, 9)
    assert torch.equal(
        m.without_key([-1, 5, 0, -1], [-9, 0, 8, -9])[:, :, [0, 0, 2, 1]],
        m.without_key(torch.tensor([5, 5, 0, 5]), torch.tensor([0, 0, -1, 0])),
    )
    assert torch.equal(m.edge_attribution(GRAD, [-6, 5]), m.edge_attribution(GRAD, torch.tensor([0, -1])))
    assert m.without_key([], []).shape == (1, 2, 0, 5)


def test_rows_of_a_map_in_half_precision_are_computed_in_float64():
    m = random_map(dtype=torch.bfloat16, heads=4, kv_heads=2, sampled=False)
    exact = AttentionMap(m.q.double(), m.k.double(), m.v.double())
    ours, grad = m.without_key(range(6), [0] * 6), torch.randn(1, 4, 6, 5)
    assert torch.equal(ours, exact.without_key(range(6), [0] * 6).float())
    assert torch.equal(m.edge_attribution(grad, [3]), exact.edge_attribution(grad, [3]).float())


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("question", "error", "message"),
    [
        (lambda m: m.without_key([6], [0]), IndexError, "there is no query 6: the map has 6, counted from 0"),
        (lambda m: m.without_key([0], [-10]), IndexError, "there is no key -10: the map has 9"),
        (lambda m: m.without_key([0, 1], [0]), ValueError, "one key for each query; got 2 queries and 1 keys"),
        (lambda m: m.without_key([0.5], [0]), TypeError, r"a query is given by its position.*got \[0\.5\]"),
        (lambda m: m.without_key([0], [True]), TypeError, "a key is given by its position"),
        (lambda m: m.edge_attribution(GRAD, torch.zeros(1, 1).long()), TypeError, "a query is given by its position"),
        (lambda m: m.edge_attribution(GRAD, [-7]), IndexError, "there is no query -7"),
    ],
)
def test_positions_that_are_not_there_are_refused(question, error, message):
    with pytest.raises(error, match=message):
        question(random_map(6, 9))
