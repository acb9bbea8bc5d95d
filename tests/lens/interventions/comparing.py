"""Outputs of two models, held against one another."""

from typing import Any

import torch

from lens.watching import output_tensors


def largest_difference(got: Any, expected: Any) -> float:
    """The largest difference between the tensors of two outputs, relative to the largest number of each."""
    pairs = list(zip(output_tensors(got), output_tensors(expected), strict=True))
    assert pairs
    assert all(torch.isfinite(b).all() for _, b in pairs)
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs if b.is_floating_point())


def assert_same(got: Any, expected: Any, limit: float) -> None:
    """The outputs of two models are equal, but for rounding."""
    difference = largest_difference(got, expected)
    assert difference <= limit, f"relative difference {difference:.1e}"
