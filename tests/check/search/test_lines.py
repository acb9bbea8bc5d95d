"""The line of the user's file that computes a step; this file is the user's."""

import math

import pytest
import torch

from bank import Projections
from regard.check.recipes.case import Case, ProjectionWeights
from regard.check.recipes.recipe import definition
from regard.check.search.calls import ProbeCall
from regard.check.search.cases import drawn
from regard.check.search.layouts import Sizes, Way
from regard.check.search.lines import place_of, same_numbers, traced
from regard.check.search.subject import subject_of

CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]


def function_case(may=None):
    return Case(*(drawn(2, 3, 5, 4, seed=n) for n in range(3)), may=may)


def call_of(function, **options):
    return ProbeCall(subject_of(function, {}), Way("bhtd", ""), **options)


def lines(records, case, *steps):
    """The text of the line that computes each step."""
    state = definition(case)
    places = [place_of(records, getattr(state, step)) for step in steps]
    assert {place.file for place in places if place} == {__file__}
    return [place and place.text for place in places]


@pytest.mark.parametrize("fill", [-math.inf, -1e9, -10000.0, torch.finfo(torch.float64).min])
def test_the_lines_of_a_function(fill):
    def attention(q, k, v, mask=None):
        scores = torch.matmul(q, k.transpose(-2, -1))
        scores /= math.sqrt(q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, fill)
        weights = torch.softmax(
            *(scores, -1),
        )
        return weights @ v

    case = function_case(CAUSAL)
    records = traced(call_of(attention, to="mask"), case, __file__)
    assert lines(records, case, "scores", "scaled", "masked", "weights", "output") == [
        "scores = torch.matmul(q, k.transpose(-2, -1))",
        "scores /= math.sqrt(q.size(-1))",
        "scores = scores.masked_fill(mask == 0, fill)",
        "weights = torch.softmax(",
        "return weights @ v",
    ]


class SelfAttention(Projections, names="wq wk wv wo", bias=False):
    def split(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).permute(2, 0, 1, 3)

    def forward(self, x):
        q = self.split(self.wq(x))
        k, v = self.split(self.wk(x)), self.split(self.wv(x))
        scores = torch.einsum("hbid,hbjd->hbij", q, k)
        scores = scores * k.size(-1) ** -0.5
        scores[:, :, torch.ones(x.size(1), x.size(1)).triu(1) == 1] = -math.inf
        weights = scores.softmax(dim=-1)
        heads = torch.einsum("hbij,hbjd->bihd", weights, v).flatten(2)
        return self.wo(heads)


def test_the_lines_of_a_module():
    subject = subject_of(SelfAttention, {})
    module = subject.build(Sizes(batch=2, heads=3, queries=5, keys=5, d_key=4, d_value=4))[0].double()
    q, k, v, out = (each.weight.detach() for each in (module.wq, module.wk, module.wv, module.wo))
    case = Case(x=drawn(2, 5, 12, seed=1), weights=ProjectionWeights(q, k, v, 3, 3, out), may=CAUSAL)
    records = traced(ProbeCall(subject, Way("btd", ""), module), case, __file__)
    steps = ("q", "k", "v", "scores", "scaled", "masked", "weights", "heads", "projected")
    assert lines(records, case, *steps) == [
        "q = self.split(self.wq(x))",
        *["k, v = self.split(self.wk(x)), self.split(self.wv(x))"] * 2,
        'scores = torch.einsum("hbid,hbjd->hbij", q, k)',
        "scores = scores * k.size(-1) ** -0.5",
        "scores[:, :, torch.ones(x.size(1), x.size(1)).triu(1) == 1] = -math.inf",
        "weights = scores.softmax(dim=-1)",
        'heads = torch.einsum("hbij,hbjd->bihd", weights, v).flatten(2)',
        "return self.wo(heads)",
    ]


def test_a_loop_is_found_by_one_of_its_parts_and_what_came_before_an_error_is_kept():
    def attention(q, k, v):
        for n in range(q.size(1)):
            scores = q[:, n] @ k[:, n].transpose(1, 2)
            weights = (scores / k.size(-1) ** 0.5).softmax(-1)
        raise ValueError(weights.shape)

    case = function_case()
    records = traced(call_of(attention), case, __file__)
    scores, weights = "scores = q[:, n] @ k[:, n].transpose(1, 2)", "weights = (scores / k.size(-1) ** 0.5).softmax(-1)"
    assert lines(records, case, "scores", "scaled", "weights", "output") == [scores, weights, weights, None]


def test_no_file_has_no_lines():
    call = call_of(torch.nn.functional.scaled_dot_product_attention)
    assert traced(call, function_case(), None) == traced(call, function_case(), "elsewhere.py") == []


def test_the_same_numbers_in_any_order():
    numbers, nothing = torch.randn(3, 4, dtype=torch.float64), torch.full((2,), -torch.inf)
    masked = numbers.masked_fill(torch.ones(3, 4).triu(1).bool(), -torch.inf)
    same = (numbers.t().flip(0), numbers), (numbers * (1 + 1e-12), numbers), (masked.nan_to_num(neginf=-1e9), masked)
    others = (numbers * (1 + 1e-6), numbers), (numbers[:2], numbers), (masked, numbers), (nothing, nothing)
    assert [same_numbers(*pair) for pair in (*same, *others)] == [True] * 3 + [False] * 4
