"""Mistakes around an attention, in the block that holds it."""

from __future__ import annotations

from regard.check.mistakes import block_examples
from regard.check.mistakes.mistake import Mistake

__all__ = ["BLOCK"]


BLOCK = (
    Mistake(
        "mask-not-passed",
        "masked",
        "self.heads[i](q, k, v, mask=None)",
        "{what} takes a mask and does not hand it to the attention inside",
        "Nothing is masked, and no error says so.",
        "self.heads[i](q, k, v, mask=mask)",
        references=("keras-team/keras#21284",),
        worked_example=block_examples.mask_not_passed,
    ),
    Mistake(
        "residual-missing",
        "block",
        "x = self.attention(self.norm(x))",
        "the {what}'s output replaces its input; the definition adds them",
        "Gradients fade with every block, and a token loses its own vector.",
        "x = x + self.attention(self.norm(x))",
        worked_example=block_examples.residual_missing,
    ),
    Mistake(
        "residual-of-norm",
        "block",
        "x = self.norm(x); x = x + self.attention(x)",
        "the {what}'s output is added to the normalized input; a pre-norm block adds it to the input before the norm",
        "The residual stream is normalized in every block, which pre-norm avoids.",
        "x = x + self.attention(self.norm(x))",
        worked_example=block_examples.residual_of_norm,
    ),
    Mistake(
        "ffn-skipped",
        "block",
        "return x  # self.mlp exists",
        "the feed-forward network exists and has no effect",
        "Two thirds of the block's parameters are never trained.",
        "return x + self.mlp(self.norm(x))",
        worked_example=block_examples.ffn_skipped,
    ),
)
