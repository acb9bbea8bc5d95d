"""The numbers that a call is told of its own sizes."""

from __future__ import annotations

from typing import Any

from regard.check.target.draft import Draft

__all__ = ["size_value"]


def size_value(draft: Draft, means: str, is_root_taken: bool) -> Any:
    """The size; None where the call has none of that meaning.

    Args:
        draft: the call.
        means: what the name of the argument means, as "heads".
        is_root_taken: whether the code takes its root, as of the width by which scores are divided.
    """
    if means == "d_model" and is_root_taken and "h" in draft.layout.letters:
        means = "d_head"  # what queries and keys of several heads are divided by the root of
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
