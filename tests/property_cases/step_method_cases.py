"""Methods for one token beside calls for whole texts, and caches that a method makes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_styles import heads_call
from property_cases import WIDTH, Case, drawn, joined, of_module, split
from regard.check.target import Invocation

State = tuple[Tensor, Tensor]


class Window(nn.Module):
    """Each token sees itself and the two before it; step() takes one token."""

    window = 3
    kept = 2

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        return joined(F.scaled_dot_product_attention(q, k, v, (distance >= 0) & (distance < self.window)))

    def step(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        if state is not None:
            k, v = (torch.cat([old[:, :, -self.kept :], new], 2) for old, new in zip(state, (k, v), strict=True))
        return joined(F.scaled_dot_product_attention(q, k, v)), (k, v)


class WindowOfOneMore(Window):
    """Each token sees itself and the two before it; step() takes one token."""

    kept = 3


class Decayed(nn.Module):
    """Sums that fade, of all tokens at once, or with init_state() one after the other."""

    is_new_decayed = False

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        return (q @ k.mT * 0.5**distance * (distance >= 0)) @ v

    def init_state(self, batch_size: int) -> Tensor:
        return torch.zeros(batch_size, WIDTH, WIDTH)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(x).chunk(3, -1)
        new = k[..., None] * v[..., None, :]
        fresh = bool((state == 0).all())
        state = new if fresh else (state + new) * 0.5 if self.is_new_decayed else state * 0.5 + new
        return (q[..., None, :] @ state).squeeze(-2), state


class NewIsDecayed(Decayed):
    """Sums that fade, of all tokens at once, or with init_state() one after the other."""

    is_new_decayed = True


@dataclass
class Shelf:
    k: Tensor
    v: Tensor
    used: int = 0


class OnAShelf(nn.Module):
    """Causal attention; with a shelf it goes on behind what lies there."""

    is_read_before = True

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def new_shelf(self, batch: int) -> Shelf:
        return Shelf(torch.zeros(batch, 2, 16, WIDTH // 2), torch.zeros(batch, 2, 16, WIDTH // 2))

    def forward(self, x: Tensor, shelf: Shelf | None = None) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        start = shelf.used if shelf is not None and self.is_read_before else 0
        if shelf is not None:
            end = shelf.used + x.shape[1]
            shelf.k[:, :, shelf.used : end], shelf.v[:, :, shelf.used : end] = k, v
            k, v, shelf.used = shelf.k[:, :, :end], shelf.v[:, :, :end], end
            start = start if self.is_read_before else end
        hidden = torch.arange(k.shape[2]) > torch.arange(start, start + x.shape[1])[:, None]
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)  # here
        return joined(scores.softmax(-1) @ v)


class StartReadAfterwards(OnAShelf):
    """Causal attention; with a shelf it goes on behind what lies there."""

    is_read_before = False


class Beams(Window):
    """A search with beams reorders what is kept."""

    def reorder_cache(self, past: dict[str, Tensor], beam_idx: Tensor) -> dict[str, Tensor]:
        return {name: each.index_select(0, beam_idx) for name, each in past.items()}


class BeamsTheOtherWayRound(Beams):
    def reorder_cache(self, past: dict[str, Tensor], beam_idx: Tensor) -> dict[str, Tensor]:
        return {name: torch.empty_like(each).index_copy_(0, beam_idx, each) for name, each in past.items()}


def written(q: Tensor, k: Tensor, v: Tensor, share: Tensor, *, is_of_the_difference: bool) -> Tensor:
    """Linear attention by the delta rule; share (batch, heads, tokens)."""
    k = F.normalize(k, dim=-1)
    memory, read = k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1]), []
    for at in range(q.shape[2]):
        old = (k[:, :, at, None] @ memory).squeeze(2)
        part = share[:, :, at, None]
        new = part * (v[:, :, at] - old) if is_of_the_difference else part * v[:, :, at] - old
        memory = memory + k[:, :, at, :, None] * new[:, :, None]
        read.append((q[:, :, at, None] @ memory).squeeze(2))
    return torch.stack(read, 2)


def share_of_the_difference(q: Tensor, k: Tensor, v: Tensor, share: Tensor) -> Tensor:
    """The delta rule."""
    return written(q, k, v, share, is_of_the_difference=True)


def share_of_the_value(q: Tensor, k: Tensor, v: Tensor, share: Tensor) -> Tensor:
    """The delta rule."""
    return written(q, k, v, share, is_of_the_difference=False)


def of_shares(function: Any) -> Invocation:
    q, k, v = (drawn(2, 2, 5, 4, seed=seed) for seed in range(3))
    call = heads_call(function, q, k, v)
    share = drawn(2, 2, 5, seed=3).sigmoid()
    return replace(call, arguments={**call.arguments, "share": share}, positional=[*call.positional, "share"])


CASES = [
    Case("rows-of-their-beams", BeamsTheOtherWayRound, Beams, of_module, has_line=False),
    Case("delta-rule", share_of_the_value, share_of_the_difference, of_shares, has_line=False),
    Case("steps-equal-whole", WindowOfOneMore, Window, of_module, has_line=False),
    Case("steps-equal-whole", NewIsDecayed, Decayed, of_module, has_line=False),
    Case("cache-equals-whole", StartReadAfterwards, OnAShelf, of_module),
]
