"""Matrices and vectors of a feed-forward network that are handed over, beside those of an attention."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

__all__ = ["OF_FEED_FORWARD", "feed_forward_roles", "feed_forward_tensor"]

OF_FEED_FORWARD = ("w_1", "w_2", "w_1 bias", "w_2 bias")
"""The roles of its two matrices, and of what is added behind each."""
WIDER = 4
"""How much wider it is than the tokens."""
_NAME = re.compile(
    r"(?P<kind>[wb])_?(?:ffn?|mlp|fc)?_?(?P<number>[12])|(?:ffn?|mlp|fc)_?(?P<other_kind>[wb])_?(?P<other_number>[12])"
)


def feed_forward_roles(named: Mapping[str, str | None]) -> dict[str, str]:
    """The roles of a feed-forward network's arguments, by name, where its two matrices are there, and the queries'.

    Alone W_1 and W_2 may as well be those of additive attention.

    Args:
        named: the arguments of a call, with what else they may be.
    """
    found = {name: role for name in named if (role := _role(name)) is not None}
    is_whole = {"w_1", "w_2"} <= {*found.values()} and bool({"w_q", "w_qkv"} & {*named.values()})
    return found if is_whole else {}


def _role(name: str) -> str | None:
    told = _NAME.fullmatch(name.lower())
    if told is None:
        return None
    kind, number = told["kind"] or told["other_kind"], told["number"] or told["other_number"]
    return f"w_{number}" if kind == "w" else f"w_{number} bias"


def feed_forward_tensor(draft: Any, role: str) -> Tensor:
    """One of them, of the width of the tokens that are drafted.

    Args:
        draft: of the call.
        role: one of `OF_FEED_FORWARD`.
    """
    shapes: dict[str, Sequence[int]] = {"w_1": (draft.width, WIDER * draft.width)}
    shapes |= {"w_2": shapes["w_1"][::-1], "w_1 bias": shapes["w_1"][1:], "w_2 bias": shapes["w_1"][:1]}
    shape = shapes[role][::-1] if draft.weights.endswith("out-in") and "bias" not in role else shapes[role]
    made: Tensor = draft.draw(*shape) * draft.width**-0.5
    return made
