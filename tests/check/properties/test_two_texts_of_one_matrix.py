"""BiDAF (Seo et al. 2017): one matrix of scores, whose rows and whose columns have a softmax each."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class ReadsBothWays(nn.Module):
    """A passage reads a question, and itself by way of the question's words."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.of_c, self.of_q = (nn.Linear(hidden_size, 1, bias=False) for _ in range(2))
        self.of_both = nn.Parameter(torch.ones(hidden_size))

    def axis(self) -> int:
        """Of the softmax over the passage."""
        return 1

    def forward(self, c, q, c_mask, q_mask):  # type: ignore[no-untyped-def]
        b, c_len, _ = c.size()
        scores = self.of_c(c) + self.of_q(q).transpose(1, 2) + (c * self.of_both) @ q.transpose(1, 2)
        c_mask, q_mask = c_mask.view(b, c_len, 1).double(), q_mask.view(b, 1, q.size(1)).double()
        over_q = (scores * q_mask - 1e30 * (1 - q_mask)).softmax(2)
        over_c = (scores * c_mask - 1e30 * (1 - c_mask)).softmax(self.axis())
        read = over_q @ q
        again = over_q @ over_c.transpose(1, 2) @ c
        return torch.cat([c, read, c * read, c * again], 2)


class OfNamedTexts(ReadsBothWays):
    """The same under other names."""

    def forward(self, x: Tensor, context: Tensor, x_mask: Tensor, context_mask: Tensor) -> Tensor:
        return super().forward(x, context, x_mask, context_mask)


class ReadsOneWay(OfNamedTexts):
    """Both softmaxes are over the question."""

    def axis(self) -> int:
        """Of the softmax over the passage."""
        return 2


@pytest.mark.parametrize("right", [ReadsBothWays, OfNamedTexts])
def test_two_softmaxes_over_both_axes_of_one_matrix_are_right(right: type[nn.Module]) -> None:
    assert check(right, args={"hidden_size": 32}).verdict in ("right", "different by design")


def test_two_softmaxes_over_one_axis_are_wrong() -> None:
    assert "weights-sum-to-one" in [each.id for each in check(ReadsOneWay, args={"hidden_size": 32}).causes]
