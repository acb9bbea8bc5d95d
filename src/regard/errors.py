"""What regard raises when something that was handed over cannot be used."""

from importlib import import_module
from types import ModuleType

__all__ = ["InputError", "needed", "quoted"]


class InputError(ValueError):
    """A text, a word, a model name or a file cannot be used; the message says which, why, and the way out.

    The command line prints the message and exits with code 2. Wrong tensors are plain ``ValueError``,
    ``TypeError`` or ``NotImplementedError``, as in PyTorch.
    """


def quoted(text: str, longest: int = 60) -> str:
    """A text in quotes for a message of one line: its beginning, where it is long."""
    return repr(text) if len(text) <= longest else f"{text[:longest]!r}... ({len(text)} characters)"


def needed(module: str, extra: str) -> ModuleType:
    """Import a module of a library that regard does without until somebody asks for what it does.

    Args:
        module: its name, such as ``babel.dates``.
        extra: of regard, that brings the library.

    Raises:
        InputError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise InputError(f"this needs {library}, which is not installed: pip install 'regard[{extra}]'") from error
