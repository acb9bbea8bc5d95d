"""A documentation that names the order of axes is held against the call; one that leaves it open is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from property_cases.token_cases import of_tokens_first, tokens_first_as_documented
from regard.check.properties.outputs.documented_axes import documented_axes_findings


def documented(text: str) -> bool:
    """Whether a call with tokens first is a violation of a documentation."""

    def attention(x: Tensor) -> Tensor:
        return tokens_first_as_documented(x)

    attention.__doc__ = text
    return bool(documented_axes_findings(of_tokens_first(attention)))


@pytest.mark.parametrize(
    "text",
    [
        "Takes x (batch, seq_len, dim).",
        "x: (B, T, C)",
        "x [batch_size x seq_len x d_model]",
        "x (N, L, E)",
        "(b, n_tokens, d)",
        "x: (B, N, C)",
        "x: (batch, h*w, channels), y: (1, h*w, channels)",
        "x (bs, num_patches, width)",
        "x: [B, Lq, D]",
        "x: (batch, seq_len, dim), texts padded to one length",
        "x (B, T, C), padded with zeros",
    ],
)
def test_an_order_that_is_named_is_a_promise(text: str) -> None:
    assert documented(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Attention.",
        "x (seq, batch, dim)",
        "x (batch, seq, dim), or (seq, batch, dim)",
        "x (N, B, E)",
        "x (HW, B, C)",
        "x (h * w, batch, channels)",
        "x (N, M, C)",
        "mask: (batch, seq, seq)",
        "key_padding_mask: (batch, seq)",
        "padding (batch, seq, 1)",
        "padded (batch, seq, 1): True where x is",
        "returns weights of shape (batch, heads, seq)",
        "Attention across the batch of x (batch, seq, dim).",
    ],
)
def test_what_leaves_the_order_open_promises_nothing(text: str) -> None:
    assert not documented(text)


def unpacked(x: Tensor) -> Tensor:
    B, N, _C = x.shape
    return tokens_first_as_documented(x).reshape(B, N, -1)


def commented(x: Tensor) -> Tensor:
    # x: (batch, patches, width)
    return tokens_first_as_documented(x)


def told_in_its_signature(
    x: Tensor,  # (B, T, C)
) -> Tensor:
    return tokens_first_as_documented(x)


def paired_though_it_is_the_batch(x: Tensor) -> Tensor:
    B, T, _C = x.shape
    scores = torch.einsum("qtd,ktd->qkt", x, x) / 8**0.5
    return torch.einsum("qkt,ktd->qtd", scores.softmax(1), x).reshape(B, T, -1)


@pytest.mark.parametrize("function", [unpacked, commented, told_in_its_signature, paired_though_it_is_the_batch])
def test_code_that_calls_the_first_axis_the_batch_means_it(function: Any) -> None:
    (found,) = documented_axes_findings(of_tokens_first(function))
    assert "calls the first axis of x the batch" in found.message


def unpacked_with_tokens_first(x: Tensor) -> Tensor:
    T, B, _C = x.shape
    return tokens_first_as_documented(x).reshape(T, B, -1)


def of_what_it_returns(x: Tensor) -> Tensor:
    read = tokens_first_as_documented(x).transpose(0, 1)  # (B, T, C)
    x = read + x.transpose(0, 1)  # (B, T, C)
    return x.transpose(0, 1)


def of_weights(x: Tensor) -> Tensor:
    # weights of x: (B, T, S)
    return tokens_first_as_documented(x)


def unpacked_when_it_was_turned(x: Tensor) -> Tensor:
    y, x = x, x.transpose(0, 1)
    x = x.transpose(0, 1).transpose(0, 1)
    B, T, _C = x.shape
    return tokens_first_as_documented(y).reshape(T, B, -1)


def across_samples(x: Tensor) -> Tensor:
    """Attention between the samples of a table."""
    B, N, _C = x.shape
    return tokens_first_as_documented(x).reshape(B, N, -1)


def of_nodes_in_each_step(x: Tensor) -> Tensor:
    N, T, _C = x.shape
    scores = torch.einsum("qtd,ktd->qkt", x, x) / 8**0.5
    return torch.einsum("qkt,ktd->qtd", scores.softmax(1), x).reshape(N, T, -1)


@pytest.mark.parametrize(
    "function",
    [
        unpacked_with_tokens_first,
        of_what_it_returns,
        of_weights,
        unpacked_when_it_was_turned,
        across_samples,
        of_nodes_in_each_step,
    ],
)
def test_code_that_names_the_axes_of_something_else_says_nothing(function: Any) -> None:
    assert documented_axes_findings(of_tokens_first(function)) == []
