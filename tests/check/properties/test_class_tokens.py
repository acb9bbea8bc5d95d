"""Tokens that are put beside others, and what is joined besides."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from property_cases import of_module
from property_cases.output_cases import attention
from regard.check.properties.analyze import analyze

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class WithNoMemoryYet(nn.Module):
    """Before the first segment a memory is an empty tensor of one axis, which cat takes for nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return attention(torch.cat([torch.empty(0, dtype=x.dtype), x], 0))


def test_an_empty_tensor_of_one_axis_that_is_joined_is_no_token() -> None:
    assert analyze(of_module(WithNoMemoryYet)).violations == []
