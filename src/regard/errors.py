"""`InputError`, and functions that errors and their messages need."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType


class InputError(ValueError):
    """A text, a word, a model name or a file cannot be used; the message says which, why, and what to do.

    The command line prints the message and exits with code 2. Wrong tensors are plain ``ValueError``,
    ``TypeError`` or ``NotImplementedError``, as in PyTorch.

    Args:
        message: one line.
        argument: the name of the function's argument that is to blame, where there is one: the command line names the
            option.
    """

    def __init__(self, message: str, argument: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument


@contextmanager
def errors_of_argument(name: str) -> Iterator[None]:
    """Say of the `InputError` that leaves the block which argument of the function is to blame."""
    try:
        yield
    except InputError as error:
        error.argument = error.argument or name
        raise


def short_repr(text: str, max_length: int = 60) -> str:
    """A text in quotes for a message of one line; of a long text its beginning."""
    return repr(text) if len(text) <= max_length else f"{text[:max_length]!r}... ({len(text)} characters)"


def require_utf8(text: str) -> None:
    """Refuse a text that has no form in UTF-8: Python keeps bytes that are none as halves of characters.

    Raises:
        InputError: the text has such bytes.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"{short_repr(text)} is not valid text: it holds bytes that are not UTF-8") from None


def install_hint(extra: str) -> str:
    """How to install what an extra of regard needs: in a clone, because regard is on no package index yet."""
    return f"pip install '.[{extra}]' in a clone of regard"


def import_optional(module: str, extra: str) -> ModuleType:
    """Import a module of an optional library.

    Args:
        module: its name, such as ``babel.dates``.
        extra: the extra of regard that installs the library.

    Raises:
        InputError: the library is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise InputError(f"this needs {library}, which is not installed: {install_hint(extra)}") from error
