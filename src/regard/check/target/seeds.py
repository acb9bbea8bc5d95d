"""Random numbers that begin anew."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["seeded"]


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Inside, the random numbers of PyTorch, numpy and Python begin at a seed; afterwards they go on as before."""
    tensors, python = torch.default_generator.get_state(), random.getstate()
    numpy = sys.modules.get("numpy.random")
    arrays = None if numpy is None else numpy.get_state()
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if numpy is not None:
        numpy.seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(tensors)
        random.setstate(python)
        if numpy is not None:
            numpy.set_state(arrays)
