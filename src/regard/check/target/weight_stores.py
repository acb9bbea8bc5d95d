"""How matrices that are handed over are stored: the axes of those of queries, keys, values and the output."""

from __future__ import annotations

from collections.abc import Sequence

from regard.check.target.argument import MATRICES, Argument
from regard.check.target.documented_shapes import documented_shape

__all__ = ["WEIGHT_STORES", "weight_stores"]

WEIGHT_STORES = ("rectangular", "rectangular, out-in", "in-out", "out-in", "per head", "per head, joined")
"""As wide as the heads together, or as tokens; or a matrix for each head, where that of the output may take all."""


def weight_stores(arguments: Sequence[Argument], source: str, *, is_square: bool) -> list[str]:
    """The stores that a call is tried with, those first that its documentation writes.

    Args:
        arguments: of the call.
        source: the text of what is called, with its documentation.
        is_square: whether the heads together are as wide as the tokens.
    """
    axes = {each.role: len(documented_shape(source, each.name)) for each in arguments if each.role in MATRICES}
    is_per_head = any(axes.get(role) == 3 for role in ("w_q", "w_k", "w_v"))
    written = ("per head, joined" if axes.get("w_o") == 2 else "per head",) if is_per_head else ()
    others = [each for each in WEIGHT_STORES if not (is_square and each.startswith("rectangular"))]
    return [*dict.fromkeys((*written, *others))]
