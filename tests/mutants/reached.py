"""Notes which test reaches which drawn mutation: an instrumented copy of src imports it, in every process of a test."""

import inspect
import os
import sys

_files: dict[int, int] = {}
_noted: set[tuple[str, int]] = set()


def note(number: int) -> None:
    """Append `test <tab> number` to this process's file in $REACHED, once for each pair; without a test in an import.

    Whichever test comes first to a module imports it: what runs then can be seen by the others as well.
    """
    runs_at_import = not sys._getframe(1).f_code.co_flags & inspect.CO_OPTIMIZED
    test = "" if runs_at_import else os.environ.get("PYTEST_CURRENT_TEST", "")
    if (test, number) not in _noted:
        _noted.add((test, number))
        process = os.getpid()
        if process not in _files:
            _files[process] = os.open(f"{os.environ['REACHED']}/{process}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(_files[process], f"{test}\t{number}\n".encode())
