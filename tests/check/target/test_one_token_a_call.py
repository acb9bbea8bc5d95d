"""What takes one token a call and is not told how many came before: it keeps them, or is handed what it returned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class KeepsTheLast(nn.Module):
    """One token (batch, 1, width) a call, which attends to the last `window` tokens, itself included."""

    def __init__(self, d_model: int = 32, n_heads: int = 2, window: int = 4) -> None:
        super().__init__()
        self.n_heads, self.window = n_heads, window
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.reset()

    def reset(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def left(self, kept: Tensor) -> Tensor:
        """What stays of the tokens where there are enough."""
        return kept[:, :, 1:]

    def joined(self, kept: Tensor | None, new: Tensor) -> Tensor:
        if kept is None:
            return new
        return torch.cat([self.left(kept) if kept.shape[2] >= self.window else kept, new], 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.view(len(x), 1, self.n_heads, -1).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        self.keys, self.values = self.joined(self.keys, k), self.joined(self.values, v)
        weights = (q @ self.keys.mT / q.shape[-1] ** 0.5).softmax(-1)
        return self.out((weights @ self.values).transpose(1, 2).reshape(len(x), 1, -1))


class KeepsTheFirst(KeepsTheLast):
    """One token (batch, 1, width) a call, which attends to the last `window` tokens, itself included."""

    def left(self, kept: Tensor) -> Tensor:
        """What stays of the tokens where there are enough."""
        return kept[:, :, :-1]


class KeepsOneTooMany(KeepsTheLast):
    """One token (batch, 1, width) a call, which attends to the last `window` tokens, itself included."""

    def joined(self, kept: Tensor | None, new: Tensor) -> Tensor:
        if kept is None:
            return new
        return torch.cat([self.left(kept) if kept.shape[2] > self.window else kept, new], 2)


class KeepsSinks(KeepsTheLast):
    """One token (batch, 1, width) a call, which attends to itself and to the first tokens: they are its sinks."""

    def left(self, kept: Tensor) -> Tensor:
        """The sinks."""
        return kept[:, :, : self.window - 1]


class IsHandedTheLast(nn.Module):
    """One token a call; it reads the last `window` tokens, itself among them."""

    def __init__(self, d_model: int = 32, n_heads: int = 4, window: int = 4) -> None:
        super().__init__()
        self.heads, self.window = n_heads, window
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def left(self, kept: Tensor) -> Tensor:
        return kept[:, :, -self.window :]

    def forward(self, x, kv_cache=None):  # type: ignore[no-untyped-def]
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if kv_cache is not None:
            k, v = torch.cat([kv_cache[0], k], 2), torch.cat([kv_cache[1], v], 2)
        k, v = self.left(k), self.left(v)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2)), (k, v)


class IsHandedAll(IsHandedTheLast):
    """It takes exactly one new token per call, which reads all before it."""

    def left(self, kept: Tensor) -> Tensor:
        return kept


class IsHandedTheFirst(IsHandedTheLast):
    """One token a call; it reads the last `window` tokens, itself among them."""

    def left(self, kept: Tensor) -> Tensor:
        return kept[:, :, : self.window]


def step(x, w_q, w_k, w_v, w_o, num_heads, cache_k=None, cache_v=None):  # type: ignore[no-untyped-def]
    """One decoding step of x (batch, 1, width); what it returns behind its output is handed to the next one."""
    b, _, d = x.shape
    q, k, v = ((x @ w).view(b, 1, num_heads, d // num_heads).transpose(1, 2) for w in (w_q, w_k, w_v))
    if cache_k is not None:
        k, v = torch.cat([cache_k, k], dim=2), torch.cat([cache_v, v], dim=2)
    weights = (q @ k.transpose(2, 3) / (d // num_heads) ** 0.5).softmax(-1)
    return (weights @ v).transpose(1, 2).reshape(b, 1, d) @ w_o, k, v


def new_values_in_front(x, w_q, w_k, w_v, w_o, num_heads, cache_k=None, cache_v=None):  # type: ignore[no-untyped-def]
    """One decoding step of x (batch, 1, width); what it returns behind its output is handed to the next one."""
    b, _, d = x.shape
    q, k, v = ((x @ w).view(b, 1, num_heads, d // num_heads).transpose(1, 2) for w in (w_q, w_k, w_v))
    if cache_k is not None:
        k, v = torch.cat([cache_k, k], dim=2), torch.cat([v, cache_v], dim=2)
    weights = (q @ k.transpose(2, 3) / (d // num_heads) ** 0.5).softmax(-1)
    return (weights @ v).transpose(1, 2).reshape(b, 1, d) @ w_o, k, v


def of_a_pair(x, w_q, w_k, w_v, past_kv=None):  # type: ignore[no-untyped-def]
    """One decoding step of x (batch, 1, width); keys and values so far come in, and go out, as a pair."""
    b, _, d = x.shape
    q, k, v = ((x @ w).view(b, 1, d) for w in (w_q, w_k, w_v))
    if past_kv is not None:
        k, v = torch.cat([past_kv[0], k], dim=1), torch.cat([past_kv[1], v], dim=1)
    return (q @ k.transpose(1, 2) / d**0.5).softmax(-1) @ v, (k, v)


def of_a_pair_unscaled(x, w_q, w_k, w_v, past_kv=None):  # type: ignore[no-untyped-def]
    """One decoding step of x (batch, 1, width); keys and values so far come in, and go out, as a pair."""
    b, _, d = x.shape
    q, k, v = ((x @ w).view(b, 1, d) for w in (w_q, w_k, w_v))
    if past_kv is not None:
        k, v = torch.cat([past_kv[0], k], dim=1), torch.cat([past_kv[1], v], dim=1)
    return (q @ k.transpose(1, 2)).softmax(-1) @ v, (k, v)


class OneTokenWithACache(nn.Module):
    """A whole text at once, or with a cache one new token, as an assertion says there alone."""

    def __init__(self, d_model: int = 32, n_heads: int = 4) -> None:
        super().__init__()
        self.heads = n_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def scaled(self, scores: Tensor) -> Tensor:
        return scores / (self.qkv.in_features // self.heads) ** 0.5

    def forward(self, x, cache=None):  # type: ignore[no-untyped-def]
        T = x.shape[1]
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            assert T == 1
            k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
        scores = self.scaled(q @ k.mT)
        if cache is None:
            scores = scores + torch.full((T, T), float("-inf")).triu(1)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)), None if cache is None else {
            "k": k,
            "v": v,
        }


class OneTokenWithACacheUnscaled(OneTokenWithACache):
    def scaled(self, scores: Tensor) -> Tensor:
        return scores


@pytest.mark.parametrize(
    "right", [KeepsTheLast, OneTokenWithACache, KeepsSinks, IsHandedTheLast, IsHandedAll, step, of_a_pair]
)
def test_steps_that_keep_what_they_are_to_keep_are_right(right: Any) -> None:
    assert check(right).verdict in ("right", "right in another layout or convention", "different by design")


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        (KeepsTheFirst, "window-as-documented"),
        (KeepsOneTooMany, "window-as-documented"),
        (IsHandedTheFirst, "mask-pattern"),
        (new_values_in_front, "value-of-the-key"),
        (of_a_pair_unscaled, "scale"),
        (OneTokenWithACacheUnscaled, "no-scale"),
    ],
)
def test_steps_that_keep_something_else_are_wrong(wrong: Any, cause: str) -> None:
    assert cause in [each.id for each in check(wrong).causes]
