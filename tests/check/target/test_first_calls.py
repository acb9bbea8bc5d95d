"""Calls of code that keeps keys itself, of tables of relative positions, and of masks that have one form alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class Writes(nn.Module):
    """Attention that writes keys and values into what it keeps, several tokens at once."""

    def __init__(self, dim: int, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.wide = heads, dim // heads
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.register_buffer("keys", torch.zeros(4, 64, heads, self.wide), persistent=False)
        self.register_buffer("values", torch.zeros(4, 64, heads, self.wide), persistent=False)

    def forward(self, x: Tensor, start_pos: int, mask: Tensor | None) -> Tensor:
        b, n, _ = x.shape
        end = start_pos + n
        q, k, v = (each(x).view(b, n, self.heads, self.wide) for each in (self.q, self.k, self.v))
        self.keys[:b, start_pos:end] = k
        self.values[:b, start_pos:end] = v
        scores = torch.einsum("bqhd,bkhd->bqhk", q, self.keys[:b, :end]) / math.sqrt(self.wide)
        if mask is not None:
            scores = self.hidden(scores, mask)
        return self.out(torch.einsum("bqhk,bkhd->bqhd", scores.softmax(-1), self.values[:b, :end]).flatten(2))

    def hidden(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores + mask.unsqueeze(1)


class Late(Writes):
    """The same, whose mask comes after the softmax of nothing: it is scaled down, and hides no key."""

    def hidden(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores + mask.unsqueeze(1).clamp(min=-1.0)


class Disentangled(nn.Module):
    """Scores of contents, and of contents with the positions that lie between them (DeBERTa)."""

    share = 3

    def __init__(self, dim: int, heads: int = 2, span: int = 16) -> None:
        super().__init__()
        self.heads, self.span = heads, span
        self.q, self.k, self.v, self.of_keys, self.of_queries = (nn.Linear(dim, dim) for _ in range(5))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def forward(self, tokens: Tensor, mask: Tensor | None = None, rel: Tensor | None = None) -> Tensor:
        n = tokens.shape[1]
        q, k, v = (self.split(each(tokens)) for each in (self.q, self.k, self.v))
        far = self.span
        rel = rel[self.span - far : self.span + far, :]
        places = torch.arange(n)
        index = (places[:, None] - places + far).clamp(0, 2 * far - 1).expand(*q.shape[:2], n, n)
        behind = (q @ self.split(self.of_keys(rel)).mT).gather(-1, index)
        before = (self.split(self.of_queries(rel)) @ k.mT).gather(-2, index)
        scores = (q @ k.mT + behind + before) / math.sqrt(self.share * q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return (self.norm(scores) @ v).transpose(1, 2).flatten(2)

    def norm(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)


class OverQueries(Disentangled):
    def norm(self, scores: Tensor) -> Tensor:
        return scores.softmax(-2)


class DisentangledFirstRows(Disentangled):
    """The same table, read from its first row, and by queries alone."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        del self.of_queries

    def forward(self, tokens: Tensor, mask: Tensor | None = None, rel: Tensor | None = None) -> Tensor:
        n = tokens.shape[1]
        q, k, v = (self.split(each(tokens)) for each in (self.q, self.k, self.v))
        rel = rel[0 : self.span * 2, :]
        places = torch.arange(n)
        index = (places[:, None] - places + self.span).clamp(0, 2 * self.span - 1).expand(*q.shape[:2], n, n)
        scores = q @ k.mT + (q @ self.split(self.of_keys(rel)).mT).gather(-1, index)
        scores = scores / math.sqrt(2 * q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return (self.norm(scores) @ v).transpose(1, 2).flatten(2)


class Slopes(nn.Module):
    """Biases that are made of the first mask.

    It is only defined for causal masks.
    """

    def __init__(self, dim: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.bias = heads, None
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        assert mask.shape == (x.shape[1], x.shape[1])
        q, k, v = (each(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        slopes = 2.0 ** (-8.0 / self.heads * torch.arange(1, self.heads + 1))
        if self.bias is None or self.bias.shape[-1] < x.shape[1]:
            self.bias = mask.long().cumsum(-1) * slopes[:, None, None].to(x)
        scores = q @ k.mT / q.shape[-1] ** 0.5 + self.bias[:, : x.shape[1], : x.shape[1]]
        weights = scores.masked_fill(mask == 0, -torch.inf).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class AnyMask(Slopes):
    """Biases that are made of the first mask, whatever it is."""


def told(kind: type[nn.Module]) -> str:
    return str(check(kind, args={"dim": 32}).verdict)


def test_a_first_call_begins_at_the_first_place_of_what_a_module_keeps() -> None:
    report = check(Writes, args={"dim": 32})
    assert report.verdict not in ("wrong", "undetermined"), report
    assert "sink" not in str(report)
    assert told(Late) == "wrong"


def test_a_table_of_relative_positions_has_as_many_rows_as_the_code_reads() -> None:
    for kind in (Disentangled, DisentangledFirstRows):
        report = check(kind, args={"dim": 32})
        assert report.verdict not in ("wrong", "undetermined"), report
    assert told(OverQueries) == "wrong"


def test_code_for_causal_masks_alone_is_asked_about_no_other_mask_before() -> None:
    assert told(Slopes) != "wrong"
    assert told(AnyMask) == "wrong"
