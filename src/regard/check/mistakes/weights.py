"""Mistakes of the softmax."""

from __future__ import annotations

from regard.check.mistakes.mistake import Mistake, slot
from regard.check.mistakes.worked_example import RecipeExample

__all__ = ["WEIGHTS"]


WEIGHTS = (
    Mistake(
        "softmax-queries",
        "weights",
        "scores.softmax(dim=-2)",
        "the softmax runs over the queries: columns sum to 1, and rows do not (first row: {row:.2f})",
        "Queries compete for each key, not keys for each query; weights of earlier tokens depend on later tokens.",
        "weights = scores.softmax(dim=-1)",
        recipe=slot("softmax", "queries"),
        references=(
            "labmlai/annotated_deep_learning_paper_implementations#146",
            "nerdai/llms-from-scratch-rs#30",
            "PetrochukM/PyTorch-NLP#2",
        ),
    ),
    Mistake(
        "softmax-heads",
        "weights",
        "scores.softmax(dim=1)",
        "the softmax runs over the {heads} heads: for each pair of tokens they sum to 1, and rows do not (first "
        "row: {row:.2f})",
        "Heads compete for each pair of tokens; keys do not compete.",
        "weights = scores.softmax(dim=-1)",
        recipe=slot("softmax", "heads"),
    ),
    Mistake(
        "softmax-batch",
        "weights",
        "scores.softmax(dim=0)",
        "the softmax runs over the {batch} samples of the batch; rows do not sum to 1 (first row: {row:.2f})",
        "A sample's result depends on the other samples in its batch; in a batch of one, all weights are 1.",
        "weights = scores.softmax(dim=-1)",
        recipe=slot("softmax", "batch"),
        references=("nerminnuraydogan/vision-transformer#1",),
        worked_example=RecipeExample("batch"),
    ),
    Mistake(
        "softmax-all",
        "weights",
        "scores.flatten(-2).softmax(-1).view_as(scores)",
        "the softmax runs over the whole matrix: all of it sums to 1, and a row to {row:.2f}",
        "Queries compete with each other; outputs shrink with the length.",
        "weights = scores.softmax(dim=-1)",
        recipe=slot("softmax", "all", "everything"),
    ),
    Mistake(
        "softmax-missing",
        "weights",
        "out = (scores / math.sqrt(d_k)) @ v",
        "there is no softmax: weights are the scores",
        "Weights may be negative, and outputs grow with the length.",
        "out = (scores / math.sqrt(d_k)).softmax(dim=-1) @ v",
        recipe=slot("softmax", "missing"),
    ),
    Mistake(
        "softmax-twice",
        "weights",
        "F.softmax(F.softmax(scores, -1), -1)",
        "the softmax is applied twice",
        "Weights are nearly uniform, and blocked keys get weight: exp(0) each.",
        "weights = scores.softmax(dim=-1)",
        recipe=slot("softmax", "twice"),
    ),
    Mistake(
        "softmax-log",
        "weights",
        "F.log_softmax(scores, -1)",
        "weights are logarithms: log_softmax instead of softmax",
        "Weights are negative, and the best match counts least.",
        "weights = scores.softmax(dim=-1)",
        recipe=slot("softmax", "log"),
    ),
    Mistake(
        "softmax-unnormalised",
        "weights",
        "weights = scores.exp()",
        "weights are exp(scores) and are not divided by their sum (first row: {row:.2f})",
        "Outputs grow with the length and with the scores.",
        "weights = scores.softmax(dim=-1)",
        recipe=slot("softmax", "exp", "exp-max"),
    ),
    Mistake(
        "softmax-l1",
        "weights",
        "weights = scores / scores.sum(-1, keepdim=True)",
        "weights are scores divided by their sum, without exp",
        "Weights may be negative, and explode if the sum is near 0.",
        "weights = scores.softmax(dim=-1)",
        recipe=slot("softmax", "l1"),
    ),
    Mistake(
        "scale-after-softmax",
        "weights",
        "weights = scores.softmax(-1) / math.sqrt(d_k)",
        "the weights are divided by {right:.2f} after the softmax; the definition divides the scores before it",
        "Rows sum to {row:.2f}, and the softmax is as close to one-hot as without scaling.",
        "weights = (scores / math.sqrt(d_k)).softmax(-1)",
        recipe=({"scale": "none", "after": "scale"}, {"after": "scale"}),
    ),
)
