"""Exercises 14, 15 and 17: heads, multi-head attention, cross-attention."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.mistakes.catalog import MISTAKES
from regard.check.recipes.case import Case, ProjectionWeights
from regard.exercises.problems.bank import Bank
from regard.exercises.problems.numbers import X, course_call, course_weights, draw, random_call
from regard.exercises.problems.problem import OwnMistake, Problem, no_trail, variants_of

__all__ = ["CROSS_ATTENTION", "MULTI_HEAD", "SPLIT_HEADS"]


UNTURNED = r"^(?!.*(transpose|permute|mT)).*(view|reshape|unflatten)"
"""A line that cuts or joins axes and does not let them change places."""


# 14 -------------------------------------------------------------------------------------------------------------------


def _split(x: Tensor, num_heads: int) -> Tensor:
    return torch.stack(x.chunk(num_heads, -1), 1)


SPLIT_HEADS = Problem(
    calls=lambda: [
        course_call(torch.tensor([[[1.16, 0.23, 0.57, 1.36], [4.41, -2.16, 1.16, 0.23]]], dtype=torch.float64), 2),
        random_call("x num_heads", *draw(91, [2, 5, 6]), 3),
        random_call("x num_heads", *draw(92, [3, 4, 8]), 4),
        random_call("x num_heads", *draw(93, [2, 3, 4]), 1),
    ],
    right=_split,
    variants=variants_of(
        OwnMistake(
            "split-by-view",
            "heads",
            "heads are cut by a view to (batch, num_heads, tokens, d_head): it mixes the channels of different tokens",
            MISTAKES["split-by-view"].impact,
            lambda x, heads: x.reshape(x.shape[0], heads, x.shape[1], -1),
            no_trail,
            UNTURNED,
        ),
        OwnMistake(
            "heads-attend-heads",
            "heads",
            "the result is (batch, tokens, num_heads, d_head): heads and tokens have not changed places",
            MISTAKES["heads-attend-heads"].impact,
            lambda x, heads: x.reshape(x.shape[0], x.shape[1], heads, -1),
            no_trail,
            UNTURNED,
        ),
        OwnMistake(
            "channels-interleaved",
            "heads",
            "a head gets every num_heads-th channel; its channels have to be neighbours",
            "A model trains as well, but trained weights give wrong numbers.",
            lambda x, heads: x.reshape(x.shape[0], x.shape[1], -1, heads).permute(0, 3, 1, 2),
            no_trail,
            r"view|reshape|::",
        ),
        OwnMistake(
            "tokens-last",
            "heads",
            "tokens come last, (batch, num_heads, d_head, tokens); channels have to come last",
            "A product of queries and keys then sums over the tokens.",
            lambda x, heads: _split(x, heads).mT,
            no_trail,
            r"permute|transpose|mT",
        ),
        OwnMistake(
            "batch-behind-heads",
            "heads",
            "heads come before the batch, (num_heads, batch, tokens, d_head)",
            "Where the batch is as large as the number of heads, samples are taken for heads without an error.",
            lambda x, heads: _split(x, heads).transpose(0, 1),
            no_trail,
            r"permute|transpose|stack",
        ),
        OwnMistake(
            "split-by-view",
            "heads",
            "channels come before tokens when the heads are cut, so that the cut mixes the channels of different "
            "tokens",
            MISTAKES["split-by-view"].impact,
            lambda x, heads: x.mT.reshape(x.shape[0], heads, x.shape[1], -1),
            no_trail,
            r"view|reshape",
        ),
        OwnMistake(
            "split-by-view",
            "heads",
            "a view to (batch, num_heads, d_head, tokens) mixes the channels of different tokens",
            MISTAKES["split-by-view"].impact,
            lambda x, heads: x.reshape(x.shape[0], heads, -1, x.shape[1]),
            no_trail,
            UNTURNED,
        ),
        OwnMistake(
            "heads-copied",
            "heads",
            "every head gets all channels; each has its own d_model / num_heads of them",
            "Every head computes the same.",
            lambda x, heads: x[:, None].expand(-1, heads, -1, -1),
        ),
        OwnMistake(
            "tokens-split",
            "heads",
            "tokens are dealt out to the heads; every head sees all tokens, and a part of their channels",
            "A token can attend to the tokens of its own part of the text alone.",
            lambda x, heads: torch.stack(x.chunk(heads, 1), 1) if x.shape[1] % heads == 0 else _misfit(),
        ),
    ),
)


def _misfit() -> Tensor:
    raise ValueError("the shapes do not fit")


# 15 -------------------------------------------------------------------------------------------------------------------


def _multi_head_case(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, num_heads: int) -> Case:
    return Case(x=x, weights=ProjectionWeights(w_q, w_k, w_v, num_heads, num_heads, out=w_o))


def _heads_attend_heads(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, num_heads: int) -> Tensor:
    """Heads in the place of tokens, and joined as if they stood where they should."""
    batch, tokens, width = x.shape
    q, k, v = ((x @ weight.T).reshape(batch, tokens, num_heads, -1) for weight in (w_q, w_k, w_v))
    output = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
    joined: Tensor = output.transpose(1, 2).reshape(batch, tokens, width) @ w_o.T
    return joined


def _one_head(width: str) -> OwnMistake:
    """No heads at all."""

    def compute(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, num_heads: int) -> Tensor:
        scale = (x.shape[-1] // (num_heads if width == "d_head" else 1)) ** -0.5
        weights = ((x @ w_q.T) @ (x @ w_k.T).mT * scale).softmax(-1)
        output: Tensor = weights @ (x @ w_v.T) @ w_o.T
        return output

    return OwnMistake(
        "heads-not-split",
        "heads",
        "there is one head as wide as d_model: num_heads has no effect on who attends to whom",
        "All subspaces share one distribution of weights.",
        compute,
        None,
        r"softmax",
    )


_MULTI_HEAD = Bank(
    _multi_head_case,
    lambda state: state.last,
    own=(
        OwnMistake(
            "heads-attend-heads",
            "heads",
            "heads and tokens have not changed places before the product: the scores are those between the heads of "
            "one "
            "token",
            MISTAKES["heads-attend-heads"].impact,
            _heads_attend_heads,
            None,
            r"view|reshape",
        ),
        *map(_one_head, ("d_model", "d_head")),
    ),
)
MULTI_HEAD = Problem(
    calls=lambda: [
        course_call(X[None], *course_weights(), 2),
        random_call("x w_q w_k w_v w_o num_heads", *draw(101, [2, 5, 6], *[[6, 6]] * 4), 3),
        random_call("x w_q w_k w_v w_o num_heads", *draw(102, [3, 4, 8], *[[8, 8]] * 4), 4),
        random_call("x w_q w_k w_v w_o num_heads", *draw(103, [2, 4, 12], *[[12, 12]] * 4), 3),
    ],
    right=_MULTI_HEAD.right,
    variants=_MULTI_HEAD.variants,
    patterns={
        **dict.fromkeys(("split-by-view", "heads-attend-heads", "merge-without-transpose"), UNTURNED),
        "out-projection-skipped": r"return",
    },
)


# 17 -------------------------------------------------------------------------------------------------------------------


def _cross_case(x: Tensor, context: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Case:
    return Case(x=x[None], context=context[None], weights=ProjectionWeights(w_q, w_k, w_v, 1, 1))


_CROSS = Bank(_cross_case, lambda state: state.last[0])
CROSS_ATTENTION = Problem(
    calls=lambda: [
        course_call(X, torch.tensor([[0.50, -1.00], [1.50, 0.80]], dtype=torch.float64), *course_weights()[:3]),
        random_call("x context w_q w_k w_v", *draw(111, [5, 4], [6, 4], *[[3, 4]] * 3)),
        random_call("x context w_q w_k w_v", *draw(112, [4, 5], [4, 5], *[[5, 5]] * 3)),
    ],
    right=_CROSS.right,
    variants=_CROSS.variants,
)
