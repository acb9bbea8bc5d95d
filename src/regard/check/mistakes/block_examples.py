"""Examples of mistakes around an attention, on the course's numbers."""

from __future__ import annotations

from torch import Tensor, nn

from regard.check.mistakes.course_numbers import X, attention, course_weights, in_brackets
from regard.check.mistakes.worked_example import MatrixPair, WorkedExample
from regard.check.recipes.case import causal

__all__ = ["ffn_skipped", "mask_not_passed", "residual_missing", "residual_of_norm"]


def _norm(x: Tensor) -> Tensor:
    normed: Tensor = nn.functional.layer_norm(x, x.shape[-1:])
    return normed


def mask_not_passed() -> WorkedExample:
    """An attention that never gets its mask."""
    pair = MatrixPair("output", attention(X), attention(X, causal(3, 3)[0, 0]), "query")
    setting = "one head of width 2 inside a module that gets a causal mask"
    return WorkedExample(setting, "masked", (pair,), {"what": "the module around it"})


def residual_missing() -> WorkedExample:
    """A block's half without its residual."""
    made = attention(_norm(X))
    pair = MatrixPair("output of the attention's half of the block", made, X + made)
    return WorkedExample("a pre-norm block with one head of width 2", "block", (pair,), {"what": "attention"})


def residual_of_norm() -> WorkedExample:
    """A block's half with the residual of the norm."""
    normed = _norm(X)
    made = attention(normed)
    pair = MatrixPair("output of the attention's half of the block", normed + made, X + made)
    return WorkedExample("a pre-norm block with one head of width 2", "block", (pair,), {"what": "attention"})


def ffn_skipped() -> WorkedExample:
    """A block without its feed-forward network."""
    out = course_weights()[3]
    half = X + attention(_norm(X))
    pair = MatrixPair("output of the block", half, half + (_norm(half) @ out.t()).relu() @ out)
    setting = (
        f"a pre-norm block with one head of width 2 and a feed-forward network relu(x W^T) W, W = {in_brackets(out)}"
    )
    return WorkedExample(setting, "block", (pair,))
