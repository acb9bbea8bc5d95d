"""Calls with further axes and masks: nodes and time steps, vectors of each query and key, and masks named masking."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class OfNodes(nn.Module):
    """Samples, heads, time steps and nodes: the nodes of one time step are its tokens."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, heads, times, nodes, width = query.shape  # noqa: RUF059
        scores = query @ key.transpose(-1, -2) / width**0.5
        return scores.softmax(-1) @ value


class ScaledByTheNodes(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, heads, times, nodes, width = query.shape  # noqa: RUF059
        scores = query @ key.transpose(-1, -2) / nodes**0.5
        return scores.softmax(-1) @ value


class OfTimes(nn.Module):
    """The same with the time steps of one node as tokens."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, heads, times, nodes, width = query.shape  # noqa: RUF059
        scores = torch.einsum("bhtnd,bhsnd->bhnts", query, key) / width**0.5
        return torch.einsum("bhnts,bhsnd->bhtnd", scores.softmax(-1), value)


def test_of_two_axes_behind_the_heads_one_is_of_tokens() -> None:
    assert check(OfNodes).verdict == "right"
    assert check(OfTimes).verdict == "right"
    found = check(ScaledByTheNodes)
    assert found.verdict == "wrong"
    assert "not by 1/sqrt(" in str(found)


class OfPairs(nn.Module):
    """Shaw et al. 2018, equations 3 and 4, with the vectors of each query and key handed over."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, a_key: Tensor, a_value: Tensor) -> Tensor:
        scores = query @ key.transpose(1, 2)
        scores = scores + torch.bmm(query.permute(1, 0, 2), a_key.transpose(1, 2)).transpose(0, 1)
        weights = (scores / query.shape[-1] ** 0.5).softmax(-1)
        return weights @ value + torch.bmm(weights.permute(1, 0, 2), a_value).transpose(0, 1)


class OfPairsOfKeys(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, a_key: Tensor, a_value: Tensor) -> Tensor:
        scores = query @ key.transpose(1, 2)
        scores = scores + torch.bmm(query.permute(1, 0, 2), a_key.transpose(1, 2)).transpose(0, 1)
        weights = (scores / query.shape[-1] ** 0.5).softmax(-1)
        return weights @ value + torch.bmm(weights.permute(1, 0, 2), a_key).transpose(0, 1)


def test_vectors_of_each_query_and_key_are_of_no_sample() -> None:
    assert check(OfPairs).verdict == "different by design"


def test_vectors_for_the_keys_do_not_stand_in_for_those_for_the_values() -> None:
    found = check(OfPairsOfKeys)
    assert found.verdict == "wrong"
    assert "no line of it reads it" in str(found)


class OfItems(nn.Module):
    """As SASRec's: padding is set to zero, and the mask of the attention is the caller's."""

    hides = True

    def __init__(self, hidden_dim: int = 16) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(hidden_dim, 4, batch_first=True)

    def forward(self, x: Tensor, attention_masking: Tensor, pad_masking: Tensor) -> Tensor:
        masking = attention_masking if self.hides else None
        return self.attention(x, x, x, attn_mask=masking)[0] * ~pad_masking.unsqueeze(-1)


class OfAllItems(OfItems):
    hides = False


def test_what_is_named_masking_is_a_mask() -> None:
    found = check(OfItems)
    assert found.verdict == "right"
    assert "pad_masking sets what is returned of a token to zero" in str(found)
    assert check(OfAllItems).verdict == "wrong"


class OfFifty(nn.Module):
    """A row of items is as long as it was made for; a key is hidden where the mask says so and it is zeros."""

    def __init__(self, d: int = 16, n: int = 50) -> None:
        super().__init__()
        self.n, self.q, self.k, self.v = n, *(nn.Linear(d, d) for _ in range(3))

    def hidden(self, keys: Tensor) -> Tensor:
        return (keys.sum(-1) == 0).to(keys.dtype) * -1e30

    def forward(self, queries: Tensor, keys: Tensor, padding_mask: Tensor) -> Tensor:
        scores = self.q(queries) @ self.k(keys).mT / queries.shape[-1] ** 0.5
        hidden = self.hidden(keys).unsqueeze(1).repeat(1, self.n, 1)
        scores = torch.where(padding_mask.unsqueeze(1).repeat(1, self.n, 1).eq(0), hidden, scores)
        return scores.softmax(-1) @ self.v(keys)


class OfFiftyUnhidden(OfFifty):
    def forward(self, queries: Tensor, keys: Tensor, padding_mask: Tensor) -> Tensor:
        scores = self.q(queries) @ self.k(keys).mT / queries.shape[-1] ** 0.5
        zeros = padding_mask.unsqueeze(1).repeat(1, self.n, 1).eq(0)
        return torch.where(zeros, torch.zeros_like(scores), scores).softmax(-1) @ self.v(keys)


def test_a_mask_may_hide_the_keys_that_are_zeros_of_rows_of_one_length() -> None:
    found = check(OfFifty)
    assert found.verdict in ("right", "different by design")
    assert "where their tokens are zeros" in str(found)
    assert check(OfFiftyUnhidden).verdict == "wrong"
