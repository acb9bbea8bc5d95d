"""Values that code hands to what rotates, in one breath with queries and keys: it means to rotate them as well."""

from __future__ import annotations

import re

__all__ = ["are_values_handed_over"]

_ROTATING = r"\w*(?:rotary|rotat|rope|pos_emb)\w*"
_ALL_THREE = r"[(\[]\s*q\w*\s*,\s*k\w*\s*,\s*v\w*\s*,?\s*[)\]]"
_TOGETHER = re.compile(
    rf"\b{_ROTATING}\((?:[^()]|\([^()]*\))*?{_ALL_THREE}"
    rf"|\bmap\(\s*(?:lambda\s+\w+\s*:\s*{_ROTATING}\((?:[^()]|\([^()]*\))*\)|{_ROTATING})\s*,\s*{_ALL_THREE}"
)


def are_values_handed_over(code: str) -> bool:
    """Whether one call rotates the three, as rotate(angles, (q, k, v)) and map(rotate, (q, k, v)) do."""
    return _TOGETHER.search(code) is not None
