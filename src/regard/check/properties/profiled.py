"""The calls of Python's functions in a run, as they begin and end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["profiled"]


@contextmanager
def profiled(look: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    """Inside, a function is told of each frame, of what happens to it ("call" or "return"), and of what it returns."""
    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)
