"""What a learner's code returned, beside what it should have returned."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.check.sandbox.answer import error_text, first_line, wants_memory
from regard.exercises.checking.findings import ROUNDING
from regard.exercises.problems.decoder import WrongResult
from regard.exercises.problems.problem import MISFIT, Call, ModuleWeightsMissing, Problem, Variant

__all__ = ["TOLERANCE", "Result", "agree", "as_float64", "difference", "run_call", "tensors_of"]

TOLERANCE = 1e-9
"""Of the largest number of a result."""


@dataclass(eq=False)
class Result:
    """One call of the learner's code."""

    call: Call
    args: tuple[Any, ...]
    """Of the definition."""
    right: tuple[Tensor, ...]
    yours: tuple[Tensor, ...] | None = None
    """None where it raised, or returned something else than numbers."""
    returned: str = ""
    """What it returned instead of numbers."""
    error: str = ""
    """What it raised, in one line."""
    line: int | None = None
    """Of the file, where it raised."""
    is_stub: bool = False
    """Whether it raised NotImplementedError, as the stub does."""
    changed: bool = False
    """Whether it changed a tensor that it was given."""

    @property
    def difference(self) -> float:
        """The largest one, in units of the largest number; infinite where shapes or kinds differ."""
        return math.inf if self.yours is None else difference(self.yours, self.right)

    @property
    def is_right(self) -> bool:
        """Whether it is the definition's, but for rounding."""
        return self.difference <= ROUNDING


def run_call(learner: Any, problem: Problem, call: Call, file: str) -> Result:
    """The result of one call, whatever the learner's code does.

    Args:
        learner: the function or the class.
        problem: what it is held against.
        call: the inputs.
        file: the learner's, of which an error names the line.

    Raises:
        ModuleWeightsMissing: a class has not the parts of the stub.
        MemoryError and the like: too little memory, which the sandbox tells.
    """
    result = Result(call, call.args, ())
    try:
        with as_float64():
            work, args = problem.run(learner, call)
    except ModuleWeightsMissing:
        raise
    except Exception as error:
        _keep_error(result, error, file)
        return result
    result.args = args
    result.right = tensors_of(problem.right(*args)) or ()
    try:
        with as_float64():
            returned = work()
    except WrongResult as error:
        result.returned = str(error)
    except Exception as error:
        _keep_error(result, error, file)
    else:
        _keep_returned(result, returned)
    return result


@contextmanager
def as_float64() -> Iterator[None]:
    """New tensors are float64: an intermediate result that somebody makes by torch.zeros rounds nothing."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_default_dtype(before)


def _keep_error(result: Result, error: Exception, file: str) -> None:
    if wants_memory(error):
        raise error
    result.is_stub = isinstance(error, NotImplementedError)
    result.error = first_line(error_text(error))
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    result.line = lines[-1] if lines else None


def _keep_returned(result: Result, returned: Any) -> None:
    result.yours = tensors_of(returned)
    if result.yours is None:
        kind = "nothing (None)" if returned is None else f"a {type(returned).__name__}"
        result.returned = f"it returned {kind}; numbers are wanted"
        return
    stacked = result.yours[0] if len(result.yours) == 1 and len(result.right) > 1 else None
    if stacked is not None and stacked.ndim == result.right[0].ndim + 1:
        result.yours = tuple(stacked)  # one tensor of all results
    if len(result.right) == 1 and len(result.yours) > 1:  # rows in a list
        with_rows = _stacked(list(result.yours))
        result.yours = None if with_rows is None else (with_rows,)
    if result.yours is None or len(result.yours) != len(result.right):
        result.yours = None
        count = len(result.right)
        result.returned = (
            f"it returned {len(returned) if isinstance(returned, tuple | list) else 1} results; "
            f"{f'{count} are' if count > 1 else 'one is'} wanted"
        )
        return
    result.yours = _numbers(result.yours, result.right)


def _numbers(several: Sequence[Tensor], right: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Results without axes of size 1 where one number is wanted."""
    if len(several) != len(right):
        return tuple(several)
    pairs = zip(several, right, strict=True)
    return tuple(one.reshape(()) if not other.ndim and one.numel() == 1 else one for one, other in pairs)


def tensors_of(value: Any) -> tuple[Tensor, ...] | None:
    """What somebody returned as float64 tensors: tensors, arrays, numbers, and tuples or lists of them; else None."""
    if isinstance(value, tuple | list):
        several = [_tensor(each) for each in value]
        return None if not several or any(each is None for each in several) else tuple(several)  # type: ignore[arg-type]
    one = _tensor(value)
    return None if one is None else (one,)


def _tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return None if value.is_complex() else value.detach().to(torch.float64)
    if isinstance(value, list | tuple):
        return _stacked([_tensor(each) for each in value])
    try:
        return torch.as_tensor(value).to(torch.float64)
    except (TypeError, ValueError, RuntimeError):
        return None


def _stacked(several: Sequence[Tensor | None]) -> Tensor | None:
    if (
        not several
        or any(each is None for each in several)
        or len({each.shape for each in several if each is not None}) > 1
    ):
        return None
    return torch.stack([each for each in several if each is not None])


def difference(yours: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """The largest difference of two results, in units of the largest number; infinite where shapes differ.

    NaN and infinite numbers have to stand in the same places.
    """
    if len(yours) != len(right):
        return math.inf
    largest = 0.0
    for one, other in zip(yours, right, strict=True):
        if one.shape != other.shape:
            return math.inf
        finite = other.isfinite()
        if not torch.equal(one.isfinite(), finite) or not torch.equal(
            one[~finite].nan_to_num(), other[~finite].nan_to_num()
        ):
            return math.inf
        if finite.any():
            unit = max(1e-3, other[finite].abs().max().item())
            largest = max(largest, (one[finite] - other[finite]).abs().max().item() / unit)
    return largest


def agree(variant: Variant, results: Sequence[Result]) -> bool:
    """Whether a variant gives the learner's numbers in every call, to 1e-9, and raises where it raised."""
    numbers = False
    for result in results:
        try:
            given = tensors_of(variant.output(result.args))
        except MISFIT:
            given = None
        if (given is None) != (result.yours is None):
            return False
        if given is not None and result.yours is not None:
            if difference(result.yours, _numbers(given, result.right)) > TOLERANCE:
                return False
            numbers = True
    return numbers
