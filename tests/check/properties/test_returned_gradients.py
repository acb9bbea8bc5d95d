"""Functions that return gradients beside their output, of the gradient of that output which they are given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


def forward(q, k, v):  # type: ignore[no-untyped-def]
    """The output, and the weights."""
    scores = q @ k.T / np.sqrt(q.shape[1])
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p = p / p.sum(axis=-1, keepdims=True)
    return p @ v, p


def with_gradients(q, k, v, dout):  # type: ignore[no-untyped-def]
    """Attention of q (n, d), k (m, d) and v (m, d); its output, and the gradients of q, k and v."""
    out, p = forward(q, k, v)
    dp = dout @ v.T
    ds = p * (dp - (dp * p).sum(axis=-1, keepdims=True)) / np.sqrt(q.shape[1])
    return out, ds @ k, ds.T @ q, p.T @ dout


def lacks_the_scale(q, k, v, dout):  # type: ignore[no-untyped-def]
    """Attention of q (n, d), k (m, d) and v (m, d); its output, and the gradients of q, k and v."""
    out, p = forward(q, k, v)
    dp = dout @ v.T
    ds = p * (dp - (dp * p).sum(axis=-1, keepdims=True))
    return out, ds @ k, ds.T @ q, p.T @ dout


def lacks_the_sum(q, k, v, grad_output):  # type: ignore[no-untyped-def]
    """Attention of q (n, d), k (m, d) and v (m, d); its output, and the gradients of q, k and v."""
    out, p = forward(q, k, v)
    ds = p * (grad_output @ v.T) / np.sqrt(q.shape[1])
    return out, ds @ k, ds.T @ q, p.T @ grad_output


def in_torch(q, k, v, grad_out):  # type: ignore[no-untyped-def]
    """Attention of q (b, n, d), k (b, m, d) and v (b, m, d); its output, and the gradients of q, k and v."""
    p = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    dp = grad_out @ v.mT
    ds = p * (dp - (dp * p).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
    return p @ v, ds @ k, ds.mT @ q, p.mT @ grad_out


def of_the_keys_alone(q, k, v, grad_out):  # type: ignore[no-untyped-def]
    """Attention of q (b, n, d), k (b, m, d) and v (b, m, d); its output, and the gradients of q, k and v."""
    p = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    dp = grad_out @ v.mT
    ds = p * (dp - (dp * p).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
    return p @ v, torch.zeros_like(q) + ds.sum(-1, keepdim=True), ds.mT @ q, p.mT @ grad_out


def backward_alone(q, k, v, dout):  # type: ignore[no-untyped-def]
    """The gradients of q (n, d), k (m, d) and v (m, d)."""
    return with_gradients(q, k, v, dout)[1:]


@pytest.mark.parametrize("right", [with_gradients, in_torch])
def test_gradients_that_are_the_slopes_of_the_output_are_right(right: Any) -> None:
    assert check(right).verdict == "right"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lacks_the_scale, "the gradient of q and of k that it returns is 3.464 times its slope"),
        (lacks_the_sum, "the gradient of q and of k that it returns is not its slope"),
        (of_the_keys_alone, "the gradient of q that it returns is not its slope"),
    ],
)
def test_gradients_that_are_something_else_are_wrong(wrong: Any, said: str) -> None:
    (cause,) = check(wrong).causes
    assert cause.id == "gradients-as-slopes"
    assert said in str(check(wrong))


def test_of_a_backward_pass_alone_nothing_is_said() -> None:
    assert check(backward_alone).verdict == "undetermined"
