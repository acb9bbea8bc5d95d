"""Exercises 16 and 18: a module for self-attention, and a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.multihead import MultiHeadAttention
from regard.check.mistakes.catalog import MISTAKES
from regard.check.recipes.case import Case, ProjectionWeights, causal
from regard.exercises.problems.bank import Bank
from regard.exercises.problems.numbers import X, course_call, draw, random_call
from regard.exercises.problems.problem import Call, OwnMistake, Problem, made, no_trail, variants_of

__all__ = ["SELF_ATTENTION", "TRANSFORMER_BLOCK"]


# 16 -------------------------------------------------------------------------------------------------------------------


def _self_case(w_q: Tensor, w_k: Tensor, w_v: Tensor, x: Tensor, mask: Tensor | None) -> Case:
    may = None if mask is None else mask[None, None]
    return Case(x=x, weights=ProjectionWeights(w_q, w_k, w_v, 1, 1), may=may)


def _run_attention(learner: Any, call: Call) -> tuple[Callable[[], Any], tuple[Any, ...]]:
    """A call of the learner's module; the definition gets its weights."""
    module = made(learner, call, dict.fromkeys(("W_q", "W_k", "W_v"), nn.Linear))
    weights = tuple(getattr(module, name).weight.detach() for name in ("W_q", "W_k", "W_v"))
    x, mask = call.args
    given = (x.clone(),) if mask is None else (x.clone(), mask.clone())
    return lambda: module(*given), (*weights, x, mask)


def _absolute(transposed: bool, dim: int) -> OwnMistake:
    """Axes counted from the front."""

    def compute(w_q: Tensor, w_k: Tensor, w_v: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = x @ w_q.T, x @ w_k.T, x @ w_v.T
        scores = q @ (k.transpose(0, 1) if transposed else k.mT) / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        output: Tensor = scores.softmax(dim) @ v
        return output

    return OwnMistake(
        "absolute-axes",
        "scores",
        "axes are counted from the front: axis 0 and 1 are the batch and the tokens as soon as there is a batch",
        MISTAKES["absolute-axes"].impact,
        compute,
        pattern=r"transpose\(0|\.T\b|\.t\(\)|dim=1|dim0",
    )


def _over_samples(w_q: Tensor, w_k: Tensor, w_v: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
    """A softmax over the batch; a key that no sample may attend to is NaN, as in the learner's code."""
    scores = (x @ w_q.T) @ (x @ w_k.T).mT / w_q.shape[0] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    output: Tensor = scores.softmax(0) @ (x @ w_v.T)
    return output


def _inverted(fill: float) -> OwnMistake:
    def compute(w_q: Tensor, w_k: Tensor, w_v: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = x @ w_q.T, x @ w_k.T, x @ w_v.T
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(mask, fill)
        output: Tensor = scores.softmax(-1) @ v
        return output

    return OwnMistake(
        "mask-inverted",
        "masked",
        "the mask is read the other way round: True is taken for blocked, as in the tutorials; here True = may attend",
        "A query sees exactly what it must not see.",
        compute,
        pattern=r"masked_fill|where|mask",
    )


_SELF = Bank(
    _self_case,
    lambda state: state.last,
    mask="mask",
    own=(
        OwnMistake(
            "softmax-batch",
            "weights",
            "the softmax runs over the samples of the batch; rows do not sum to 1",
            MISTAKES["softmax-batch"].impact,
            _over_samples,
            pattern=r"softmax",
        ),
        _absolute(transposed=True, dim=1),
        _absolute(transposed=True, dim=-1),
        _inverted(-torch.inf),
        _inverted(-1e9),
    ),
)


def _mask(tokens: int) -> Tensor:
    """Any mask in which every query may attend to itself, and that is not symmetric."""
    mask = draw(tokens, [tokens, tokens])[0] > 0
    return mask | torch.eye(tokens, dtype=torch.bool)


SELF_ATTENTION = Problem(
    calls=lambda: [
        course_call(X[None], causal(3, 3)[0, 0], init=(2,), setting="the course's numbers, causal mask"),
        course_call(X[None], None, init=(2,), setting="the course's numbers, no mask"),
        random_call("x mask", *draw(121, [2, 5, 4]), _mask(5), init=(4,)),
        random_call("x mask", *draw(122, [2, 5, 6]), None, init=(6,)),
        random_call("x mask", *draw(123, [3, 3, 3]), None, init=(3,)),
        random_call("x mask", *draw(124, [4, 4, 4]), _mask(4), init=(4,)),
    ],
    right=_SELF.right,
    variants=_SELF.variants,
    run=_run_attention,
    is_attention=True,
    patterns={"mask-dropped": r"mask|softmax"},
)


# 18 -------------------------------------------------------------------------------------------------------------------

PARTS = {"norm_1": nn.LayerNorm, "attention": MultiHeadAttention, "norm_2": nn.LayerNorm, "feed_forward": nn.Sequential}


def _run_block(learner: Any, call: Call) -> tuple[Callable[[], Any], tuple[Any, ...]]:
    block = made(learner, call, PARTS)
    return lambda: block(call.args[0].clone()), (block, *call.args)


def _wired(block: Any, x: Tensor, choice: str = "") -> Tensor:
    """A block with one of its wires elsewhere; by default the pre-norm block."""
    one, two = (block.norm_2, block.norm_1) if choice == "norms exchanged" else (block.norm_1, block.norm_2)
    two = block.norm_1 if choice == "one norm" else two
    normed: Tensor = x if choice in ("no norms", "no first norm") else one(x)
    attended: Tensor = block.attention(normed)
    residual = normed if choice == "residual of norm" else x
    middle = attended if choice in ("no first residual", "no residuals") else attended + residual
    middle = x if choice == "no attention" else middle
    if choice == "no feed-forward":
        return middle
    read = x if choice == "parallel" else middle
    normed = read if choice in ("no norms", "no second norm") else two(read)
    made_: Tensor = block.feed_forward(normed)
    if choice == "residual of second norm":
        return made_ + normed
    if choice in ("no second residual", "no residuals"):
        return made_
    return made_ + (x if choice == "residual of the input" else middle)


def _parts_exchanged(block: Any, x: Tensor) -> Tensor:
    middle: Tensor = x + block.feed_forward(block.norm_1(x))
    output: Tensor = middle + block.attention(block.norm_2(middle))
    return output


def _residuals_of_norms(block: Any, x: Tensor) -> Tensor:
    normed: Tensor = block.norm_1(x)
    middle: Tensor = block.norm_2(normed + block.attention(normed))
    output: Tensor = middle + block.feed_forward(middle)
    return output


def _norms_of_parts(block: Any, x: Tensor) -> Tensor:
    middle: Tensor = x + block.norm_1(block.attention(x))
    output: Tensor = middle + block.norm_2(block.feed_forward(middle))
    return output


def _post_norm(block: Any, x: Tensor) -> Tensor:
    middle = block.norm_1(x + block.attention(x))
    return block.norm_2(middle + block.feed_forward(middle))  # type: ignore[no-any-return]


def _wire(id_: str, choice: str, message: str, impact: str, pattern: str) -> OwnMistake:
    return OwnMistake(id_, "block", message, impact, lambda block, x: _wired(block, x, choice), no_trail, pattern)


_RESIDUAL = MISTAKES["residual-missing"].impact
_OF_NORM = MISTAKES["residual-of-norm"].impact
TRANSFORMER_BLOCK = Problem(
    calls=lambda: [
        course_call(X[None], init=(2, 1, 8)),
        random_call("x", *draw(131, [2, 5, 6]), init=(6, 3, 10)),
        random_call("x", *draw(132, [3, 4, 4]), init=(4, 2, 4)),
    ],
    right=_wired,
    variants=variants_of(
        _wire(
            "residual-missing",
            "no first residual",
            "what the attention computes replaces its input; it has to be added to it",
            _RESIDUAL,
            r"attention",
        ),
        _wire(
            "residual-missing",
            "no second residual",
            "what the feed-forward network computes replaces its input; it has to be added to it",
            _RESIDUAL,
            r"feed_forward",
        ),
        _wire(
            "residual-missing", "no residuals", "there is no residual: nothing is added to x", _RESIDUAL, r"attention"
        ),
        _wire(
            "residual-of-norm",
            "residual of norm",
            "what the attention computes is added to the normed tokens; it has to be added to x itself",
            _OF_NORM,
            r"norm_1",
        ),
        _wire(
            "residual-of-norm",
            "residual of second norm",
            "what the feed-forward network computes is added to the normed tokens, not to what the norm reads",
            _OF_NORM,
            r"norm_2",
        ),
        _wire(
            "residual-of-the-sum",
            "residual of the input",
            "the second residual adds x, the block's input; what the attention computed is lost from it",
            "The attention reaches the output through the feed-forward network alone.",
            r"feed_forward",
        ),
        _wire(
            "residual-of-the-sum",
            "parallel",
            "the feed-forward network reads x, not the sum after the attention",
            "It is a block of another design (parallel), and trained weights give wrong numbers.",
            r"feed_forward|norm_2",
        ),
        _wire(
            "ffn-skipped",
            "no feed-forward",
            "the feed-forward network is there and has no effect",
            MISTAKES["ffn-skipped"].impact,
            r"return",
        ),
        _wire(
            "attention-skipped",
            "no attention",
            "the attention is there and has no effect",
            "No token learns anything of another one.",
            r"return|feed_forward",
        ),
        OwnMistake(
            "post-norm",
            "block",
            "the norms come after the sums: that is the post-norm block of the paper; here a pre-norm one is asked for",
            "Trained weights of the one give wrong numbers in the other, and post-norm needs a warm-up.",
            _post_norm,
            no_trail,
            r"norm_1",
        ),
        _wire(
            "norm-missing",
            "no norms",
            "both norms are there and have no effect",
            "Sums grow with each block.",
            r"attention",
        ),
        _wire(
            "norm-missing",
            "no first norm",
            "the attention reads x without a norm: norm_1 has no effect",
            "Sums grow with each block.",
            r"attention",
        ),
        _wire(
            "norm-missing",
            "no second norm",
            "the feed-forward network reads the sum without a norm: norm_2 has no effect",
            "Sums grow with each block.",
            r"feed_forward",
        ),
        _wire(
            "norm-used-twice",
            "one norm",
            "norm_1 stands before both parts: norm_2 has no effect",
            "The parameters of norm_2 are never trained.",
            r"feed_forward",
        ),
        OwnMistake(
            "residual-of-norm",
            "block",
            "what both parts compute is added to the normed tokens; it has to be added to what the norms read",
            _OF_NORM,
            _residuals_of_norms,
            no_trail,
            r"norm_1",
        ),
        OwnMistake(
            "norm-of-the-part",
            "block",
            "the norms come after the parts, before the sums; in a pre-norm block they come before the parts",
            "Trained weights give wrong numbers.",
            _norms_of_parts,
            no_trail,
            r"norm_1",
        ),
        OwnMistake(
            "parts-exchanged",
            "block",
            "the feed-forward network comes first, and the attention second",
            "Trained weights give wrong numbers.",
            _parts_exchanged,
            no_trail,
            r"feed_forward",
        ),
        _wire(
            "norms-exchanged",
            "norms exchanged",
            "norm_1 and norm_2 have changed places",
            "Trained weights give wrong numbers.",
            r"norm_2",
        ),
    ),
    run=_run_block,
    is_attention=True,
)
