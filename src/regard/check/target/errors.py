"""What is raised where a target cannot be called."""

from __future__ import annotations

from torch import nn

from regard.check.location import CodeLocation
from regard.check.sandbox.answer import error_text
from regard.check.sandbox.faults import user_line
from regard.errors import InputError

__all__ = ["AlwaysFails", "Failed", "NotCallable", "error_line", "failed"]

MAX_CHARACTERS = 300


class Failed(Exception):
    """A call, or a constructor, that raised; the text is its error."""

    def __init__(self, message: str, progress: int = 0, own: CodeLocation | None = None) -> None:
        super().__init__(message)
        self.progress = progress
        """How many functions of PyTorch were called before: the farthest call is the closest to one that runs."""
        self.own = own
        """The line of the code that fails whatever it is given; None where other inputs may help."""


class NotCallable(InputError):
    """No way to call a target was found; the message says what was tried, the last error and what to hand over."""


class AlwaysFails(NotCallable):
    """The code itself cannot run to its end, or returns nothing; the message says at which line."""


def failed(error: Exception, progress: int) -> Failed:
    """What a call raised: it is the code's own if it names what there is not, or says that it is not written."""
    of_a_module = isinstance(error, AttributeError) and isinstance(error.obj, nn.Module)
    is_own = of_a_module or isinstance(error, NameError | NotImplementedError | ImportError)
    own = user_line(error) if is_own else None
    return Failed(error_line(error) if own is None else f"raises {error_line(error)}", progress, own)


def error_line(error: BaseException) -> str:
    """The text of an exception in one line."""
    line = " ".join(error_text(error).split())
    return line if len(line) <= MAX_CHARACTERS else f"{line[:MAX_CHARACTERS]}..."
