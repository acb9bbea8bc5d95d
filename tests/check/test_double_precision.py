"""Code that asks for narrow types inside runs in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.check import check
from regard.check.target.double_precision import double_precision

NARROWING = {
    ".float()": lambda x: x.float(),
    ".half()": lambda x: x.half(),
    ".bfloat16()": lambda x: x.bfloat16(),
    ".to(float32)": lambda x: x.to(torch.float32),
    ".to(dtype=float16)": lambda x: x.to(dtype=torch.float16),
    ".type(float32)": lambda x: x.type(torch.float32),
    '.type("torch.FloatTensor")': lambda x: x.type("torch.FloatTensor"),
    "softmax(dtype=)": lambda x: F.softmax(x, dim=-1, dtype=torch.float32),
    "sum(dtype=)": lambda x: x.sum(dtype=torch.float32),
    "zeros(dtype=)": lambda x: torch.zeros(2, dtype=torch.float32) + x[0, 0],
    "arange(dtype=)": lambda x: torch.arange(3, dtype=torch.float32),
    "factory without a type": lambda x: torch.full((2,), -torch.inf),
    "complex": lambda x: torch.view_as_real(torch.view_as_complex(x.float())),
}


@pytest.mark.parametrize("name", NARROWING)
def test_what_would_be_narrow_is_float64(name: str) -> None:
    with double_precision():
        assert NARROWING[name](torch.randn(3, 2, dtype=torch.float64)).dtype is torch.float64


def test_a_rounded_step_gives_the_numbers_of_float64() -> None:
    scores = torch.randn(4, 6, dtype=torch.float64)
    with double_precision():
        weights = scores.float().softmax(-1, dtype=torch.float32).to(scores.dtype)
    assert torch.equal(weights, scores.softmax(-1))


CONSTANT = torch.tensor([[0.5, 2.0]])


@pytest.mark.parametrize(
    "meet",
    [
        lambda x: x @ CONSTANT.t(),
        lambda x: torch.cat([x, CONSTANT]),
        lambda x: x.clone().index_put_((torch.tensor([0]),), CONSTANT),
    ],
    ids=["matmul", "cat", "index_put_"],
)
def test_a_constant_of_float32_is_widened_where_it_meets_float64(meet) -> None:
    with double_precision():
        assert meet(torch.randn(3, 2, dtype=torch.float64)).dtype is torch.float64


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.int32])
def test_types_that_are_no_floats_stay(dtype: torch.dtype) -> None:
    with double_precision():
        assert torch.ones(2, dtype=torch.float64).to(dtype).dtype is dtype


def test_a_tensor_that_is_written_into_stays_itself() -> None:
    written = torch.zeros(2, dtype=torch.float32)
    with double_precision():
        assert written.add_(torch.ones(2, dtype=torch.float64)) is written


def test_afterwards_types_are_as_before() -> None:
    with double_precision():
        pass
    assert (torch.get_default_dtype(), torch.zeros(1, dtype=torch.float16).dtype) == (torch.float32, torch.float16)


def test_calls_are_counted() -> None:
    def two(x: Tensor) -> Tensor:
        return (x + 1) * 2

    with double_precision() as mode:
        two(torch.ones(1, dtype=torch.float64))
    assert mode.calls == 3  # torch.ones is one


class AssertsItsTypes(torch.nn.Module):
    """What is no tensor of floats is refused, as in code of before 2018."""

    def __init__(self, dim: int = 16, axis: int = -1) -> None:
        super().__init__()
        self.axis, self.qkv = axis, torch.nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(x, torch.FloatTensor)
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(self.axis) @ v


def test_asserted_types_of_floats_hold_and_are_left_as_they_were() -> None:
    kind = torch.FloatTensor
    with double_precision():
        assert isinstance(torch.ones(2, dtype=torch.float64), torch.FloatTensor)
        assert not isinstance(torch.ones(2, dtype=torch.int64), torch.FloatTensor)
        assert torch.FloatTensor([0.5]).dtype is torch.float64
    assert torch.FloatTensor is kind
    assert check(AssertsItsTypes).verdict == "right"
    assert check(AssertsItsTypes, args={"axis": -2}).verdict == "wrong"
