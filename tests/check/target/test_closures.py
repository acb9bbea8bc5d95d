"""Functions that a module keeps, and what they call in a copy of it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.check import check
from regard.check.target.preparation import copied

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class Attends(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (2, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Lambda(nn.Module):
    """A block whose second half is a function over its own parts."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attend, self.norms = Attends(dim), nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.wide, self.narrow, self.drop = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim), nn.Dropout(0.2)
        self.feed = lambda y: self.drop(self.narrow(functional.gelu(self.wide(y))))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norms[0](x))
        return x + self.feed(self.norms[1](x))


class Always(Lambda):
    """The same with a dropout that never ends."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.feed = lambda y: functional.dropout(self.narrow(functional.gelu(self.wide(y))), 0.2)


class Steps(Lambda):
    """The same with functions in a list, of which the last calls the others, and a part as a default."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        wide, parts = self.wide, [self.drop, self.narrow]

        def first(y: Tensor) -> Tensor:
            return functional.gelu(wide(y))

        def last(y: Tensor, drop: nn.Module = parts[0]) -> Tensor:
            return drop(parts[1](first(y)))

        del self.feed
        self.steps = [last]

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norms[0](x))
        return x + self.steps[0](self.norms[1](x))


def test_a_function_of_a_copy_calls_the_parts_of_the_copy() -> None:
    for kind in (Lambda, Steps):
        original = kind(8)
        before = [each.clone() for each in original.parameters()]
        other = copied(copied(original)).double().eval()
        x = torch.randn(2, 3, 8, dtype=torch.float64)
        assert torch.equal(other(x), other(x))
        other(x).sum().backward()
        assert other.wide.weight.grad is not None
        assert original.wide.weight.grad is None
        assert all(torch.equal(one, two) for one, two in zip(original.parameters(), before, strict=True))


def test_a_function_that_holds_no_module_is_shared() -> None:
    module, factor = nn.Linear(4, 4), 2.0
    module.twice = lambda x: factor * x
    assert copied(module).twice is module.twice


def test_cells_that_are_empty_and_functions_that_call_themselves_are_copied() -> None:
    module = nn.Linear(4, 4)

    def again(count: int) -> Tensor:
        return module.weight if count == 0 else again(count - 1)

    def later() -> Tensor:
        return module.weight + number

    module.again, module.later = again, later
    other = copied(module)
    number = 1.0
    assert other.again(2) is other.weight
    assert other.later is not later
    assert torch.equal(later(), module.weight + number)


def test_a_dropout_in_a_function_ends_with_training_and_one_that_does_not_is_told() -> None:
    assert not check(Lambda, args={"dim": 32}).verdict.startswith("wrong")
    assert not check(Steps, args={"dim": 32}).verdict.startswith("wrong")
    assert check(Always, args={"dim": 32}).verdict == "wrong"
