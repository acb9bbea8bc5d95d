"""Mistakes of scores, of their scale and of their bias."""

from __future__ import annotations

from regard.check.mistakes.mistake import Mistake, slot
from regard.check.mistakes.worked_example import RecipeExample

__all__ = ["SCORES"]


SCORES = (
    Mistake(
        "scores-transposed",
        "scores",
        "scores = k @ q.transpose(-2, -1)",
        "scores are k qT instead of q kT: row i holds the scores of key i with every query",
        "Each token weighs the others by how much they look for it, not by what it looks for.",
        "scores = q @ k.transpose(-2, -1)",
        recipe=({"scores": "kq"}, {"roles": "kqv"}, {"linear": "kqv"}),
    ),
    Mistake(
        "key-reshaped",
        "scores",
        "scores = q @ k.view(B, H, D, T)",
        "keys are reshaped to (width, tokens); the definition transposes them",
        "A score mixes channels of different tokens: it means nothing, and the model still trains.",
        "scores = q @ k.transpose(-2, -1)",
        recipe=slot("scores", "reshaped"),
    ),
    Mistake(
        "scores-negated",
        "scores",
        "scores = -(q @ k.transpose(-2, -1))",
        "scores have the opposite sign",
        "The best match gets the smallest weight.",
        "scores = q @ k.transpose(-2, -1)",
        recipe=slot("scores", "negated"),
    ),
    Mistake(
        "no-scale",
        "scaled",
        "weights = (q @ k.transpose(-2, -1)).softmax(-1)",
        "you do not scale; the definition divides by {right:.2f} = sqrt({d}), the head's width",
        "The wider the heads, the closer the weights are to one-hot, and the smaller their gradients (paper, "
        "section 3.2.1).",
        "weights = (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(-1)",
        recipe=slot("scale", "none"),
    ),
    Mistake(
        "scale-d",
        "scaled",
        "scores / d_k",
        "you divide by {number:.2f} = {d}, the head's width; the definition divides by its root, {right:.2f}",
        "Weights are nearly uniform for every query.",
        "scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))",
        recipe=slot("scale", "d"),
    ),
    Mistake(
        "scale-d-model",
        "scaled",
        "scores / math.sqrt(d_model)",
        "you divide by {number:.2f} = sqrt({model}), the width of all heads; the definition divides by "
        "{right:.2f} = sqrt({d}), "
        "the head's",
        "Every score is too small by the root of the number of heads, and weights are too uniform.",
        "scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))",
        recipe=slot("scale", "d-model"),
        references=("karpathy/ng-video-lecture#6", "lucidrains/vit-pytorch#65"),
    ),
    Mistake(
        "scale-d-value",
        "scaled",
        "scores / math.sqrt(v.shape[-1])",
        "you divide by {number:.2f} = sqrt({d_value}), the width of the values; the definition divides by "
        "{right:.2f} = sqrt({d}), "
        "that of the keys",
        "Right as long as both widths are equal; wrong without an error if they differ.",
        "scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))",
        recipe=slot("scale", "d-value"),
    ),
    Mistake(
        "scale-tokens",
        "scaled",
        "scores / math.sqrt(k.size(-2))",
        "you divide by {number:.2f} = sqrt({count} tokens); the definition divides by {right:.2f} = sqrt({d}), "
        "the head's width",
        "The scores of two tokens depend on the number of other tokens.",
        "scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))",
        recipe=slot("scale", "keys", "queries"),
    ),
    Mistake(
        "scale-heads",
        "scaled",
        "scores / math.sqrt(num_heads)",
        "you divide by {number:.2f} = sqrt({heads} heads); the definition divides by {right:.2f} = sqrt({d}), "
        "the head's width",
        "The wider the heads, the closer the weights are to one-hot.",
        "scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))",
        recipe=slot("scale", "heads"),
        references=("tenstorrent/tt-metal#56789",),
        worked_example=RecipeExample("heads"),
    ),
    Mistake(
        "scale-batch",
        "scaled",
        "scores / math.sqrt(k.size(0))",
        "you divide by {number:.2f} = sqrt({batch} samples); the definition divides by {right:.2f} = sqrt({d}), "
        "the head's width",
        "A sample's result depends on the size of its batch.",
        "scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))",
        recipe=slot("scale", "batch"),
        worked_example=RecipeExample("heads, batch"),
    ),
    Mistake(
        "scale-multiplied",
        "scaled",
        "scores * math.sqrt(d_k)",
        "you multiply by {inverse:.2f} = sqrt({d}); the definition divides by it",
        "Weights are nearly one-hot, and their gradients vanish.",
        "scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))",
        recipe=slot("scale", "multiplied"),
        references=("esceptico/perceiver-io#9",),
    ),
    Mistake(
        "scale-fourth-root",
        "scaled",
        "q = q * d_k**-0.25  # and not k",
        "you divide by {number:.2f} = {d} ** 0.25; the definition divides by {right:.2f} = {d} ** 0.5, on q and "
        "k together",
        "The wider the heads, the closer the weights are to one-hot.",
        "q, k = q * d_k**-0.25, k * d_k**-0.25",
        recipe=slot("scale", "fourth-root"),
    ),
    Mistake(
        "scale-half",
        "scaled",
        "scores / math.sqrt(d_k // 2)",
        "you divide by {number:.2f} = sqrt({d} / 2); the definition divides by {right:.2f} = sqrt({d}), the "
        "head's width",
        "Every score is 1.41 times too large.",
        "scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))",
        recipe=slot("scale", "half"),
    ),
    Mistake(
        "scale-constant",
        "scaled",
        "scores / 8  # for every width",
        "you divide by {number:.2f}{known} for all sizes; the definition divides by {right:.2f} = sqrt({d}), "
        "the head's width",
        "Right for one width of heads; wrong without an error for every other width.",
        "scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))",
        worked_example=RecipeExample(recipe={"scale": 1 / 8}),
    ),
    Mistake(
        "scale-floor",
        "scaled",
        "scores // math.sqrt(d_k)",
        "// rounds the scaled scores down to whole numbers",
        "Weights have only a few values, and no gradient flows through them.",
        "scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))",
        recipe=slot("scale", "floor"),
    ),
    Mistake(
        "bias-before-scale",
        "biased",
        "scores = (q @ k.transpose(-2, -1) + bias) / math.sqrt(d_k)",
        "the bias or additive mask is added before the scaling and divided by {right:.2f} with the scores; the "
        "definition adds it after",
        "A mask of 0 and -inf is not affected; every finite bias is {right:.2f} times too small.",
        "scores = q @ k.transpose(-2, -1) / math.sqrt(d_k) + bias",
        recipe=slot("bias", "before-scale"),
    ),
    Mistake(
        "bias-ignored",
        "biased",
        "def attention(q, k, v, bias=None): ...  # bias is never read",
        "the bias has no effect",
        "What the bias encodes, such as positions, is lost.",
        "scores = q @ k.transpose(-2, -1) / math.sqrt(d_k) + bias",
        recipe=slot("bias", "ignored"),
    ),
    Mistake(
        "bias-after-softmax",
        "weights",
        "weights = scores.softmax(-1) + bias",
        "the bias is added to the weights, after the softmax",
        "Rows no longer sum to 1, and weights may be negative.",
        "weights = (scores + bias).softmax(-1)",
        recipe=({"bias": "ignored", "after": "bias"},),
    ),
)
