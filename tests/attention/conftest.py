"""What several tests of attention use."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
