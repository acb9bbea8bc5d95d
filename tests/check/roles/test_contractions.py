"""Products that are summed over an axis are found in every spelling, term by term."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.check.roles.contractions import Contraction, contractions
from regard.check.trace.recorder import record


def drawn(*sizes: int, seed: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


A, B = drawn(2, 3, 4, seed=0), drawn(2, 5, 4, seed=1)
"""(batch, rows, width) and (batch, columns, width)."""


def found(function: Callable[[], Tensor]) -> list[Contraction]:
    def call(watch):
        with watch({}):
            return function()

    trace = record(call, outputs=lambda result: [result])
    assert not trace.error, trace.error
    return list(contractions(trace))


def sums(product: Contraction) -> Tensor:
    """Its terms, computed again."""
    left, right = product.left.data.flatten(), product.right.data.flatten()
    return (left[product.left_terms] * right[product.right_terms]).sum(-1)


SPELLINGS = {
    "matmul": lambda: A @ B.mT,
    "bmm": lambda: torch.bmm(A, B.transpose(1, 2)),
    "mul and sum": lambda: (A[:, :, None] * B[:, None]).sum(-1),
    "mul and sum over the first axis": lambda: (A.movedim(-1, 0)[:, :, :, None] * B.movedim(-1, 0)[:, :, None]).sum(0),
    "einsum": lambda: torch.einsum("nid,njd->nij", A, B),
    "linear": lambda: F.linear(A, B[0]),
    "mm": lambda: A[0].mm(B[0].t()),
    "mv": lambda: B[1].mv(A[1, 0]),
    "dot": lambda: A[0, 0].dot(B[0, 0]),
    "vector times matrix": lambda: A[0, 0] @ B[0].t(),
    "inner": lambda: torch.inner(A[0], B[0]),
    "tensordot": lambda: torch.tensordot(A[0], B[0], dims=([1], [1])),
    "scaled baddbmm": lambda: torch.baddbmm(torch.empty(1, 1, 1, dtype=A.dtype), A, B.mT, beta=0, alpha=1),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_product_is_found_in_every_spelling(name: str) -> None:
    (product,) = found(SPELLINGS[name])
    torch.testing.assert_close(sums(product), product.output.data.flatten())
    assert product.left_terms.shape[1] == 4


@pytest.mark.parametrize("letters", ["".join(each) for each in permutations("bhij")])
def test_an_einsum_of_every_letter_order(letters: str) -> None:
    q, k = drawn(2, 3, 2, 5, seed=2), drawn(2, 3, 4, 5, seed=3)
    (product,) = found(lambda: torch.einsum(f"bhid,bhjd->{letters}", q, k))
    torch.testing.assert_close(sums(product), product.output.data.flatten())
    assert product.output.data.numel() == 2 * 3 * 2 * 4


def test_what_baddbmm_adds_and_scales_is_not_of_its_terms() -> None:
    (product,) = found(lambda: torch.baddbmm(torch.ones(2, 3, 5).double(), A, B.mT, beta=2, alpha=0.5))
    torch.testing.assert_close(sums(product), (A @ B.mT).flatten())
    assert (product.left_place[1], product.right_place[1]) == (1, 2)


@pytest.mark.parametrize(
    "function",
    [
        lambda: (A * 2).sum(-1),
        lambda: (A * A.mT.mT).sum(),
        lambda: A.sum(-1) * A[..., 0],
        lambda: A * A,
        lambda: (A[:, :, None] * B[:, None]).sum((-1, -2)),
    ],
    ids=["times a number", "over all axes", "sum first", "no sum", "over two axes"],
)
def test_what_is_no_product_over_one_axis_is_left_out(function: Callable[[], Tensor]) -> None:
    assert found(function) == []
