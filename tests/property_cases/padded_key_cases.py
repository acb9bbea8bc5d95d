"""Keys that are padded in: to fill windows, a sequence of fixed length, or a cache."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from property_cases import WIDTH, Case, drawn, joined, of_module, of_q_k_v, of_x, split

LONGEST = 7
W_Q, W_K, W_V = (drawn(WIDTH, WIDTH, seed=seed) / 3 for seed in range(3))
B_K, B_V = (drawn(WIDTH, seed=seed) for seed in (3, 4))
REGISTERS = drawn(2, WIDTH, seed=5)


def _of_fixed_length(x: Tensor, *, is_masked: bool) -> Tensor:
    """The tokens, padded to the longest sequence, and what is cut off again."""
    count = x.shape[1]
    padded = pad(x, (0, 0, 0, LONGEST - count))
    scores = split(padded @ W_Q) @ split(padded @ W_K + B_K).mT / 2  # here
    if is_masked:
        scores = scores.masked_fill(torch.arange(LONGEST) >= count, -torch.inf)
    return joined(scores.softmax(-1) @ split(padded @ W_V + B_V))[:, :count]


def padding_of_a_fixed_length_seen(x: Tensor) -> Tensor:
    return _of_fixed_length(x, is_masked=False)


def padding_of_a_fixed_length_hidden(x: Tensor) -> Tensor:
    return _of_fixed_length(x, is_masked=True)


def registers(x: Tensor) -> Tensor:
    """Two learned tokens, which all see, and which differ."""
    keys = torch.cat([REGISTERS.expand(len(x), -1, -1), x], 1)
    return joined((split(x @ W_Q) @ split(keys @ W_K).mT / 2).softmax(-1) @ split(keys @ W_V))


def zeros_before_each_window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A query sees its own key and the one before it, or zeros where there is none."""
    k, v = (pad(each, (0, 0, 1, 0)).unfold(-2, 2, 1).mT for each in (k, v))
    scores = (q[..., None, :] @ k.mT / 2).squeeze(-2)  # here
    return (scores.softmax(-1)[..., None, :] @ v).squeeze(-2)


def one_key_of_zeros(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A sink."""
    k, v = (pad(each, (0, 0, 0, 1)) for each in (k, v))
    return (q @ k.mT / 2).softmax(-1) @ v


class _Cached(nn.Module):
    """Attention over a cache that is allocated once."""

    def __init__(self) -> None:
        super().__init__()
        self.w_q, self.w_k, self.w_v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(4, LONGEST, WIDTH), persistent=False)

    def attended(self, x: Tensor, places: int) -> Tensor:
        samples, count, _ = x.shape
        self.keys[:samples, :count] = self.w_k(x)
        self.values[:samples, :count] = self.w_v(x)
        k, v = (split(each[:samples, :places]) for each in (self.keys, self.values))
        scores = split(self.w_q(x)) @ k.mT / 2  # here
        return joined(scores.softmax(-1) @ v)


class EmptyPlacesSeen(_Cached):
    def forward(self, x: Tensor) -> Tensor:
        return self.attended(x, LONGEST)


class FilledPlacesSeen(_Cached):
    def forward(self, x: Tensor) -> Tensor:
        return self.attended(x, x.shape[1])


CASES = [
    Case("padding-hidden", padding_of_a_fixed_length_seen, padding_of_a_fixed_length_hidden, of_x),
    Case("padding-hidden", padding_of_a_fixed_length_seen, registers, of_x),
    Case("padding-hidden", zeros_before_each_window, one_key_of_zeros, of_q_k_v),
    Case("padding-hidden", EmptyPlacesSeen, FilledPlacesSeen, of_module),
]
