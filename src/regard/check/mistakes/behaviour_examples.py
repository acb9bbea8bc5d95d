"""Examples of mistakes that show in how code behaves: a few lines of torch on the course's numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.mistakes.course_numbers import (
    SECOND,
    X,
    attend,
    attention,
    attention_weights,
    course_weights,
    in_brackets,
    projected,
)
from regard.check.mistakes.worked_example import MatrixPair, WorkedExample
from regard.check.recipes.case import causal

__all__ = [
    "absolute_axes",
    "batch_mixed",
    "detached",
    "dropout_before_softmax",
    "dropout_in_eval",
    "future_leak",
    "inputs_changed",
    "stateful",
]

ONE = "one head of width 2, no mask"


def _gap(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item()


def absolute_axes() -> WorkedExample:
    """Axes counted from the front."""
    q, k, v, _ = course_weights()
    x = torch.stack((X[:2], SECOND[:2]))
    scores = (x @ q.t()) @ (x @ k.t()).transpose(0, 1) / 2**0.5
    yours = scores.softmax(1) @ (x @ v.t())
    setting = f"a batch of two, of two tokens each: the first two of X, and {in_brackets(SECOND[:2])}"
    pairs = (
        MatrixPair("scores, sample 0", scores[0], (x @ q.t() @ (x @ k.t()).mT / 2**0.5)[0], "query", "key"),
        MatrixPair("output, sample 0", yours[0], attention(x)[0], "query"),
    )
    return WorkedExample(setting, "scores", pairs, {"named": "", "batch": 2})


def _dropped() -> tuple[Tensor, Tensor]:
    """Two draws of a dropout of 0.5: 0 where a number is dropped, 2 where it stays."""
    draws = torch.tensor([[[1, 0, 1], [1, 1, 0], [0, 1, 1]], [[0, 1, 1], [1, 0, 1], [1, 0, 1]]])
    return 2.0 * draws[0].double(), 2.0 * draws[1].double()


def dropout_in_eval() -> WorkedExample:
    """Two calls in eval()."""
    q, k, v = projected()
    one, two = ((attention_weights(q, k) * draw) @ v for draw in _dropped())
    pairs = (
        MatrixPair("output of a first call in eval()", one, attend(q, k, v), "query"),
        MatrixPair("output of a second call, with the same input", two, attend(q, k, v), "query"),
    )
    return WorkedExample(f"{ONE}, a dropout of 0.5 (two draws of it)", "weights", pairs, {"number": _gap(one, two)})


def dropout_before_softmax() -> WorkedExample:
    """Dropped scores beside dropped weights."""
    q, k, v = projected()
    draw, scores = _dropped()[0], q @ k.t() / 2**0.5
    yours, right = (scores * draw).softmax(-1), scores.softmax(-1) * draw
    pairs = (
        MatrixPair("weights in train(), keys 1, 2 and 0 dropped", yours, right, "query", "key"),
        MatrixPair("output", yours @ v, right @ v, "query"),
    )
    return WorkedExample(f"{ONE}, a dropout of 0.5 (one draw of it; what stays is doubled)", "weights", pairs)


def detached() -> WorkedExample:
    """Gradients of the projections, with weights that are detached."""
    with torch.enable_grad():
        gradients = []
        for detach in (True, False):
            w_q, w_k, w_v, _ = course_weights()
            w_q.requires_grad_()
            w_v.requires_grad_()
            weights = attention_weights(X @ w_q.t(), X @ w_k.t())
            ((weights.detach() if detach else weights) @ (X @ w_v.t())).sum().backward()  # type: ignore[no-untyped-call]
            gradients.append((w_q.grad if w_q.grad is not None else torch.zeros_like(w_q), w_v.grad))
    (yours, values), (right, others) = gradients
    assert values is not None
    assert others is not None
    pairs = (
        MatrixPair("gradient of W_q, of the sum of the output", yours, right, "row", "column"),
        MatrixPair("gradient of W_v, which is right", values, others, "row", "column"),
    )
    return WorkedExample(ONE, "weights", pairs, {"what": "queries and keys through the weights"})


def inputs_changed() -> WorkedExample:
    """The caller's q."""
    q, _, _ = projected()
    return WorkedExample(ONE, "q", (MatrixPair("the caller's q after the call", q / 2**0.5, q),), {"what": "q"})


def stateful() -> WorkedExample:
    """A second call beside a first one."""
    _, w_k, w_v, _ = course_weights()
    q, k, v = projected()
    kept = torch.cat((SECOND @ w_k.t(), k)), torch.cat((SECOND @ w_v.t(), v))
    yours = attend(q, *kept)
    setting = f"{ONE}; an earlier call had {in_brackets(SECOND)}, and its keys are still there"
    pair = MatrixPair("output of the second call", yours, attend(q, k, v), "query")
    return WorkedExample(setting, "k", (pair,), {"number": _gap(yours, attend(q, k, v))})


def batch_mixed() -> WorkedExample:
    """A sample beside two others."""
    w_q, w_k, w_v, _ = course_weights()
    outputs = []
    for second in (SECOND, SECOND.flip(0)):
        x = torch.stack((X, second))
        scores = (x @ w_q.t()) @ (x @ w_k.t()).mT / 2**0.5
        outputs.append((scores.softmax(0) @ (x @ w_v.t()))[0])
    setting = (
        f"one head of width 2, a batch of two; the second sample is {in_brackets(SECOND)}, and then the same in reverse"
    )
    pairs = (
        MatrixPair("output of sample 0", outputs[0], attention(X), "query"),
        MatrixPair("output of sample 0, with the second reversed", outputs[1], attention(X), "query"),
    )
    return WorkedExample(setting, "weights", pairs, {"number": _gap(*outputs)})


def future_leak() -> WorkedExample:
    """A later token that is replaced."""
    may = causal(3, 3)[0, 0]
    other = torch.cat((X[:2], SECOND[2:]))
    yours = attention(X), attention(other)
    pairs = (
        MatrixPair("output", yours[0], attention(X, may), "query"),
        MatrixPair(
            f"output, with token 2 replaced by {in_brackets(SECOND[2])}", yours[1], attention(other, may), "query"
        ),
    )
    numbers = {"named": "its flag", "query": 0, "key": 2, "number": _gap(yours[0][0], yours[1][0])}
    return WorkedExample("one head of width 2 with a flag for a causal mask", "masked", pairs, numbers)
