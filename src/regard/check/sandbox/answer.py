"""What the process of somebody's code answers: a token and JSON. The process that reads it runs nothing of it."""

from __future__ import annotations

import errno
import secrets
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from regard.check.sandbox.schema import from_json, to_json
from regard.errors import InputError

__all__ = [
    "MAX_ANSWER_BYTES",
    "Answer",
    "Frame",
    "answer_of",
    "error_text",
    "first_line",
    "new_token",
    "read",
    "wants_memory",
    "write",
]

MAX_ANSWER_BYTES = 2**20
"""A hundred times what a report takes."""
MAX_CHARACTERS = 4000
"""Of the text of an error."""
MAX_FRAMES = 200
MEMORY_ERRORS = ("can't allocate memory", "DefaultCPUAllocator", "bad_alloc")
"""How PyTorch and C++ say what Python says by a MemoryError."""


@dataclass(frozen=True)
class Frame:
    """A line of a file that was being run."""

    file: str
    line: int


@dataclass(frozen=True)
class Answer:
    """How some work ended."""

    kind: Literal["returned", "refused", "memory", "stopped"]
    """It returned; it raised `InputError`; it asked for too much memory; anything else."""
    text: str = ""
    """Of "refused" the message, of "stopped" the reason."""
    result: Any = None
    """Of "returned": dicts, lists, texts, numbers, True, False and None."""
    frames: tuple[Frame, ...] = ()
    """Where it was, the deepest call first."""


# How work ended. ------------------------------------------------------------------------------------------------------


def answer_of(work: Callable[[], object], lift: Callable[[], None] = lambda: None) -> Answer:
    """Do some work, and say how it ended.

    Args:
        work: what to do.
        lift: lifts the limit of memory, once the work has ended: to tell of too little memory takes some.
    """
    try:
        result = work()
    except BaseException as error:
        lift()
        return failure(error)
    lift()
    return Answer("returned", result=result)


def failure(error: BaseException) -> Answer:
    """What an exception says, whatever kind it is of."""
    if isinstance(error, InputError):
        return Answer("refused", str(error))
    steps = [Frame(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    frames = tuple(steps[: -MAX_FRAMES - 1 : -1])
    if wants_memory(error):
        return Answer("memory", frames=frames)
    return Answer("stopped", f"raised {error_text(error)}", frames=frames)


def wants_memory(error: BaseException) -> bool:
    """Whether an error says that there is too little memory."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(sign in error_text(error) for sign in MEMORY_ERRORS)
    )


def error_text(error: BaseException) -> str:
    """The name of an error and its message, whose text may be somebody else's code."""
    try:
        message = str(error)
    except Exception:
        message = ""
    return f"{type(error).__name__}: {message}"[:MAX_CHARACTERS].removesuffix(": ")


def first_line(text: str) -> str:
    """A text of one line: up to the end of the first line that does not only name the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


# How it is sent. ------------------------------------------------------------------------------------------------------


def new_token() -> bytes:
    """A text that nobody can guess: what is written into the pipe by accident does not begin with it."""
    return secrets.token_hex(16).encode()


def write(answer: Answer, token: bytes) -> bytes:
    """An answer as bytes; where its result cannot be sent, the answer that says so."""
    try:
        written = token + to_json(answer).encode()
        if len(written) > MAX_ANSWER_BYTES:
            raise ValueError(f"it takes {len(written)} bytes, of {MAX_ANSWER_BYTES} at most")
    except (TypeError, ValueError, RecursionError) as error:
        reason = f"returned a result that cannot be sent as JSON: {error_text(error)}"
        written = token + to_json(Answer("stopped", reason)).encode()
    return written


def read(written: bytes | bytearray, token: bytes) -> Answer:
    """The answer that `write` wrote.

    Raises:
        ValueError: there is none, more than one, or too much; something else was written; or a field is not of its
            type.
    """
    if len(written) > MAX_ANSWER_BYTES:
        raise ValueError(f"it takes more than {MAX_ANSWER_BYTES} bytes")
    if not written.startswith(token):
        raise ValueError("it does not begin as an answer does")
    return from_json(Answer, bytes(written[len(token) :]))
