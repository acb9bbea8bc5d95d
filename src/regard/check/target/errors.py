"""What is raised where a target cannot be called."""

from __future__ import annotations

from regard.check.sandbox.answer import error_text
from regard.errors import InputError

__all__ = ["Failed", "NotCallable", "error_line"]

MAX_CHARACTERS = 300


class Failed(Exception):
    """A call, or a constructor, that raised; the text is its error."""

    def __init__(self, message: str, progress: int = 0) -> None:
        super().__init__(message)
        self.progress = progress
        """How many functions of PyTorch were called before: the farthest call is the closest to one that runs."""


class NotCallable(InputError):
    """No way to call a target was found; the message says what was tried, the last error and what to hand over."""


def error_line(error: BaseException) -> str:
    """The text of an exception in one line."""
    line = " ".join(error_text(error).split())
    return line if len(line) <= MAX_CHARACTERS else f"{line[:MAX_CHARACTERS]}..."
