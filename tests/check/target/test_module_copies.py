"""Copies of modules, and what is read of a target once."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.check.target.call_budget import Budget, cost_of
from regard.check.target.class_texts import text_of_class
from regard.check.target.facts import read_once
from regard.check.target.preparation import copied


class Tied(nn.Module):
    """Two names of one matrix, a part that knows its owner, and a tensor that has a history."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.out.weight = self.table.weight
        self.parts = [nn.Linear(4, 4)]  # in a plain list
        self.out.owner = [self]
        self.register_buffer("counts", torch.zeros(3))
        self.last = self.table.weight.sum(0)

    def forward(self, x: Tensor) -> Tensor:
        self.counts += 1
        return self.parts[0](self.table(x))


class CopiesItself(nn.Linear):
    def __deepcopy__(self, memo: dict[int, Any]) -> CopiesItself:
        other = CopiesItself(self.in_features, self.out_features)
        other.told = True
        return other


def test_a_copy_shares_nothing_but_is_tied_as_the_original_is() -> None:
    made = Tied()
    other = copied(made)
    assert type(other) is Tied
    assert other.out.weight is other.table.weight
    assert other.out.weight is not made.out.weight
    assert isinstance(other.out.weight, nn.Parameter)
    assert other.parts[0] is not made.parts[0]
    assert other.out.owner[0] is other
    assert other.last is not made.last
    other(torch.tensor([[1, 2]]))
    assert not made.counts.any()
    assert other.counts.all()


def test_a_copy_has_hooks_of_its_own_and_a_module_that_copies_itself_does_so() -> None:
    made = nn.Sequential(nn.Linear(3, 3), CopiesItself(3, 3), nn.LSTM(3, 3))
    made[0].register_forward_hook(lambda module, given, result: result + 1)
    other = copied(made)
    assert other[1].told
    x = torch.ones(2, 3)
    assert torch.equal(other[0](x), made[0](x))
    other[0]._forward_hooks.clear()
    assert made[0]._forward_hooks
    assert torch.equal(other[2](x)[0], made[2](x)[0])
    assert {*vars(other[0])} == {*vars(copy.deepcopy(made[0]))}


def test_the_text_of_a_class_is_that_of_inspect() -> None:
    class Within:
        """Of a function."""

    for each in (Tied, CopiesItself, Within, nn.Conv2d, nn.Module, inspect.Parameter, Budget):
        assert text_of_class(each) == inspect.getsource(each)
    with pytest.raises((OSError, TypeError)):
        text_of_class(int)


def test_a_fact_is_read_once_of_each_target() -> None:
    asked = []

    @read_once
    def width(target: nn.Linear, times: int) -> int:
        asked.append(target)
        return times * target.in_features

    one, other = nn.Linear(2, 3), nn.Linear(4, 3)
    assert [width(one, 1), width(one, 1), width(other, 1), width(one, 2), width(other, 1)] == [2, 2, 4, 4, 4]
    assert len(asked) == 3


def test_fewer_calls_of_a_large_module_are_tried() -> None:
    large = nn.Sequential(*(nn.Linear(1, 1) for _ in range(200)))
    assert cost_of(nn.Linear(1, 1)) == cost_of(len) == 1
    budget = Budget(100, cost_of(large))
    assert budget.granted(1000) == 20
    budget.spend()
    assert budget.left == 95
    assert Budget(3, 5).granted(1) == 0
