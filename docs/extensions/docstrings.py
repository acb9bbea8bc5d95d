"""Docstrings are plain text first: the bars of an absolute value are no markup."""

import re
from typing import Any

from sphinx.application import Sphinx

OPENING_BAR = re.compile(r"(?<![\w`])\|(?=[^\s|])")
"""Where reStructuredText would begin a substitution; the ``|`` of two masks has a space behind it."""


def escape_bars(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [OPENING_BAR.sub(r"\\|", line) for line in lines]


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", escape_bars)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
