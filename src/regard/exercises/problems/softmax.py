"""Exercise 08: the softmax, written out."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.recipes.case import Case
from regard.exercises.problems.attention import qkv_case
from regard.exercises.problems.bank import Bank
from regard.exercises.problems.numbers import course_call, draw, projected, random_call
from regard.exercises.problems.problem import OwnMistake, Problem, no_trail

__all__ = ["SOFTMAX"]


def _weights_case(scores: Tensor) -> Case:
    """A case whose scaled scores are the given ones: the keys are the unit vectors."""
    keys = torch.eye(scores.shape[-1], dtype=torch.float64)
    return qkv_case(scores * scores.shape[-1] ** 0.5, keys, keys)


def _divided(powers: Tensor, over: str) -> Tensor:
    """Powers divided by sums of rows, of columns, or of the whole matrix."""
    sums = {"rows": powers.sum(-1, keepdim=True), "columns": powers.sum(0), "all": powers.sum()}
    return powers / sums[over]


def _shifted(scores: Tensor, by: str) -> Tensor:
    """Scores less something that is meant to keep exp finite."""
    shifts = {
        "nothing": torch.zeros_like(scores),
        "row": scores.amax(-1, keepdim=True),
        "column": scores.amax(0),
        "matrix": scores.max(),
        "mean": scores.mean(-1, keepdim=True),
    }
    return scores - shifts[by]


def _by_hand(id_: str, message: str, impact: str, pattern: str, *, by: str, over: str = "rows") -> OwnMistake:
    """A mistake of a softmax that is written out."""
    return OwnMistake(
        id_,
        "weights",
        message,
        impact,
        lambda scores: _divided(_shifted(scores, by).exp(), over),
        no_trail,
        pattern,
    )


_MAXIMUM = "One query with large scores makes the rows of other queries NaN."
_COLUMNS = "the rows are divided by the sums of columns: the sum runs over the queries"
_UNSAFE = (
    _by_hand(
        "softmax-overflow",
        "scores of 1000 give NaN: exp(1000) is infinite, and infinity / infinity is no number",
        "One large score makes a whole row NaN, and then the model.",
        r"exp",
        by="nothing",
    ),
    _by_hand(
        "softmax-overflow",
        "the mean of a row is subtracted: a score far above it still makes exp infinite, and the row NaN",
        "One large score makes a whole row NaN, and then the model.",
        r"mean",
        by="mean",
    ),
    _by_hand(
        "softmax-maximum",
        "the maximum that is subtracted is that of the whole matrix: in a row far below it every exp is 0, and 0 / 0 "
        "is no "
        "number",
        _MAXIMUM,
        r"max",
        by="matrix",
    ),
    _by_hand(
        "softmax-maximum",
        "the maximum that is subtracted is that of each column; a row needs its own",
        _MAXIMUM,
        r"max",
        by="column",
    ),
    *(
        _by_hand("softmax-denominator", _COLUMNS, "Rows do not sum to 1.", r"sum", by=by, over="columns")
        for by in ("row", "nothing")
    ),
    _by_hand(
        "softmax-all",
        "all powers are divided by one sum, that of the whole matrix: a row sums to less than 1",
        "Queries compete with each other; outputs shrink with the length.",
        r"sum",
        by="nothing",
        over="all",
    ),
    OwnMistake(
        "softmax-sigmoid",
        "weights",
        "each score goes through a sigmoid by itself: keys do not compete, and rows do not sum to 1",
        "Outputs grow with the length of the text.",
        lambda scores: scores.sigmoid(),
        pattern=r"sigmoid",
    ),
)
_SOFTMAX = Bank(
    _weights_case,
    lambda state: state.weights[0, 0],
    last="weights",
    pairs=False,
    without=("scale-after-softmax", "output-mean"),
    own=(
        *_UNSAFE,
        OwnMistake(
            "softmax-base",
            "weights",
            "the base of the powers is 2; the softmax takes e",
            "Weights are closer to uniform than they should be.",
            lambda scores: (scores * torch.tensor(2.0).double().log()).softmax(-1),
            pattern=r"2\b|exp2",
        ),
        OwnMistake(
            "softmax-l2",
            "weights",
            "the powers are divided by the length of the row; weights have to sum to 1",
            "Rows sum to more than 1.",
            lambda scores: torch.nn.functional.normalize((scores - scores.amax(-1, keepdim=True)).exp(), dim=-1),
            pattern=r"norm",
        ),
        OwnMistake(
            "softmax-largest",
            "weights",
            "the largest score of each row gets the weight 1, all others 0",
            "No gradient tells which other key would have been better.",
            lambda scores: torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).double(),
            pattern=r"argmax|max",
        ),
    ),
)


def _large() -> Tensor:
    """Rows of scores around 1000, 0 and -1000, and one with all of them."""
    scores = draw(44, [4, 4])[0]
    scores[:3] += torch.tensor([[1000.0], [0.0], [-1000.0]], dtype=torch.float64)
    scores[3] += torch.tensor([0.0, 1000.0, 0.0, -1000.0], dtype=torch.float64)
    return scores


def _course_scores() -> Tensor:
    q, k, _ = projected()
    scaled: Tensor = q @ k.T / q.shape[-1] ** 0.5
    return scaled


SOFTMAX = Problem(
    calls=lambda: [
        course_call(_course_scores(), setting="the course's scaled scores"),
        random_call("scores", *draw(41, [3, 5])),
        random_call("scores", *draw(42, [4, 4])),
        random_call("scores", _large()),
    ],
    right=_SOFTMAX.right,
    variants=_SOFTMAX.variants,
    patterns={"softmax-queries": r"sum|max|softmax", "softmax-all": r"sum\(\)"},
)
