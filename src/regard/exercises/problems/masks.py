"""Exercises 12 and 13: causal attention and attention without padding."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from regard.check.mistakes.catalog import MISTAKES
from regard.check.recipes.case import Case, causal
from regard.exercises.problems.attention import qkv_case
from regard.exercises.problems.bank import Bank
from regard.exercises.problems.numbers import course_call, draw, projected, random_call
from regard.exercises.problems.problem import OwnMistake, Problem

__all__ = ["CAUSAL_MASK", "PADDING_MASK"]


# 12 -------------------------------------------------------------------------------------------------------------------


def _causal_case(q: Tensor, k: Tensor, v: Tensor) -> Case:
    return qkv_case(q, k, v, causal(len(q), len(k)))


def _strict(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Without the diagonal, of scores that are -inf: the first row is NaN."""
    allowed = torch.ones(len(q), len(k), dtype=torch.bool).tril(-1)
    scores: Tensor = q @ k.T / q.shape[-1] ** 0.5
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ v


def _strict_finite(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Without the diagonal, of scores that are -1e9: the first row is the mean of all values."""
    allowed = torch.ones(len(q), len(k), dtype=torch.bool).tril(-1)
    scores: Tensor = q @ k.T / q.shape[-1] ** 0.5
    return scores.masked_fill(~allowed, -1e9).softmax(-1) @ v


def _inverted(fill: float) -> OwnMistake:
    def compute(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        later = torch.ones(len(q), len(k), dtype=torch.bool).triu(1)
        scores: Tensor = q @ k.T / q.shape[-1] ** 0.5
        return scores.masked_fill(~later, fill).softmax(-1) @ v

    return OwnMistake(
        "mask-inverted",
        "masked",
        "the mask is inverted: a query attends to later positions only, and the last one to nothing",
        "In training it reads the answer; when it generates, there is no answer to read.",
        compute,
        pattern=r"masked_fill|where|tril|triu|mask",
    )


def _strict_mistake(compute: Callable[..., Tensor]) -> OwnMistake:
    known = MISTAKES["mask-strict"]
    return OwnMistake(known.id, "masked", known.message, known.impact, compute, pattern=r"tril|triu|<|>|range")


_CAUSAL = Bank(
    _causal_case,
    lambda state: state.output[0, 0],
    mask="built-in",
    last="output",
    own=(*map(_strict_mistake, (_strict, _strict_finite)), _inverted(-torch.inf), _inverted(-1e9)),
)
CAUSAL_MASK = Problem(
    calls=lambda: [
        course_call(*projected()),
        random_call("q k v", *draw(71, [5, 3], [5, 3], [5, 4])),
        random_call("q k v", *draw(72, [4, 4], [4, 4], [4, 4])),
    ],
    right=_CAUSAL.right,
    variants=_CAUSAL.variants,
    is_attention=True,
    patterns={
        "mask-one-ahead": r"tril|triu|range|<|>|masked_fill|where",
        "mask-dropped": r"masked_fill|where|tril|triu|softmax",
    },
)


# 13 -------------------------------------------------------------------------------------------------------------------


def _padding_case(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Case:
    return qkv_case(q, k, v, keep[:, None, None])


def _padding_inverted(fill: float) -> OwnMistake:
    def compute(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        scores: Tensor = q @ k.mT / q.shape[-1] ** 0.5
        return scores.masked_fill(keep[:, None], fill).softmax(-1) @ v

    return OwnMistake(
        "mask-inverted",
        "masked",
        "the mask is inverted: queries read the padding only, and no real token",
        "The result says nothing of the text.",
        compute,
        lambda q, k, v, keep: [(q @ k.mT / q.shape[-1] ** 0.5).masked_fill(keep[:, None], fill)],
        r"masked_fill|where|keep",
    )


def _rows(fill: float) -> OwnMistake:
    def compute(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        scores: Tensor = q @ k.mT / q.shape[-1] ** 0.5
        return scores.masked_fill(~keep[:, :, None], fill).softmax(-1) @ v

    return OwnMistake(
        "mask-rows",
        "masked",
        "the padding mask blocks queries, the rows of the scores; it belongs to the keys, the columns",
        "Real tokens still read padding, and the results of padding are NaN or a mean of everything.",
        compute,
        lambda q, k, v, keep: [(q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~keep[:, :, None], fill)],
        r"masked_fill|where|None|unsqueeze",
    )


def _both(fill: float) -> OwnMistake:
    """Rows and columns of padding are blocked."""

    def compute(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        scores: Tensor = q @ k.mT / q.shape[-1] ** 0.5
        return scores.masked_fill(~(keep[:, None] & keep[:, :, None]), fill).softmax(-1) @ v

    return OwnMistake(
        "mask-rows",
        "masked",
        "queries that are padding are blocked as well: their rows have no key left, and are NaN or a mean of "
        "everything",
        "NaN in a row that nobody reads still reaches the weights of the model, through gradients.",
        compute,
        pattern=r"&|\*|masked_fill|where",
    )


def _over_queries(fill: float) -> OwnMistake:
    """A softmax over the queries: a key that is padding is blocked for all of them."""

    def compute(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        scores: Tensor = q @ k.mT / q.shape[-1] ** 0.5
        return scores.masked_fill(~keep[:, None], fill).softmax(-2) @ v

    known = MISTAKES["softmax-queries"]
    message = "the softmax runs over the queries: columns sum to 1, and rows do not"
    return OwnMistake(known.id, "weights", message, known.impact, compute, pattern=r"softmax|sum")


_PADDED = Bank(
    _padding_case,
    lambda state: state.output[:, 0],
    mask="padding",
    last="output",
    own=tuple(
        mistake(fill) for mistake in (_padding_inverted, _rows, _both, _over_queries) for fill in (-torch.inf, -1e9)
    ),
)


def _keep(*lengths: int, tokens: int) -> Tensor:
    return torch.arange(tokens) < torch.tensor(lengths)[:, None]


PADDING_MASK = Problem(
    calls=lambda: [
        course_call(*(each[None] for each in projected()), _keep(2, tokens=3)),
        random_call("q k v keep", *draw(81, [2, 5, 3], [2, 5, 3], [2, 5, 4]), _keep(5, 3, tokens=5)),
        random_call("q k v keep", *draw(82, [3, 4, 6], [3, 4, 6], [3, 4, 6]), _keep(2, 4, 3, tokens=4)),
    ],
    right=_PADDED.right,
    variants=_PADDED.variants,
    patterns=dict.fromkeys(("mask-dropped", "mask-first-only"), r"masked_fill|where|keep"),
)
