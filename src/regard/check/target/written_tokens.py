"""How many tokens a call writes behind those that it is given."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

__all__ = ["writes_as_many"]

_CHOOSES = re.compile(r"\b(?:argmax|multinomial|topk|Categorical)\b|\.max\(\s*(?:dim\s*=\s*)?-1\b")


@cache
def _is_loop_of_choices(source: str, name: str) -> bool:
    """Whether a loop of as many steps is told, and tokens are chosen by their logits."""
    return re.search(rf"\brange\(\s*{re.escape(name)}\s*\)", source) is not None and bool(_CHOOSES.search(source))


def writes_as_many(source: str, name: str, default: Any) -> bool:
    """Whether a call chooses several tokens one after the other, as many as an argument says that may be left out.

    What it chooses it reads again, by steps that know the earlier ones from a cache: one step shows its attention.

    Args:
        source: the text of what is called.
        name: of the argument.
        default: what it is where it is left out.
    """
    return type(default) is int and default > 1 and _is_loop_of_choices(source, name)
