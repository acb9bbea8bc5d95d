"""The numbers that a call is told of its own sizes."""

from __future__ import annotations

import re
from typing import Any

from regard.check.target.argument import Argument, is_rooted
from regard.check.target.draft import Draft
from regard.check.target.usage import is_demanded

__all__ = ["has_to_be_given", "is_width_of_heads", "size_value"]

_SPLIT = re.compile(r"heads?\b|\b(?:view|reshape|rearrange|unflatten|chunk|split)\(", re.I)
"""In the code of what splits the channels into heads."""


def has_to_be_given(argument: Argument, source: str) -> bool:
    """Whether a call needs an argument that has a default.

    It does not go on without it; or the default is the width of its author's heads, whose root divides the scores.
    """
    if argument.required:
        return False
    if argument.default is None:
        return is_demanded(source, argument.name)
    return is_width_of_heads(argument.role, argument.default, source, argument.name)


def is_width_of_heads(means: str | None, default: object, source: str, name: str) -> bool:
    """Whether an argument with a default is the width of a head, by whose root the code divides the scores."""
    return means == "size d_head" and type(default) is int and is_rooted(source, name)


def size_value(draft: Draft, means: str, source: str, name: str) -> Any:
    """The size; None where the call has none of that meaning.

    Args:
        draft: the call.
        means: what the name of the argument means, as "heads".
        source: the text of what is called.
        name: of the argument.
    """
    if means in ("d_model", "d_head") and is_rooted(source, name):  # of what queries and keys have, scores are divided
        if "h" in draft.layout.letters:
            means = "d_head"
        elif _SPLIT.search(re.sub(r"#.*", "", source)) is None:
            means = "d_model"
    known = {
        "batch": draft.sizes.batch,
        "heads": draft.sizes.heads,
        "kv_heads": draft.sizes.kv_heads,
        "groups": draft.sizes.heads // draft.sizes.kv_heads,
        "d_model": draft.width,
        "d_out": draft.width,
        "d_head": draft.d_head,
        "length": draft.tokens,
        "dropout": 0.0,
        "eps": 1e-5,
        "flag": False,
        "vocab": draft.sizes.vocab,
        "layers": 1,
        "row_dim": -2,
        "col_dim": -1,
    }
    return known.get(means)
