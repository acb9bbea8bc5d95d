"""What regard raises when something that was handed over cannot be used."""

__all__ = ["InputError", "quoted"]


class InputError(ValueError):
    """A text, a word, a model name or a file cannot be used; the message says which, why, and the way out.

    The command line prints the message and exits with code 2. Wrong tensors are plain ``ValueError``,
    ``TypeError`` or ``NotImplementedError``, as in PyTorch.
    """


def quoted(text: str, longest: int = 60) -> str:
    """A text in quotes for a message of one line: its beginning, where it is long."""
    return repr(text) if len(text) <= longest else f"{text[:longest]!r}... ({len(text)} characters)"
