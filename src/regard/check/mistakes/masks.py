"""Mistakes of masks: who may attend, and what becomes of the scores of those who may not."""

from __future__ import annotations

from regard.check.mistakes.mistake import Mistake, slot
from regard.check.mistakes.worked_example import RecipeExample

__all__ = ["MASK_FILLING", "MASK_READING"]

ANOTHER_ORDER = "the mask has its heads and samples in another order, so that a mask is applied to another sample"

MASK_READING = (
    Mistake(
        "mask-dropped",
        "masked",
        "def forward(self, x, mask=None): ...  # mask is never read",
        "the {mask} has no effect",
        "{leak}",
        "scores = scores.masked_fill(~mask, -torch.inf)  # mask: True = may attend",
        recipe=slot("seen", "none"),
        references=("keras-team/keras#23038", "keras-team/keras#21284", "facebookresearch/fairseq#1682"),
    ),
    Mistake(
        "mask-inverted",
        "masked",
        "scores.masked_fill(causal, -inf)  # causal: True = may attend",
        "the {mask} is inverted: a query attends to {seen}",
        "{leak}",
        "scores = scores.masked_fill(~causal, -torch.inf)  # causal: True = may attend",
        recipe=slot("seen", "inverted", "transposed"),
        mask_sources=("flag", "built-in"),
        references=("pytorch/pytorch#29546", "rasbt/LLMs-from-scratch#1061", "tensorflow/text#894"),
    ),
    Mistake(
        "mask-strict",
        "masked",
        "torch.tril(ones, diagonal=-1)",
        "a query does not attend to its own position; in the paper it attends to all positions up to and "
        "including its own (section 3.2.3)",
        "The first query has nothing to attend to, and every token is predicted without the token before it.",
        "torch.tril(ones)",
        recipe=slot("seen", "strict"),
        mask_sources=("flag", "built-in"),
    ),
    Mistake(
        "mask-one-ahead",
        "masked",
        "torch.tril(ones, diagonal=1)",
        "a query attends to one position ahead: the token that it is trained to predict",
        "{leak}",
        "torch.tril(ones)",
        recipe=slot("seen", "ahead"),
        mask_sources=("flag", "built-in"),
    ),
    Mistake(
        "mask-rows",
        "masked",
        "scores.masked_fill(~keep[:, None, :, None], -inf)",
        "the padding mask blocks queries (rows of the scores); it belongs to the keys (columns)",
        "{leak}",
        "scores.masked_fill(~keep[:, None, None, :], -torch.inf)",
        recipe=slot("seen", "transposed"),
        mask_sources=("padding",),
        references=("Kyubyong/transformer#103", "phlippe/uvadlc_notebooks#110"),
    ),
    Mistake(
        "mask-transposed",
        "masked",
        "mask = mask.transpose(-2, -1)",
        "the mask is transposed: its entry for query i and key j is applied to query j and key i",
        "{leak}",
        "scores = scores.masked_fill(~mask, -torch.inf)  # rows of the mask are queries",
        recipe=slot("seen", "transposed"),
        mask_sources=("mask",),
    ),
    Mistake(
        "mask-first-only",
        "masked",
        "mask = mask[0]",
        "{what}",
        "{leak}",
        "mask = mask[:, None]  # every sample's own, for all of its heads",
        recipe=slot("seen", "first-sample", "tiled", "interleaved"),
        what={
            "first-sample": "the first sample's mask is used for every sample",
            "tiled": ANOTHER_ORDER,
            "interleaved": ANOTHER_ORDER,
        },
        mask_sources=("mask", "padding"),
        worked_example=RecipeExample("padding, batch"),
    ),
    Mistake(
        "mask-one-head",
        "masked",
        "scores[:, 0] = scores[:, 0].masked_fill(~mask, -inf)",
        "the {mask} is applied to one head of {heads}",
        "{leak}",
        "scores = scores.masked_fill(~mask, -torch.inf)  # mask: (batch, 1, queries, keys)",
        recipe=slot("seen", "first-head", "last-head"),
        worked_example=RecipeExample("heads, causal"),
    ),
    Mistake(
        "padding-as-zeros",
        "masked",
        "k, v = k * keep, v * keep",
        "padded keys and values are set to zero, but a score of 0 still gets the weight exp(0)",
        "{leak}",
        "scores = scores.masked_fill(~keep[:, None, None, :], -torch.inf)",
        recipe=slot("scores", "zeroed"),
        mask_sources=("padding", "mask"),
    ),
)

MASK_FILLING = (
    Mistake(
        "mask-zero-fill",
        "masked",
        "scores = scores * mask",
        "blocked scores become 0 before the softmax, and exp(0) = 1 still gets weight",
        "{leak}",
        "scores = scores.masked_fill(~mask, -torch.inf)  # mask: True = may attend",
        recipe=slot("fill", 0.0),
    ),
    Mistake(
        "mask-weak-fill",
        "masked",
        "scores.masked_fill(~mask, -10.0)",
        "blocked scores become {number:g}, which is not low enough; in the definition they become -inf",
        "{leak}",
        "scores = scores.masked_fill(~mask, -torch.inf)  # mask: True = may attend",
        recipe=slot("fill", -1.0, -10.0, -100.0, 1e-9, -1e-9, -1e-12, -5.0, -50.0, -20.0, -2.0, 1.0),
        references=("hyunwoongko/transformer#10",),
        worked_example=RecipeExample(recipe={"fill": -10.0}),
    ),
    Mistake(
        "mask-added-01",
        "masked",
        "scores = scores + mask.float()",
        "a mask of 0 and 1 is added to the scores, which blocks nothing",
        "{leak}",
        "scores = scores.masked_fill(~mask, -torch.inf)  # mask: True = may attend",
        recipe=slot("fill", "added-may", "added-blocked"),
        references=("pytorch/pytorch#21518",),
    ),
    Mistake(
        "mask-positive-fill",
        "masked",
        "scores.masked_fill(~mask, 1e9)",
        "blocked scores become {number:g}: blocked keys get all of the weight",
        "{leak}",
        "scores = scores.masked_fill(~mask, -torch.inf)  # mask: True = may attend",
        recipe=slot("fill", 1e9, 1e4, float("inf")),
    ),
    Mistake(
        "mask-after-softmax",
        "weights",
        "weights = scores.softmax(-1) * mask",
        "the mask is applied to the weights after the softmax, and they are not normalized again",
        "The weight of blocked keys is lost: rows sum to less than 1, and outputs shrink.",
        "weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)",
        recipe=({"fill": "after", "after": "mask"},),
    ),
)
