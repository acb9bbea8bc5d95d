"""Mistakes of what is done with the weights: the weighted sums, the heads together, the output projection."""

from __future__ import annotations

from regard.check.mistakes.mistake import Mistake, slot

__all__ = ["OUTPUT"]


OUTPUT = (
    Mistake(
        "weights-transposed",
        "output",
        "out = weights.transpose(-2, -1) @ v",
        "values are weighted by the columns of the weights, not by the rows",
        "A token reads from the tokens that attend to it, with weights that do not sum to 1; the future leaks"
        " through the mask.",
        "out = weights @ v",
        recipe=slot("product", "transposed"),
    ),
    Mistake(
        "output-v",
        "output",
        "return v",
        "the output is v: queries, keys and the mask have no effect",
        "No token attends to another token.",
        "return weights @ v",
        recipe=slot("product", "v"),
    ),
    Mistake(
        "output-mean",
        "output",
        "return v.mean(-2, keepdim=True).expand_as(q)",
        "the output is the mean of the allowed values; queries and keys have no effect",
        "Every allowed token has the same weight.",
        "return weights @ v",
        recipe=slot("product", "mean"),
    ),
    Mistake(
        "merge-without-transpose",
        "heads",
        "out = out.reshape(B, T, H * D)  # out is (B, H, T, D)",
        "(batch, heads, tokens, width) is reshaped to (batch, tokens, heads * width) without a transpose first",
        "A token's output consists of other tokens' outputs; the future leaks through any mask.",
        "out = out.transpose(1, 2).reshape(B, T, H * D)",
        recipe=slot("merge", "no-transpose", "heads-first"),
        references=("hackiey/QAnet-pytorch#2",),
    ),
    Mistake(
        "heads-added",
        "heads",
        "out = torch.stack(heads).mean(0)",
        "the {heads} heads are {what}; the definition concatenates them",
        "What one head read cannot be told from what another head read.",
        "out = torch.cat(heads, -1)",
        recipe=slot("merge", "sum", "mean", "sum-tiled", "mean-tiled"),
        what={"sum": "added", "sum-tiled": "added", "mean": "averaged", "mean-tiled": "averaged"},
    ),
    Mistake(
        "out-projection-skipped",
        "projected",
        "return heads  # self.out_proj exists",
        "the output projection exists and has no effect",
        "Heads are never mixed, and these parameters are never trained.",
        "return self.out_proj(heads)",
        recipe=slot("out", "none"),
    ),
    Mistake(
        "out-projection-untransposed",
        "projected",
        "return heads @ self.out_proj.weight",
        "heads are multiplied by the output weight as torch.nn.Linear stores it; the definition multiplies by "
        "its transpose",
        "It runs and trains as long as the weight is square; with trained weights its numbers are wrong.",
        "return self.out_proj(heads)",
        recipe=slot("out", "untransposed"),
    ),
    Mistake(
        "out-projection-twice",
        "projected",
        "return self.out_proj(self.out_proj(heads))",
        "the output projection is applied twice",
        "Trained weights give wrong numbers; gradients pass the same weights twice.",
        "return self.out_proj(heads)",
        recipe=slot("out", "twice"),
    ),
)
