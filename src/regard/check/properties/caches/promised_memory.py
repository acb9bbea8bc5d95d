"""What the documentation says of tokens that a module keeps from one call to the next."""

from __future__ import annotations

import re
from typing import Any

from regard.check.properties.documentation import comments_of, documentation_of

__all__ = ["is_made_for_generation", "promises_memory"]

_EARLIER = r"\b(?:earlier|previous|past|preceding|former)\s+(?:tokens|steps|positions|calls|keys|words)\b"
_KEPT = r"\b(?:kept|stored|remember(?:s|ed)|cached|saved|keeps|caches|stores)\b"
_MEMORY = re.compile(rf"{_EARLIER}[^.;]*{_KEPT}|{_KEPT}[^.;]*{_EARLIER}", re.I)
_CACHING = re.compile(
    r"\b(?:kv|key[\s-]value)[\s-]?cach(?:e[sd]?|ing)\b|\b(?:with|by|through) (?:a|its|the) cache\b", re.I
)
_NOT = re.compile(r"\b(?:not|no|never|without)\b", re.I)


def promises_memory(target: Any) -> bool:
    """Whether it says that keys and values of earlier tokens are kept: a call goes on from the ones before it.

    Args:
        target: what was called.
    """
    sentences = re.split(r"[.;]\s|\n\s*\n", documentation_of(target))
    return any(_MEMORY.search(each) and not _NOT.search(each) for each in sentences)


def is_made_for_generation(target: Any) -> bool:
    """Whether it says that it attends with a cache: one that is written in place is of no use where it is trained.

    Args:
        target: what was called.
    """
    return any(_CACHING.search(each) for each in (documentation_of(target), *comments_of(target)))
