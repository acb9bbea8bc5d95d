"""Where in the user's file a step is computed: every tensor that a call makes, with the line that made it."""

from __future__ import annotations

import linecache
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from regard.check.location import CodeLocation
from regard.check.recipes.case import Case
from regard.check.search.calls import Failed, ProbeCall
from regard.check.target.running import tensors_in

__all__ = ["Record", "place_of", "recording", "same_numbers", "traced"]

Record = tuple[Tensor, CodeLocation]
"""A tensor, as it was when it was made, and the line that made it."""

MOST = 4096
"""Records of one call: a loop over rows makes many."""
LARGEST = 1 << 20
"""Numbers in a record; larger tensors are passed by."""
CLOSE = 1e-9
BLOCKED = -5e3
"""Numbers below this are what masks write: -inf, -1e9 or -1e4, it makes no difference after the softmax."""
FEWEST = 3
"""Numbers that a part must have in order to be known by them."""
WRITES = frozenset({"__setitem__", "__set__"})
"""What changes its first argument and returns nothing."""


class _Recorder(TorchFunctionMode):
    """Keeps what torch returns, as long as a line of one file asked for it."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file
        self.path = _real(file)
        self.records: list[Record] = []
        self._ours: dict[str, bool] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if len(self.records) < MOST:
            made = args[:1] if getattr(func, "__name__", "") in WRITES else result
            tensors = [each for each in tensors_in(made) if 0 < each.numel() <= LARGEST]
            line = self._line() if tensors else None
            if line is not None:
                # A cell of IPython is known by its name, which is no path.
                text = linecache.getline(self.path, line) or linecache.getline(self.file, line)
                place = CodeLocation(self.file, line, text.strip())
                for tensor in tensors:  # copied: what follows may write into it
                    self.records.append((tensor.detach().clone(), place))
        return result

    def _line(self) -> int | None:
        """The line of the innermost frame that runs the file."""
        frame = sys._getframe(1)
        while frame is not None and (frame.f_code.co_filename, frame.f_code.co_name) != (__file__, traced.__name__):
            name = frame.f_code.co_filename
            if name not in self._ours:
                self._ours[name] = _real(name) == self.path
            if self._ours[name]:
                return frame.f_lineno
            frame = frame.f_back  # type: ignore[assignment]
        return None


def _real(file: str) -> str:
    return os.path.realpath(file)


def traced(call: ProbeCall, case: Case, file: str | None) -> list[Record]:
    """Every tensor that a torch function, method or operator returns inside the call, with the line of the user's file.

    A call that raises leaves what it made until then.

    Args:
        call: how it is called.
        case: with what.
        file: whose lines are wanted; without one there are no records.
    """
    records: list[Record] = []
    if file is None:
        return records
    with suppress(Failed), recording(file) as records:
        call.result(call.arguments(case))
    return records


@contextmanager
def recording(file: str) -> Iterator[list[Record]]:
    """Keep every tensor that a torch function returns in the block, with the line of a file that asked for it.

    Args:
        file: whose lines are wanted.

    Yields:
        The records, which grow in the block; also where it ends by an error.
    """
    recorder = _Recorder(file)
    with warnings.catch_warnings(), torch.no_grad(), recorder:
        warnings.simplefilter("ignore")
        yield recorder.records


def place_of(records: Sequence[Record], wanted: Tensor) -> CodeLocation | None:
    """The first line that makes the numbers of a tensor, in whatever layout; None where no line does.

    Where no line makes all of them at once, one that makes those of the first head, sample or row: a loop.

    Args:
        records: of `traced`.
        wanted: a step, as the found recipe computes it.
    """
    for part in _parts(wanted):
        for record, place in records:
            if same_numbers(record, part):
                return place
    return None


def _parts(wanted: Tensor) -> Iterator[Tensor]:
    yield wanted
    sizes = {wanted.numel()}
    parts = [wanted[:, 0]] if wanted.ndim == 4 else []
    while wanted.ndim > 1 and len(wanted):
        wanted = wanted[0]
        parts.append(wanted)
    for part in parts:
        if part.numel() >= FEWEST and part.numel() not in sizes:
            sizes.add(part.numel())
            yield part


def same_numbers(tensor: Tensor, wanted: Tensor) -> bool:
    """Whether two tensors hold the same numbers to 1e-9, whatever the order of their elements and axes.

    What masks write, -inf or a large negative number, counts as the same.
    """
    if tensor.numel() != wanted.numel() or not tensor.is_floating_point():
        return False
    mine, theirs = _sorted(tensor), _sorted(wanted)
    blocked = mine == -torch.inf
    if not torch.equal(blocked, theirs == -torch.inf):
        return False
    finite = theirs.isfinite()
    if not torch.equal(mine.isfinite(), finite) or not finite.any():  # nothing but blocked ones tells nothing
        return False
    mine, theirs = mine[finite], theirs[finite]
    scale = max(1e-3, theirs.abs().max().item())
    return bool(((mine - theirs).abs() <= CLOSE * scale).all())


def _sorted(tensor: Tensor) -> Tensor:
    flat = tensor.detach().to(torch.float64).flatten()
    return flat.masked_fill(flat < BLOCKED, -torch.inf).sort().values
