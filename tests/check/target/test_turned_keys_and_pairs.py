"""Keys that are handed over turned, and ids and vectors of two tokens each."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.check import check
from regard.check.target import invocations

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class TurnedKeys(nn.Module):
    """Scaled dot-product attention whose scale is a parameter that is learned on demand."""

    def __init__(self, d_model: int, n_heads: int, power: float = -0.5, learned: bool = False) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor((d_model // n_heads) ** power), requires_grad=learned)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """
        q: [bs x n_heads x max_q_len x d_k]
        k: [bs x n_heads x d_k x seq_len]
        v: [bs x n_heads x seq_len x d_v]
        """
        return (torch.matmul(q, k) * self.scale).softmax(-1) @ v


def test_keys_are_turned_as_the_documentation_says_and_a_number_that_never_learns_is_kept() -> None:
    given = {"d_model": 32, "n_heads": 4}
    call = next(invocations(TurnedKeys, args=given))
    assert [tuple(call.arguments[each].shape) for each in "qkv"] == [(2, 4, 5, 8), (2, 4, 8, 7), (2, 4, 7, 8)]
    assert [each.token_axes for each in call.streams] == [(2,), (3,), (2,)]
    assert check(TurnedKeys, args=given).verdict == "right"
    report = check(TurnedKeys, args={**given, "power": -1.0})
    assert (report.verdict, report.step) == ("wrong", "scaled")


class OfIntervals(nn.Module):
    """Self-attention with a learned vector for the interval between two tokens, beside keys and beside values."""

    def __init__(self, dim: int, heads: int, span: int = 5, factor: float = 1.0) -> None:
        super().__init__()
        self.heads, self.width, self.factor = heads, dim // heads, factor
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.of_keys, self.of_values = nn.Embedding(span + 1, dim), nn.Embedding(span + 1, dim)

    def forward(self, queries: Tensor, keys: Tensor, time_matrix: Tensor, attn_mask: Tensor) -> Tensor:
        size, count, _ = queries.shape
        q, k, v = (
            layer(each).view(size, count, self.heads, self.width).transpose(1, 2)
            for layer, each in ((self.q, queries), (self.k, keys), (self.v, keys))
        )
        time_k = self.of_keys(time_matrix)
        time_v = self.of_values(time_matrix)
        time_k = time_k.view(size, count, count, self.heads, self.width).permute(0, 3, 1, 2, 4)
        time_v = time_v.view(size, count, count, self.heads, self.width).permute(0, 3, 1, 2, 4)
        scores = q @ k.mT + torch.einsum("bhid,bhijd->bhij", q, time_k)
        weights = (self.factor * scores / self.width**0.5).masked_fill(attn_mask.unsqueeze(1), -1e9).softmax(-1)
        read = weights @ v + torch.einsum("bhij,bhijd->bhid", weights, time_v)
        return self.out(read.transpose(1, 2).reshape(size, count, -1))


def test_what_is_laid_out_by_two_axes_of_tokens_has_an_id_for_each_two() -> None:
    given = {"dim": 16, "heads": 4}
    call = next(invocations(OfIntervals, args=given))
    size, count, _ = call.arguments["queries"].shape
    assert call.arguments["time_matrix"].shape == (size, count, count)
    report = check(OfIntervals, args=given)
    assert report.verdict == "different by design"
    assert any("a vector for each two tokens, which is handed over" in each for each in report.conventions)
    report = check(OfIntervals, args={**given, "factor": 0.5})
    assert (report.verdict, report.step) == ("wrong", "scaled")


class OfAPairBias(nn.Module):
    """Heads last in the scores, to which a matrix of the vectors of two tokens each is added (RoseTTAFold)."""

    def __init__(self, d_model: int, d_bias: int, heads: int, axis: int = 2) -> None:
        super().__init__()
        self.heads, self.axis, self.norm = heads, axis, nn.LayerNorm(d_bias)
        self.qkv, self.to_bias = nn.Linear(d_model, 3 * d_model), nn.Linear(d_bias, heads, bias=False)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        bias = self.norm(bias)
        scores = torch.einsum("bqhd,bkhd->bqkh", q / q.shape[-1] ** 0.5, k) + self.to_bias(bias)
        return torch.einsum("bqkh,bkhd->bqhd", scores.softmax(self.axis), v).flatten(2)


def test_a_bias_that_a_layer_takes_has_a_vector_for_each_two_tokens() -> None:
    given = {"d_model": 32, "d_bias": 16, "heads": 4}
    shape = next(invocations(OfAPairBias, args=given)).arguments["bias"].shape
    assert (len(shape), shape[1] == shape[2], shape[3]) == (4, True, 16)
    assert check(OfAPairBias, args=given).verdict == "different by design"
    assert check(OfAPairBias, args={**given, "axis": 3}).verdict == "wrong"
