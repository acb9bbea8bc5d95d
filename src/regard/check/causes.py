"""What attention is mistaken for, what it may differ in and still be right, and what it may differ in on purpose.

A cause that changes the output says how, as choices of a recipe; it is named only where those choices reproduce what
the implementation returned. The others were shown by how the implementation behaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from regard.check.recipe import Choices

__all__ = ["CONVENTIONS", "MISTAKES", "Convention", "Mistake"]

MaskSource = Literal["none", "mask", "padding", "flag", "built-in"]
"""Where a mask comes from: nowhere, an argument of queries x keys, one of samples x keys, a flag, the code itself."""


@dataclass(frozen=True)
class Mistake:
    """A mistake."""

    id: str
    step: str
    """Of the definition; as in `regard.check.recipe.NAMES`, or "call", "block", "positions" for what is around it."""
    example: str
    """A line of code that does it."""
    message: str
    """What is wrong, in a sentence; numbers in braces are measured or counted."""
    impact: str
    """What it does to a model."""
    choices: tuple[Choices, ...] = ()
    """Ways to do it, any of which reproduces the output."""
    references: tuple[str, ...] = ()
    """Where it was published, as owner/name#number."""
    asked: tuple[MaskSource, ...] = ()
    """Where the mask has to come from; anywhere, by default."""
    functions: bool = True
    """Whether a function of (q, k, v) can have it."""
    modules: bool = True
    """Whether a module with weights of its own can have it."""


@dataclass(frozen=True)
class Convention:
    """Right, in another way."""

    kind: Literal["convention", "design", "precision"]
    message: str
    choices: Choices
    functions: bool = True
    modules: bool = True
    packed: bool = False
    """Whether only weights that stand in one matrix can have it: those with names of their own are meant by them."""


_MASKED: tuple[MaskSource, ...] = ("flag", "built-in")
_GIVEN: tuple[MaskSource, ...] = ("mask", "padding")


def _slot(slot: str, *choices: Any) -> tuple[Choices, ...]:
    return tuple({slot: choice} for choice in choices)


_ALL = (
    # Which sequence, which weights.
    Mistake(
        "k-from-x",
        "k",
        "k, v = self.k(x), self.v(context)",
        "the {what} of cross-attention are computed from x; the definition computes them from the context",
        "The weights compare x with one sequence and are applied to the values of another.",
        ({"sources": "k-x"}, {"sources": "v-x"}),
        functions=False,
    ),
    Mistake(
        "context-ignored",
        "k",
        "k, v = self.k(x), self.v(x)",
        "the context has no effect: keys and values are computed from x",
        "The decoder gets nothing from the encoder: it is a language model.",
        ({"sources": "kv-x"},),
        functions=False,
    ),
    Mistake(
        "q-from-context",
        "q",
        "q = self.q(context)",
        "queries are computed from the context{what}; the definition computes them from x",
        "What the decoder attends to does not depend on its own tokens.",
        ({"sources": "q-context"}, {"sources": "swapped"}),
        functions=False,
    ),
    Mistake(
        "untransposed",
        "q",
        "q = x @ self.wq.weight",
        "{what} multiplied by the weight as torch.nn.Linear stores it, (out, in); the definition multiplies by "
        "its transpose",
        "It runs and trains as long as the weight is square; with trained weights its numbers are wrong.",
        _slot("linear", "QKV", "Qkv", "qKv", "qkV", "QKv", "qKV", "QkV"),
        ("pytorch/pytorch#139598", "pytorch/pytorch#129834"),
        functions=False,
    ),
    Mistake(
        "not-projected",
        "q",
        "v = x  # self.v exists",
        "{what} not projected: their weights exist and have no effect",
        "These parameters are never trained, and heads cannot choose what to read.",
        _slot("linear", "---", "-kv", "q-v", "qk-", "--v", "-k-", "q--"),
        functions=False,
    ),
    Mistake(
        "q-as-k",
        "scores",
        "scores = q @ q.transpose(-2, -1)",
        "scores are q qT: keys have no effect",
        "Every token matches itself best; the key projection is never trained.",
        _slot("roles", "qqv", "qqq"),
    ),
    Mistake(
        "k-as-q",
        "scores",
        "scores = k @ k.transpose(-2, -1)",
        "scores are k kT: queries have no effect",
        "Every token matches itself best; the query projection is never trained.",
        _slot("roles", "kkv", "kkk"),
    ),
    Mistake(
        "v-as-k",
        "scores",
        "scores = q @ v.transpose(-2, -1)",
        "scores are q vT: keys have no effect",
        "One vector serves as key and as value; the key projection is never trained.",
        _slot("roles", "qvv"),
    ),
    Mistake(
        "k-as-v",
        "output",
        "out = weights @ k",
        "the output is weights @ k: values have no effect",
        "One vector serves as key and as value; the value projection is never trained.",
        _slot("roles", "qkk"),
    ),
    Mistake(
        "q-as-v",
        "output",
        "out = weights @ q",
        "the output is weights @ q: values have no effect",
        "One vector serves as query and as value; the value projection is never trained.",
        _slot("roles", "qkq"),
    ),
    Mistake(
        "shared-projection",
        "q",
        "k = self.q(x)",
        "{what} computed with the weights of another role; their own weights have no effect",
        "Those weights are never trained; if queries equal keys, every token matches itself best.",
        _slot(
            "linear", "qqv", "kkv", "qkq", "qkk", "qqq", "kkk", "vvv", "vkv", "qvv", "qqk", "kkq", "vvq", "qvq", "vkk"
        ),
        functions=False,
    ),
    Mistake(
        "bias-dropped",
        "q",
        "q, k, v = F.linear(x, self.qkv.weight).chunk(3, -1)",
        "the biases of the projections exist and have no effect",
        "Trained weights with biases give wrong numbers; the biases are never trained.",
        _slot("linear", "qkv no-bias"),
        functions=False,
    ),
    # Heads.
    Mistake(
        "split-by-view",
        "q",
        "q = q.view(B, H, T, D)",
        "heads are split by view({batch}, {heads}, {tokens}, {d}), which mixes the channels of different "
        "tokens; the definition splits into (batch, tokens, heads, width) and transposes",
        "A row of a head holds channels of other tokens: masks block the wrong tokens, and the future leaks.",
        (
            {"split": "view"},
            {"split": "columns"},
        ),
        (
            "ajhalthor/Transformer-Neural-Network#4",
            "jsbaan/transformer-from-scratch#6",
            "649453932/Chinese-Text-Classification-Pytorch#10",
        ),
        functions=False,
    ),
    Mistake(
        "heads-attend-heads",
        "q",
        "q = q.view(B, T, H, D)  # and no transpose",
        "scores are {heads} x {heads}, between the heads of one token; the definition's are {tokens} x {tokens}, "
        "between tokens",
        "No token attends to another token: the model is a bag of tokens.",
        (
            {"split": "tokens", "merge": "tokens"},
            {"split": "tokens", "merge": "no-transpose"},
            {"split": "tokens"},
        ),
        functions=False,
    ),
    Mistake(
        "one-head-only",
        "output",
        "out = torch.cat([head_0] * H, -1)",
        "{what} is used in the place of all {heads} heads",
        "The other heads have no effect: there is one subspace instead of {heads}.",
        (
            {"groups": "first-head"},
            {"groups": "last-head"},
            {"merge": "first"},
            {"merge": "last"},
        ),
        functions=False,
    ),
    Mistake(
        "kv-first-head",
        "k",
        "k = k[:, :1].expand(-1, H, -1, -1)",
        "the first key and value head serves all {heads} query heads; the others have no effect",
        "Grouped-query attention becomes multi-query attention, and the other key and value heads are never trained.",
        _slot("groups", "first"),
    ),
    # Who is who.
    Mistake(
        "kv-swapped",
        "scores",
        "scores = q @ v.mT; out = weights @ k",
        "keys and values are exchanged",
        "Queries are compared with values, and the output is made of keys.",
        ({"roles": "qvk"}, {"linear": "qvk"}),
    ),
    # Masks.
    Mistake(
        "mask-dropped",
        "masked",
        "def forward(self, x, mask=None): ...  # mask is never read",
        "the {mask} has no effect",
        "{leak}",
        _slot("seen", "none"),
        ("keras-team/keras#23038", "keras-team/keras#21284", "facebookresearch/fairseq#1682"),
    ),
    Mistake(
        "mask-inverted",
        "masked",
        "scores.masked_fill(causal, -inf)  # causal: True = may attend",
        "the {mask} is inverted: a query attends to {seen}",
        "{leak}",
        _slot("seen", "inverted", "transposed"),
        ("pytorch/pytorch#29546", "rasbt/LLMs-from-scratch#1061", "tensorflow/text#894"),
        _MASKED,
    ),
    Mistake(
        "mask-strict",
        "masked",
        "torch.tril(ones, diagonal=-1)",
        "a query does not attend to its own position; in the paper it attends to all positions up to and "
        "including its own (section 3.2.3)",
        "The first query has nothing to attend to, and every token is predicted without the token before it.",
        _slot("seen", "strict"),
        asked=_MASKED,
    ),
    Mistake(
        "mask-one-ahead",
        "masked",
        "torch.tril(ones, diagonal=1)",
        "a query attends to one position ahead: the token that it is trained to predict",
        "{leak}",
        _slot("seen", "ahead"),
        asked=_MASKED,
    ),
    Mistake(
        "mask-rows",
        "masked",
        "scores.masked_fill(~keep[:, None, :, None], -inf)",
        "the padding mask blocks queries (rows of the scores); it belongs to the keys (columns)",
        "{leak}",
        _slot("seen", "transposed"),
        ("Kyubyong/transformer#103", "phlippe/uvadlc_notebooks#110"),
        ("padding",),
    ),
    Mistake(
        "mask-transposed",
        "masked",
        "mask = mask.transpose(-2, -1)",
        "the mask is transposed: its entry for query i and key j is applied to query j and key i",
        "{leak}",
        _slot("seen", "transposed"),
        asked=("mask",),
    ),
    Mistake(
        "mask-first-only",
        "masked",
        "mask = mask[0]",
        "{what}",
        "{leak}",
        _slot("seen", "first-sample", "tiled", "interleaved"),
        asked=_GIVEN,
    ),
    Mistake(
        "mask-one-head",
        "masked",
        "scores[:, 0] = scores[:, 0].masked_fill(~mask, -inf)",
        "the {mask} is applied to one head of {heads}",
        "{leak}",
        _slot("seen", "first-head", "last-head"),
    ),
    Mistake(
        "padding-as-zeros",
        "masked",
        "k, v = k * keep, v * keep",
        "padded keys and values are set to zero, but a score of 0 still gets the weight exp(0)",
        "{leak}",
        _slot("scores", "zeroed"),
        asked=("padding", "mask"),
    ),
    # Scores.
    Mistake(
        "scores-transposed",
        "scores",
        "scores = k @ q.transpose(-2, -1)",
        "scores are k qT instead of q kT: row i holds the scores of key i with every query",
        "Each token weighs the others by how much they look for it, not by what it looks for.",
        ({"scores": "kq"}, {"roles": "kqv"}, {"linear": "kqv"}),
    ),
    Mistake(
        "key-reshaped",
        "scores",
        "scores = q @ k.view(B, H, D, T)",
        "keys are reshaped to (width, tokens); the definition transposes them",
        "A score mixes channels of different tokens: it means nothing, and the model still trains.",
        _slot("scores", "reshaped"),
    ),
    Mistake(
        "scores-negated",
        "scores",
        "scores = -(q @ k.transpose(-2, -1))",
        "scores have the opposite sign",
        "The best match gets the smallest weight.",
        _slot("scores", "negated"),
    ),
    # Scale.
    Mistake(
        "no-scale",
        "scaled",
        "weights = (q @ k.transpose(-2, -1)).softmax(-1)",
        "you do not scale; the definition divides by {right:.2f} = sqrt({d}), the head's width",
        "The wider the heads, the closer the weights are to one-hot, and the smaller their gradients (paper, "
        "section 3.2.1).",
        _slot("scale", "none"),
    ),
    Mistake(
        "scale-d",
        "scaled",
        "scores / d_k",
        "you divide by {number:.2f} = {d}, the head's width; the definition divides by its root, {right:.2f}",
        "Weights are nearly uniform for every query.",
        _slot("scale", "d"),
    ),
    Mistake(
        "scale-d-model",
        "scaled",
        "scores / math.sqrt(d_model)",
        "you divide by {number:.2f} = sqrt({model}), the width of all heads; the definition divides by "
        "{right:.2f} = sqrt({d}), "
        "the head's",
        "Every score is too small by the root of the number of heads, and weights are too uniform.",
        _slot("scale", "d-model"),
        ("karpathy/ng-video-lecture#6", "lucidrains/vit-pytorch#65"),
    ),
    Mistake(
        "scale-d-value",
        "scaled",
        "scores / math.sqrt(v.shape[-1])",
        "you divide by {number:.2f} = sqrt({d_value}), the width of the values; the definition divides by "
        "{right:.2f} = sqrt({d}), "
        "that of the keys",
        "Right as long as both widths are equal; wrong without an error if they differ.",
        _slot("scale", "d-value"),
    ),
    Mistake(
        "scale-tokens",
        "scaled",
        "scores / math.sqrt(k.size(-2))",
        "you divide by {number:.2f} = sqrt({count} tokens); the definition divides by {right:.2f} = sqrt({d}), "
        "the head's width",
        "The scores of two tokens depend on the number of other tokens.",
        _slot("scale", "keys", "queries"),
    ),
    Mistake(
        "scale-heads",
        "scaled",
        "scores / math.sqrt(num_heads)",
        "you divide by {number:.2f} = sqrt({heads} heads); the definition divides by {right:.2f} = sqrt({d}), "
        "the head's width",
        "The wider the heads, the closer the weights are to one-hot.",
        _slot("scale", "heads"),
        ("tenstorrent/tt-metal#56789",),
    ),
    Mistake(
        "scale-batch",
        "scaled",
        "scores / math.sqrt(k.size(0))",
        "you divide by {number:.2f} = sqrt({batch} samples); the definition divides by {right:.2f} = sqrt({d}), "
        "the head's width",
        "A sample's result depends on the size of its batch.",
        _slot("scale", "batch"),
    ),
    Mistake(
        "scale-multiplied",
        "scaled",
        "scores * math.sqrt(d_k)",
        "you multiply by {inverse:.2f} = sqrt({d}); the definition divides by it",
        "Weights are nearly one-hot, and their gradients vanish.",
        _slot("scale", "multiplied"),
        ("esceptico/perceiver-io#9",),
    ),
    Mistake(
        "scale-fourth-root",
        "scaled",
        "q = q * d_k**-0.25  # and not k",
        "you divide by {number:.2f} = {d} ** 0.25; the definition divides by {right:.2f} = {d} ** 0.5, on q and "
        "k together",
        "The wider the heads, the closer the weights are to one-hot.",
        _slot("scale", "fourth-root"),
    ),
    Mistake(
        "scale-half",
        "scaled",
        "scores / math.sqrt(d_k // 2)",
        "you divide by {number:.2f} = sqrt({d} / 2); the definition divides by {right:.2f} = sqrt({d}), the "
        "head's width",
        "Every score is 1.41 times too large.",
        _slot("scale", "half"),
    ),
    Mistake(
        "scale-constant",
        "scaled",
        "scores / 8  # for every width",
        "you divide by {number:.2f}{known} for all sizes; the definition divides by {right:.2f} = sqrt({d}), "
        "the head's width",
        "Right for one width of heads; wrong without an error for every other width.",
        (),
    ),
    Mistake(
        "scale-floor",
        "scaled",
        "scores // math.sqrt(d_k)",
        "// rounds the scaled scores down to whole numbers",
        "Weights have only a few values, and no gradient flows through them.",
        _slot("scale", "floor"),
    ),
    # A bias.
    Mistake(
        "bias-before-scale",
        "biased",
        "scores = (q @ k.transpose(-2, -1) + bias) / math.sqrt(d_k)",
        "the bias or additive mask is added before the scaling and divided by {right:.2f} with the scores; the "
        "definition adds it after",
        "A mask of 0 and -inf is not affected; every finite bias is {right:.2f} times too small.",
        _slot("bias", "before-scale"),
    ),
    Mistake(
        "bias-ignored",
        "biased",
        "def attention(q, k, v, bias=None): ...  # bias is never read",
        "the bias has no effect",
        "What the bias encodes, such as positions, is lost.",
        _slot("bias", "ignored"),
    ),
    Mistake(
        "bias-after-softmax",
        "weights",
        "weights = scores.softmax(-1) + bias",
        "the bias is added to the weights, after the softmax",
        "Rows no longer sum to 1, and weights may be negative.",
        ({"bias": "ignored", "after": "bias"},),
    ),
    # What blocked scores become.
    Mistake(
        "mask-zero-fill",
        "masked",
        "scores = scores * mask",
        "blocked scores become 0 before the softmax, and exp(0) = 1 still gets weight",
        "{leak}",
        _slot("fill", 0.0),
    ),
    Mistake(
        "mask-weak-fill",
        "masked",
        "scores.masked_fill(~mask, -10.0)",
        "blocked scores become {number:g}, which is not low enough; in the definition they become -inf",
        "{leak}",
        _slot("fill", -1.0, -10.0, -100.0, 1e-9, -1e-9, -1e-12, -5.0, -50.0, -20.0, -2.0, 1.0),
        ("hyunwoongko/transformer#10",),
    ),
    Mistake(
        "mask-added-01",
        "masked",
        "scores = scores + mask.float()",
        "a mask of 0 and 1 is added to the scores, which blocks nothing",
        "{leak}",
        _slot("fill", "added-may", "added-blocked"),
        ("pytorch/pytorch#21518",),
    ),
    Mistake(
        "mask-positive-fill",
        "masked",
        "scores.masked_fill(~mask, 1e9)",
        "blocked scores become {number:g}: blocked keys get all of the weight",
        "{leak}",
        _slot("fill", 1e9, 1e4, float("inf")),
    ),
    Mistake(
        "mask-after-softmax",
        "weights",
        "weights = scores.softmax(-1) * mask",
        "the mask is applied to the weights after the softmax, and they are not normalized again",
        "The weight of blocked keys is lost: rows sum to less than 1, and outputs shrink.",
        ({"fill": "after", "after": "mask"},),
    ),
    # Softmax.
    Mistake(
        "softmax-queries",
        "weights",
        "scores.softmax(dim=-2)",
        "the softmax runs over the queries: columns sum to 1, and rows do not (first row: {row:.2f})",
        "Queries compete for each key, not keys for each query; weights of earlier tokens depend on later tokens.",
        _slot("softmax", "queries"),
        (
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
        _slot("softmax", "heads"),
    ),
    Mistake(
        "softmax-batch",
        "weights",
        "scores.softmax(dim=0)",
        "the softmax runs over the {batch} samples of the batch; rows do not sum to 1 (first row: {row:.2f})",
        "A sample's result depends on the other samples in its batch; in a batch of one, all weights are 1.",
        _slot("softmax", "batch"),
        ("nerminnuraydogan/vision-transformer#1",),
    ),
    Mistake(
        "softmax-all",
        "weights",
        "scores.flatten(-2).softmax(-1).view_as(scores)",
        "the softmax runs over the whole matrix: all of it sums to 1, and a row to {row:.2f}",
        "Queries compete with each other; outputs shrink with the length.",
        _slot("softmax", "all", "everything"),
    ),
    Mistake(
        "softmax-missing",
        "weights",
        "out = (scores / math.sqrt(d_k)) @ v",
        "there is no softmax: weights are the scores",
        "Weights may be negative, and outputs grow with the length.",
        _slot("softmax", "missing"),
    ),
    Mistake(
        "softmax-twice",
        "weights",
        "F.softmax(F.softmax(scores, -1), -1)",
        "the softmax is applied twice",
        "Weights are nearly uniform, and blocked keys get weight: exp(0) each.",
        _slot("softmax", "twice"),
    ),
    Mistake(
        "softmax-log",
        "weights",
        "F.log_softmax(scores, -1)",
        "weights are logarithms: log_softmax instead of softmax",
        "Weights are negative, and the best match counts least.",
        _slot("softmax", "log"),
    ),
    Mistake(
        "softmax-unnormalised",
        "weights",
        "weights = scores.exp()",
        "weights are exp(scores) and are not divided by their sum (first row: {row:.2f})",
        "Outputs grow with the length and with the scores.",
        _slot("softmax", "exp", "exp-max"),
    ),
    Mistake(
        "softmax-l1",
        "weights",
        "weights = scores / scores.sum(-1, keepdim=True)",
        "weights are scores divided by their sum, without exp",
        "Weights may be negative, and explode if the sum is near 0.",
        _slot("softmax", "l1"),
    ),
    Mistake(
        "scale-after-softmax",
        "weights",
        "weights = scores.softmax(-1) / math.sqrt(d_k)",
        "the weights are divided by {right:.2f} after the softmax; the definition divides the scores before it",
        "Rows sum to {row:.2f}, and the softmax is as close to one-hot as without scaling.",
        ({"scale": "none", "after": "scale"}, {"after": "scale"}),
    ),
    # What is read.
    Mistake(
        "weights-transposed",
        "output",
        "out = weights.transpose(-2, -1) @ v",
        "values are weighted by the columns of the weights, not by the rows",
        "A token reads from the tokens that attend to it, with weights that do not sum to 1; the future leaks"
        " through the mask.",
        _slot("product", "transposed"),
    ),
    Mistake(
        "output-v",
        "output",
        "return v",
        "the output is v: queries, keys and the mask have no effect",
        "No token attends to another token.",
        _slot("product", "v"),
    ),
    Mistake(
        "output-mean",
        "output",
        "return v.mean(-2, keepdim=True).expand_as(q)",
        "the output is the mean of the allowed values; queries and keys have no effect",
        "Every allowed token has the same weight.",
        _slot("product", "mean"),
    ),
    # Heads together.
    Mistake(
        "merge-without-transpose",
        "heads",
        "out = out.reshape(B, T, H * D)  # out is (B, H, T, D)",
        "(batch, heads, tokens, width) is reshaped to (batch, tokens, heads * width) without a transpose first",
        "A token's output consists of other tokens' outputs; the future leaks through any mask.",
        _slot("merge", "no-transpose", "heads-first"),
        ("hackiey/QAnet-pytorch#2",),
        functions=False,
    ),
    Mistake(
        "heads-added",
        "heads",
        "out = torch.stack(heads).mean(0)",
        "the {heads} heads are {what}; the definition concatenates them",
        "What one head read cannot be told from what another head read.",
        _slot("merge", "sum", "mean", "sum-tiled", "mean-tiled"),
        functions=False,
    ),
    Mistake(
        "out-projection-skipped",
        "projected",
        "return heads  # self.out_proj exists",
        "the output projection exists and has no effect",
        "Heads are never mixed, and these parameters are never trained.",
        _slot("out", "none"),
        functions=False,
    ),
    Mistake(
        "out-projection-untransposed",
        "projected",
        "return heads @ self.out_proj.weight",
        "heads are multiplied by the output weight as torch.nn.Linear stores it; the definition multiplies by "
        "its transpose",
        "It runs and trains as long as the weight is square; with trained weights its numbers are wrong.",
        _slot("out", "untransposed"),
        functions=False,
    ),
    Mistake(
        "out-projection-twice",
        "projected",
        "return self.out_proj(self.out_proj(heads))",
        "the output projection is applied twice",
        "Trained weights give wrong numbers; gradients pass the same weights twice.",
        _slot("out", "twice"),
        functions=False,
    ),
    # Shown by how it behaves.
    Mistake(
        "batch-as-tokens",
        "scores",
        "q = q.reshape(B * T, D)",
        "attention runs over all {batch} x {tokens} tokens of the batch together",
        "A sample's result depends on the other samples in its batch: at inference, on other people's texts.",
        _slot("groups", "one-sequence"),
    ),
    Mistake(
        "absolute-axes",
        "scores",
        "k.transpose(0, 1); scores.softmax(dim=1)  # right without a batch",
        "axes are counted from the front{named}: a batch of {batch} x {batch} x {batch} runs without an error"
        " and attends along the wrong axis",
        "Other batches raise an error; a batch with as many samples as tokens and channels is wrong without one.",
    ),
    Mistake(
        "dropout-in-eval",
        "weights",
        "F.dropout(weights, 0.1)  # training=True by default",
        "dropout stays on in eval(): two calls with the same input differ by up to {number:.2g}",
        "Predictions are random, and worse than without dropout.",
        references=("karpathy/nanoGPT#240",),
    ),
    Mistake(
        "dropout-before-softmax",
        "masked",
        "scores = self.dropout(scores).softmax(-1)",
        "in train(), dropout is applied to the scores, before the softmax: a dropped score becomes 0, and exp(0) = 1",
        "Dropped keys gain weight instead of losing it, and blocked scores become NaN: -inf * 0.",
        references=("karpathy/ng-video-lecture#30",),
    ),
    Mistake(
        "detached",
        "weights",
        "weights = scores.softmax(-1).detach()",
        "no gradient reaches {what}",
        "They are never trained, while the rest of the model still learns.",
    ),
    Mistake(
        "inputs-changed",
        "call",
        "q /= math.sqrt(d_k)",
        "the call changes {what} in place, which belongs to its caller",
        "What uses it next, such as a residual or a second call, gets other numbers.",
    ),
    Mistake(
        "stateful",
        "call",
        "self.cache = k  # and it is never cleared",
        "a second call with the same input returns an output that differs by up to {number:.2g}, though "
        "nothing is random",
        "Results depend on earlier calls.",
    ),
    Mistake(
        "batch-mixed",
        "weights",
        "scores.softmax(dim=0)",
        "a sample's output changes by up to {number:.2g} with the other samples of its batch",
        "A text's result depends on the other texts in its batch.",
    ),
    Mistake(
        "future-leak",
        "masked",
        "mask = None",
        "it is causal by {named}, but its output at position {query} changes by up to {number:.2g} with the "
        "token at position {key}",
        "In training it reads the answer; when it generates, there is no answer to read.",
    ),
    # Around it.
    Mistake(
        "mask-not-passed",
        "masked",
        "self.heads[i](q, k, v, mask=None)",
        "{what} takes a mask and does not hand it to the attention inside",
        "Nothing is masked, and no error says so.",
        references=("keras-team/keras#21284",),
    ),
    Mistake(
        "residual-missing",
        "block",
        "x = self.attention(self.norm(x))",
        "the {what}'s output replaces its input; the definition adds them",
        "Gradients fade with every block, and a token loses its own vector.",
    ),
    Mistake(
        "residual-of-norm",
        "block",
        "x = self.norm(x); x = x + self.attention(x)",
        "the {what}'s output is added to the normalized input; a pre-norm block adds it to the input before the norm",
        "The residual stream is normalized in every block, which pre-norm avoids.",
    ),
    Mistake(
        "ffn-skipped",
        "block",
        "return x  # self.mlp exists",
        "the feed-forward network exists and has no effect",
        "Two thirds of the block's parameters are never trained.",
    ),
    Mistake(
        "pe-exponent",
        "positions",
        "angle = pos / 10000 ** (2 * i / d)  # i: the channel",
        "the exponent is 2i/d with i the channel; in the paper 2i is the channel, so that wavelengths rise "
        "half as fast",
        "The last half of the channels does not change over any text: their wavelengths exceed 10,000 x 2 pi.",
        references=("Kyubyong/transformer#38", "jadore801120/attention-is-all-you-need-pytorch#32"),
    ),
    Mistake(
        "pe-angle",
        "positions",
        "angle = pos / 10000 ** (i / d)  # also for odd i",
        "a sine and its cosine have different frequencies: the exponent of an odd channel i is i/d, in the "
        "paper (i - 1)/d",
        "A shift of position is no longer a rotation of each pair of channels.",
        references=("SamLynnEvans/Transformer#7",),
    ),
    Mistake(
        "pe-base",
        "positions",
        "angle = pos / 1000 ** (i / d)",
        "wavelengths rise to {number:g} x 2 pi; the paper's rise to 10000 x 2 pi",
        "Positions that are further apart than the longest wavelength cannot be told apart.",
    ),
    Mistake(
        "pe-swapped",
        "positions",
        "pe[:, 0::2] = cos; pe[:, 1::2] = sin",
        "even channels are cosines and odd channels are sines; in the paper it is the other way round",
        "Training from scratch works as well; trained weights give wrong numbers.",
    ),
)

MISTAKES: Mapping[str, Mistake] = {known.id: known for known in _ALL}
"""Every mistake that can be named, by its id."""

CONVENTIONS: tuple[Convention, ...] = (
    Convention("precision", "the scale is computed in float32", {"scale": "float32"}),
    Convention("precision", "the scale is computed in float32", {"scale": "float32-inverse"}),
    Convention("precision", "the softmax is computed in float32", {"softmax": "float32"}),
    Convention(
        "convention",
        "a head's channels are {heads} apart: (width, heads) instead of (heads, width)",
        {"split": "channels", "merge": "channels"},
        functions=False,
    ),
    Convention(
        "convention",
        "a head's channels are {heads} apart in q, k and v: (width, heads) instead of (heads, width)",
        {"split": "channels"},
        functions=False,
    ),
    Convention(
        "convention",
        "the output's channels are interleaved: (width, heads) instead of (heads, width)",
        {"merge": "channels"},
        functions=False,
    ),
    Convention(
        "convention",
        "key and value heads are tiled: query head i reads key head i mod {kv_heads}, not i // {per}",
        {"groups": "tiled"},
    ),
    Convention(
        "convention",
        "the packed weights are ordered k, q, v",
        {"linear": "kqv"},
        functions=False,
        packed=True,
    ),
    Convention(
        "convention",
        "the packed weights are ordered v, k, q",
        {"linear": "vkq"},
        functions=False,
        packed=True,
    ),
    Convention(
        "convention",
        "the packed weights are ordered q, v, k",
        {"linear": "qvk"},
        functions=False,
        packed=True,
    ),
    Convention(
        "convention",
        "the packed weights are ordered v, q, k",
        {"linear": "kvq"},
        functions=False,
        packed=True,
    ),
    Convention(
        "convention",
        "the packed weights are ordered k, v, q",
        {"linear": "vqk"},
        functions=False,
        packed=True,
    ),
    Convention(
        "convention",
        "causal from the first position: query i attends to keys 0 to i, also if there are more keys",
        {"seen": "first-aligned"},
    ),
    Convention("design", "queries and keys are normalized to length 1 (cosine)", {"rounds": "l2"}),
    Convention("design", "q/k norm: an RMS norm of queries and keys, by head", {"rounds": "rms"}),
    Convention("design", "q/k norm: a layer norm of queries and keys, by head", {"rounds": "layer"}),
    Convention("design", "rotary positions, halves in pairs (Llama)", {"rounds": "rotary-halves"}),
    Convention("design", "rotary positions, neighbours in pairs (GPT-J)", {"rounds": "rotary-pairs"}),
    Convention("design", "rotary positions, as given", {"rounds": "given-halves"}),
    Convention("design", "q/k norm, then rotary positions", {"rounds": "rms+rotary-halves"}),
    Convention("design", "q/k norm, then rotary positions, as given", {"rounds": "rms+given-halves"}),
    Convention("design", "ALiBi: a bias by distance, one slope for each head", {"bias": "alibi"}),
    Convention("design", "a learned bias of queries and keys", {"bias": "learned"}),
    Convention("design", "a sink of score 0: softmax with + 1 in its denominator", {"softmax": "plus-one"}),
    Convention(
        "design", "learned sinks: one score per head in the softmax that carries no value", {"softmax": "sinks"}
    ),
    Convention("design", "sigmoid instead of softmax", {"softmax": "sigmoid"}),
    Convention("design", "the input is added to the output (a residual inside)", {"out": "and-input"}, functions=False),
)
"""Layouts and conventions, differences by design, and what is right to less than float64's precision."""
