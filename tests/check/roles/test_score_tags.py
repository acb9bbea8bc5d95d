"""Single numbers are followed through whatever moves, views or changes them one by one."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from regard.check.roles.tags import TaggedTrace, tagged
from regard.check.trace.operation import Trace
from regard.check.trace.recorder import record

X = torch.arange(1.0, 13.0, dtype=torch.float64).reshape(3, 4)
"""Its numbers are their own tags."""


def traced(function: Callable[[Tensor], Tensor], x: Tensor = X) -> Trace:
    def call(watch):
        given = x.clone()
        with watch({"x": given}):
            return function(given)

    trace = record(call, outputs=lambda result: [result])
    assert not trace.error, trace.error
    return trace


def followed(function: Callable[[Tensor], Tensor], x: Tensor = X) -> TaggedTrace:
    tags = torch.arange(1, x.numel() + 1).reshape(x.shape)
    return tagged(traced(function, x), {}, {"x": tags})


def written_by_rows(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for row in range(3):
        out[row] = x[2 - row]
    return out


def written_through_a_view_of_a_view(x: Tensor) -> Tensor:
    out = torch.zeros(4, 6, dtype=x.dtype)
    out.t()[1:4].copy_(x)
    return out


def added_in_place_to_zeros(x: Tensor) -> Tensor:
    out = torch.zeros(5, 4, dtype=x.dtype)
    out[torch.tensor([4, 0, 2])] += x
    return out


def interleaved_pairs(x: Tensor) -> Tensor:
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))).conj().resolve_conj()).flatten(-2).abs()


MOVES = {
    "transpose": lambda x: x.t().contiguous(),
    "cat": lambda x: torch.cat([x[1:], x[:1]]),
    "stack": lambda x: torch.stack(list(x.unbind(1)), 0),
    "index": lambda x: x[[2, 0], 1:],
    "index_select": lambda x: x.index_select(1, torch.tensor([3, 3])),
    "gather": lambda x: x.gather(1, torch.tensor([[3], [1], [0]])),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 0),
    "expand": lambda x: x[:, None].expand(3, 5, 4).reshape(15, 4),
    "flip and roll": lambda x: x.flip(0).roll(1, 1),
    "triu": lambda x: x.triu(),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 0)),
    "unfold": lambda x: x.unfold(1, 2, 1).contiguous(),
    "as_strided": lambda x: x.as_strided((2, 2), (5, 1), 1).clone(),
    "rows in place": written_by_rows,
    "a view of a view": written_through_a_view_of_a_view,
    "add at an index": added_in_place_to_zeros,
    "complex": interleaved_pairs,
    "sum of one": lambda x: x.reshape(1, 3, 1, 4).sum((0, 2)),
    "mean of one": lambda x: x[:, None].mean(1),
}
"""Functions that move numbers: what they return is the tags."""


@pytest.mark.parametrize("name", MOVES)
def test_numbers_that_move_keep_their_tags(name: str) -> None:
    function = MOVES[name]
    (tags,) = followed(function).returned
    assert torch.equal(tags.double(), function(X.clone()))


CHANGES = {
    "multiply": lambda x: 3 * x,
    "divide": lambda x: x / math.sqrt(2),
    "add a constant": lambda x: x + torch.ones(4, dtype=x.dtype),
    "tanh": lambda x: 30 * torch.tanh(x / 30),
    "softmax": lambda x: x.softmax(0),
    "masked_fill": lambda x: x.masked_fill(x > 6, -torch.inf),
    "where": lambda x: torch.where(x > 6, -torch.inf, x),
    "in place": lambda x: x.mul_(2).add_(1),
    "minus the largest": lambda x: (x - x.amax(1, keepdim=True)).exp(),
    "index with a mask": lambda x: x.index_put_((x > 6,), torch.tensor(-torch.inf, dtype=x.dtype)),
    "float32": lambda x: x.float().double(),
    "a part is filled": lambda x: x[:, 2:].fill_(-1e9) is x or x,
}
"""Functions that change each number by itself, and those that write a mask over some."""


@pytest.mark.parametrize("name", CHANGES)
def test_numbers_that_change_one_by_one_keep_their_tags(name: str) -> None:
    (tags,) = followed(CHANGES[name]).returned
    assert torch.equal(tags.double(), X)


@pytest.mark.parametrize(
    "function",
    [lambda x: x.sum(0), lambda x: x.mean(1), lambda x: x.amax(0), lambda x: x.cumsum(0), lambda x: x @ x.t()],
    ids=["sum", "mean", "amax", "cumsum", "matmul"],
)
def test_what_is_made_of_many_numbers_has_no_tag(function: Callable[[Tensor], Tensor]) -> None:
    (tags,) = followed(function).returned
    assert not bool(tags.any())


def test_what_is_overwritten_is_gone() -> None:
    (tags,) = followed(lambda x: x.zero_()).returned
    assert not bool(tags.any())
    (tags,) = followed(lambda x: x.copy_(torch.ones(3, 4))).returned
    assert not bool(tags.any())


def test_tags_of_what_an_operation_takes_are_those_before_it_writes() -> None:
    result = followed(lambda x: x.index_put_((torch.tensor([0]),), x[2].clone()))
    assert torch.equal(result.inputs[-1][0].double(), X)
    assert result.outputs[-1][0][0].tolist() == [9, 10, 11, 12]


def test_the_output_of_an_operation_can_have_tags_of_its_own() -> None:
    trace = traced(lambda x: (x @ x.t()).t() / 2)
    product = next(each.index for each in trace if each.name == "mm")
    (tags,) = tagged(trace, {product: torch.arange(21, 30)}).returned
    assert tags.tolist() == [[21, 24, 27], [22, 25, 28], [23, 26, 29]]


def test_numbers_that_are_added_are_kept_as_pairs() -> None:
    result = followed(lambda x: x[:2, :2] + 2 * x[1:, 2:])
    assert [(kept.tolist(), lost.tolist()) for kept, lost in result.sums] == [([1, 2, 5, 6], [7, 8, 11, 12])]
    assert result.returned[0].tolist() == [[1, 2], [5, 6]]


def test_a_recurrence_sums_as_often_as_it_has_steps() -> None:
    def decayed(x: Tensor) -> Tensor:
        kept = x[0]
        for step in range(40):
            kept = kept * 0.5 + x[step % 2] * 0.5
        return kept

    assert len(followed(decayed).sums) <= 40


def chosen_by_a_condition(x: Tensor) -> Tensor:
    return torch.where(torch.arange(4) < 2, x.flip(0), x)


def test_what_is_chosen_by_a_condition_keeps_the_tags_of_its_own_side() -> None:
    tags = followed(chosen_by_a_condition).outputs[-1][0]
    assert torch.equal(tags.double(), chosen_by_a_condition(X))
    filled = followed(lambda x: torch.where(x > 5, torch.ones_like(x[0]).expand(3, 4) * -9, x))
    assert torch.equal(filled.outputs[-1][0].double(), X)
    assert not bool(followed(torch.ones_like).outputs[-1][0].any())
