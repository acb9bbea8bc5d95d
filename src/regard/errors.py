"""What regard raises when something that was handed over cannot be used."""


class InputError(ValueError):
    """A text, a word, a model name or a file cannot be used; the message says which, why, and the way out.

    The command line prints the message and exits with code 2. Wrong tensors are plain ``ValueError``,
    ``TypeError`` or ``NotImplementedError``, as in PyTorch.
    """
