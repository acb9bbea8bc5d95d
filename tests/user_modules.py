"""Modules that stand for a user's: imported in a test, and forgotten after it."""

import sys


def forget_modules(folder):
    """Forget every module whose file, or whose folder, is in a folder."""
    found = [name for name, module in list(sys.modules.items()) if _is_in(module, str(folder))]
    for name in found:  # all at once: the folder of a part is asked of the whole
        del sys.modules[name]


def _is_in(module, folder):
    facts = vars(module)  # a module of PyTorch's makes up whatever it is asked for
    return any(str(place).startswith(folder) for place in (facts.get("__file__"), *facts.get("__path__", ())))
