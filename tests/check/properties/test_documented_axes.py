"""A documentation that names the order of axes is held against the call; one that leaves it open is not."""

from __future__ import annotations

import pytest
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
        "mask: (batch, seq, seq)",
        "key_padding_mask: (batch, seq)",
        "returns weights of shape (batch, heads, seq)",
        "Attention across the batch of x (batch, seq, dim).",
    ],
)
def test_what_leaves_the_order_open_promises_nothing(text: str) -> None:
    assert not documented(text)
