"""What is raised where a target cannot be called."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from torch import nn

from regard.check.location import CodeLocation
from regard.check.sandbox.answer import error_text
from regard.check.sandbox.faults import user_line
from regard.errors import InputError

__all__ = [
    "AlwaysFails",
    "Failed",
    "NotCallable",
    "error_line",
    "failed",
    "fixed_side",
    "fixed_tokens",
    "is_of_one_sample",
    "joined_tokens",
    "named_in",
    "summed_tokens",
]

MAX_CHARACTERS, MOST_TOKENS = 300, 64
_NOT_BROADCAST = re.compile(r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)")
_NOT_SUMMED = re.compile(r"subscript \w has size (\d+) for operand \d+ which does not broadcast .* size (\d+)$")
_NOT_MAPPED = re.compile(r"mat1 and mat2 shapes cannot be multiplied \(\d+x(\d+) and (\d+)x\d+\)")
_NOT_EXPANDED = re.compile(r"expanded size of the tensor \(1\) must match the existing size \((\d+)\)")
_UNLIKE = re.compile(r"batch2 tensor to be: \[(\d+), (\d+)\] but got: \[\1, (\d+)\]")
"""What PyTorch says of two batches of matrices whose product sums over axes of different sizes."""


class Failed(Exception):
    """A call, or a constructor, that raised; the text is its error."""

    def __init__(
        self,
        message: str,
        progress: int = 0,
        own: CodeLocation | None = None,
        named: frozenset[str] = frozenset(),
        *,
        of_axes: bool = False,
    ) -> None:
        super().__init__(message)
        self.progress = progress
        """How many functions of PyTorch were called before: the farthest call is the closest to one that runs."""
        self.own = own
        """The line of the code that fails whatever it is given; None where other inputs may help."""
        self.named = named
        """The arguments that the error, or the line that raised it, names."""
        self.of_axes = of_axes
        """Whether a tensor has too many axes or too few: no other size helps."""


class NotCallable(InputError):
    """No way to call a target was found; the message says what was tried, the last error and what to hand over."""


class AlwaysFails(NotCallable):
    """The code itself cannot run to its end, or returns nothing; the message says at which line."""


def failed(error: Exception, progress: int) -> Failed:
    """What a call raised: it is the code's own if it names what there is not, or says that it is not written."""
    of_a_module = isinstance(error, AttributeError) and isinstance(error.obj, nn.Module)
    is_own = of_a_module or isinstance(error, NameError | NotImplementedError | ImportError)
    own = user_line(error) if is_own else None
    of_axes = isinstance(error, ValueError) and "values to unpack" in str(error) and _reads_a_shape(error)
    return Failed(error_line(error) if own is None else f"raises {error_line(error)}", progress, own, of_axes=of_axes)


def _reads_a_shape(error: Exception) -> bool:
    """Whether the line that raised an error gives names to the sizes of a tensor."""
    line = user_line(error)
    return (
        line is not None and re.search(r"=\s*(?:\w+\s*,\s*\*?)?[\w.]+\.(?:shape|size\(\))\s*$", line.text) is not None
    )


def named_in(error: Exception, names: Iterable[str]) -> frozenset[str]:
    """Of some names those that an error says, or else those in the line that raised it."""
    line = user_line(error)
    for text in (error_text(error), line.text if line is not None else ""):
        found = frozenset(each for each in names if re.search(rf"\b{re.escape(each)}\b", text))
        if found:
            return found
    return frozenset()


def summed_tokens(error: Failed, counts: Collection[int]) -> int:
    """How many tokens a call may have, where it failed as channels were multiplied by tokens: as many; 0 elsewhere.

    As in q @ k without a transpose, whose heads are no wider than that.

    Args:
        error: what the call raised.
        counts: how many it may have had, as those that ask and those that are read.
    """
    unlike = _UNLIKE.search(str(error))
    if unlike is None or int(unlike[3]) not in counts or not 1 < int(unlike[2]) <= MOST_TOKENS:
        return 0
    return int(unlike[2])


def fixed_tokens(error: Failed, tokens: int) -> int:
    """How many tokens a call has to have, by a tensor of a fixed number that was added to its scores; 0 elsewhere.

    Or by a linear layer over the tokens, as those that project keys and values (Linformer).

    Args:
        error: what the call raised.
        tokens: how many it had.
    """
    unmapped = _NOT_MAPPED.search(str(error))
    if unmapped is not None and int(unmapped[1]) == tokens:
        return int(unmapped[2]) if 1 < int(unmapped[2]) <= MOST_TOKENS else 0
    unlike = _NOT_BROADCAST.search(str(error))
    sizes = {int(unlike[1]), int(unlike[2])} if unlike is not None else set()
    (other,) = sizes - {tokens} if len(sizes) == 2 and tokens in sizes else (0,)
    return other if 1 < other <= MOST_TOKENS else 0


def fixed_side(error: Failed, sides: Collection[int]) -> int:
    """How long a side of a map has to be, by a tensor of a fixed number that einsum was given beside it; 0 elsewhere.

    Args:
        error: what the call raised.
        sides: those that it was tried with.
    """
    unlike = _NOT_SUMMED.search(str(error))
    sizes = {int(unlike[1]), int(unlike[2])} if unlike is not None else set()
    others = sizes - {*sides}
    return min(others) if len(sizes) == 2 and len(others) == 1 and 1 < min(others) <= MOST_TOKENS else 0


def joined_tokens(error: Failed, tokens: int) -> int:
    """How many tokens a call has to have, by a layer that takes those of all tokens side by side; 0 elsewhere.

    Args:
        error: what the call raised.
        tokens: how many it had.
    """
    unmapped = _NOT_MAPPED.search(str(error))
    given, wanted = (int(unmapped[1]), int(unmapped[2])) if unmapped is not None else (0, 0)
    width = given // tokens
    is_whole = width > 1 and given == tokens * width and wanted % width == 0
    return wanted // width if is_whole and 1 < wanted // width <= MOST_TOKENS else 0


def is_of_one_sample(error: Failed, samples: int) -> bool:
    """Whether a call failed as the place of a single sample was to take all of them, as a row of a cache.

    Args:
        error: what the call raised.
        samples: how many it had.
    """
    unlike = _NOT_EXPANDED.search(str(error))
    return samples > 1 and unlike is not None and int(unlike[1]) == samples


def error_line(error: BaseException) -> str:
    """The text of an exception in one line."""
    line = " ".join(error_text(error).split())
    return line if len(line) <= MAX_CHARACTERS else f"{line[:MAX_CHARACTERS]}..."
