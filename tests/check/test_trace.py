"""The line of the user's file that computes a step."""

import importlib.util
import sys
import textwrap

import pytest
import torch

from regard.check.probe import ProbeCall, drawn
from regard.check.recipe import Case, ProjectionWeights, definition
from regard.check.subject import Sizes, Way, subject_of
from regard.check.trace import place_of, same_numbers, traced

SIZES = Sizes(batch=2, heads=3, queries=5, keys=5, d_key=4, d_value=4)


@pytest.fixture
def written(tmp_path):
    """Write a file and import it; the object of a name, and the path."""

    def write(source, name):
        path = tmp_path / "attention.py"
        path.write_text(textwrap.dedent(source).lstrip(), encoding="utf-8")
        spec = importlib.util.spec_from_file_location("traced_attention", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules["traced_attention"] = module
        spec.loader.exec_module(module)
        return getattr(module, name), str(path)

    yield write
    sys.modules.pop("traced_attention", None)


def function_case(may=None):
    return Case(*(drawn(2, 3, 5, 4, seed=n) for n in range(3)), may=may)


def lines(records, state, *steps):
    return [place and place.line for place in (place_of(records, getattr(state, step)) for step in steps)]


FUNCTION = """
    import math
    import torch


    def attention(q, k, v, mask=None):
        scores = torch.matmul(q, k.transpose(-2, -1))
        scores /= math.sqrt(q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, FILL)
        weights = torch.softmax(
            scores,
            dim=-1,
        )
        return weights @ v
"""


@pytest.mark.parametrize("fill", ['float("-inf")', "-1e9", "-10000.0", "torch.finfo(q.dtype).min"])
def test_the_lines_of_a_function(written, fill):
    attention, path = written(FUNCTION.replace("FILL", fill), "attention")
    case = function_case(torch.ones(5, 5, dtype=torch.bool).tril()[None, None])
    call = ProbeCall(subject_of(attention, {}), Way("bhtd", ""), to="mask")
    records = traced(call, case, path)
    state = definition(case)
    assert lines(records, state, "scores", "scaled", "masked", "weights", "output") == [6, 7, 9, 10, 14]
    place = place_of(records, state.scaled)
    assert (place.file, place.text) == (path, "scores /= math.sqrt(q.size(-1))")


MODULE = """
    import torch
    from torch import nn


    class SelfAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.num_heads = num_heads
            self.wq = nn.Linear(d_model, d_model, bias=False)
            self.wk = nn.Linear(d_model, d_model, bias=False)
            self.wv = nn.Linear(d_model, d_model, bias=False)
            self.wo = nn.Linear(d_model, d_model, bias=False)
            self.softmax = nn.Softmax(dim=-1)

        def split(self, x):
            return x.view(x.size(0), x.size(1), self.num_heads, -1).permute(2, 0, 1, 3)

        def forward(self, x):
            q = self.split(self.wq(x))
            k, v = self.split(self.wk(x)), self.split(self.wv(x))
            scores = torch.einsum("hbid,hbjd->hbij", q, k)
            scores = scores * k.size(-1) ** -0.5
            future = torch.ones(x.size(1), x.size(1)).triu(1).bool()
            scores[:, :, future] = float("-inf")
            weights = self.softmax(scores)
            heads = torch.einsum("hbij,hbjd->bihd", weights, v).flatten(2)
            return self.wo(heads)
"""


def test_the_lines_of_a_module(written):
    kind, path = written(MODULE, "SelfAttention")
    subject = subject_of(kind, {})
    module = subject.build(SIZES)[0].double()
    weights = ProjectionWeights(
        *(each.weight.detach() for each in (module.wq, module.wk, module.wv)), 3, 3, module.wo.weight
    )
    may = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]
    case = Case(x=drawn(2, 5, 12, seed=1), weights=weights, may=may)
    records = traced(ProbeCall(subject, Way("btd", ""), module), case, path)
    steps = ("q", "k", "v", "scores", "scaled", "masked", "weights", "heads", "projected")
    assert lines(records, definition(case), *steps) == [19, 20, 20, 21, 22, 24, 25, 26, 27]


LOOP = """
    import torch


    def attention(q, k, v):
        outputs = []
        for n in range(q.size(1)):
            scores = q[:, n] @ k[:, n].transpose(1, 2)
            weights = (scores / k.size(-1) ** 0.5).softmax(-1)
            outputs.append(weights @ v[:, n])
        return torch.stack(outputs, dim=1)
"""
RAISES = """
    import torch


    def attention(q, k, v):
        scores = q @ k.mT
        raise ValueError("too long")
"""


@pytest.mark.parametrize(("source", "expected"), [(LOOP, [7, 8, 8, 10]), (RAISES, [5, None, None, None])])
def test_a_loop_is_found_by_one_of_its_parts_and_what_came_before_an_error_is_kept(written, source, expected):
    attention, path = written(source, "attention")
    case = function_case()
    records = traced(ProbeCall(subject_of(attention, {}), Way("bhtd", "")), case, path)
    assert lines(records, definition(case), "scores", "scaled", "weights", "output") == expected


def test_no_file_has_no_lines(written):
    attention, _ = written(FUNCTION.replace("FILL", "-1e9"), "attention")
    call = ProbeCall(subject_of(attention, {}), Way("bhtd", ""))
    assert traced(call, function_case(), None) == []
    assert traced(call, function_case(), "elsewhere.py") == []


def test_the_same_numbers_in_any_order():
    numbers, nothing = torch.randn(3, 4, dtype=torch.float64), torch.full((2,), -torch.inf)
    masked = numbers.masked_fill(torch.ones(3, 4).triu(1).bool(), -torch.inf)
    same = (numbers.t().flip(0), numbers), (numbers * (1 + 1e-12), numbers), (masked.nan_to_num(neginf=-1e9), masked)
    others = (numbers * (1 + 1e-6), numbers), (numbers[:2], numbers), (masked, numbers), (nothing, nothing)
    assert [same_numbers(*pair) for pair in (*same, *others)] == [True] * 3 + [False] * 4
