"""Two sequences that stand one behind the other and attend as one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from property_cases import WIDTH, drawn
from regard.check.properties.analysis import Analysis
from regard.check.properties.analyze import analyze
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare


class Joined(nn.Module):
    """A query sees keys up to its own place."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, first: Tensor, last: Tensor) -> Tensor:
        x = torch.cat([first, last], dim=1)
        scores = self.q(x) @ self.k(x).mT / WIDTH**0.5
        weights = scores.masked_fill(~self.allowed(x.shape[1], first.shape[1]), -torch.inf).softmax(-1)
        return self.out(weights @ self.v(x))  # type: ignore[no-any-return]

    def allowed(self, count: int, before: int) -> Tensor:
        return torch.ones(count, count).tril().bool()


class BehindAPrefix(Joined):
    def allowed(self, count: int, before: int) -> Tensor:
        return super().allowed(count, before) | (torch.arange(count) < before)


class Otherwise(Joined):
    def allowed(self, count: int, before: int) -> Tensor:
        return super().allowed(count, before) & (torch.arange(count)[:, None] % 2 == torch.arange(count) % 2)


def judged(kind: type[nn.Module]) -> Analysis:
    module = kind()
    prepare(module, 1)
    given: dict[str, Any] = {"first": drawn(2, 3, WIDTH, seed=0), "last": drawn(2, 4, WIDTH, seed=1)}
    streams = [Stream("first", "x", 0, (1,)), Stream("last", "x", 0, (1,))]
    return analyze(Invocation(module, given, ["first", "last"], streams))


@pytest.mark.parametrize(
    ("kind", "found"), [(Joined, "holds"), (BehindAPrefix, "design"), (Otherwise, "open")], ids=lambda each: str(each)
)
def test_the_order_of_both_is_that_in_which_one_sees_the_other(kind: type[nn.Module], found: str) -> None:
    of_masks = [each for each in judged(kind).findings if each.property in ("mask-pattern", "mask-unknown")]
    assert [each.kind for each in of_masks] == [found]
    assert found == "open" or "first before last" in of_masks[0].message
