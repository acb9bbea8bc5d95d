"""What every test can use."""

from collections.abc import Iterator

import jaxtyping
import pytest
import torch
from hypothesis import settings

# What decides whether work lands draws the same examples every time; the slow runs draw anew.
settings.register_profile("the same every time", derandomize=True, database=None)
settings.load_profile("the same every time")


@pytest.fixture(autouse=True)
def _same_numbers_every_run() -> None:
    torch.manual_seed(0)


@pytest.fixture
def as_a_user_runs_it() -> Iterator[None]:
    """Without the shape checks of the test run, so that regard's own errors are the ones that show."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
