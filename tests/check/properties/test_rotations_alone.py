"""Functions that rotate queries and keys by tables that they are given, and do nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from property_cases import drawn
from regard.check.properties.analyze import analyze
from regard.check.target import Invocation, Stream

ANGLES = torch.arange(5.0).double()[:, None] * torch.tensor([1.0, 0.1]).double()


def turned(x: Tensor, cos: Tensor, sin: Tensor, sign: int = 1) -> Tensor:
    real, imaginary = x[..., ::2], x[..., 1::2]
    return torch.stack((real * cos - imaginary * sin, real * sin + sign * imaginary * cos), -1).flatten(-2)


def both(xq: Tensor, xk: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return turned(xq, cos, sin), turned(xk, cos, sin)


def scaled(xq: Tensor, xk: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return turned(xq, cos, sin) / 2, turned(xk, cos, sin)


def with_lengths(xq: Tensor, xk: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries grow and keys shrink with their places (xPos)."""
    grown = 1.1 ** torch.arange(xq.shape[-2])[:, None]
    return turned(xq, cos, sin) * grown, turned(xk, cos, sin) / grown


def other_sign(xq: Tensor, xk: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return turned(xq, cos, sin), turned(xk, cos, sin, -1)


def other_way(xq: Tensor, xk: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return turned(xq, cos, sin), turned(xk, cos, -sin)


def keys_left(xq: Tensor, xk: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return turned(xq, cos, sin), xk


@pytest.mark.parametrize(
    ("function", "violated"),
    [
        (both, []),
        (scaled, []),
        (with_lengths, []),
        (other_sign, ["rotation-keeps-lengths"]),
        (other_way, ["positions-relative"]),
        (keys_left, ["positions-relative"]),
    ],
)
def test_queries_and_keys_are_rotated_alike(
    function: Callable[..., tuple[Tensor, Tensor]], violated: list[str]
) -> None:
    streams = [Stream(f"x{role}", role, 0, (2,), 1) for role in "qk"]
    given = {f"x{role}": drawn(2, 3, 5, 4, seed=seed) for seed, role in enumerate("qk")}
    arguments = {**given, "cos": ANGLES.cos(), "sin": ANGLES.sin()}
    found = analyze(Invocation(function, arguments, [*arguments], streams)).violations
    assert [each.property for each in found] == violated
