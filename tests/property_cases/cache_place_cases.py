"""Caches that are allocated before: where a call writes the keys of its tokens, and where it reads them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from property_cases import HEADS, WIDTH, Case, of_module, of_x
from property_cases.cache_cases import TABLE, attended, projected
from regard.check.target import Invocation


class Buffers(nn.Module):
    """Keeps the keys and values of two samples, and is told at which place its tokens begin."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("cache_k", "cache_v"):
            self.register_buffer(name, torch.zeros(2, HEADS, 16, WIDTH // HEADS).double())

    def written(self, start: int) -> int:
        return start

    def read(self, end: int) -> slice:
        return slice(0, end)

    def offset(self, start: int, earlier: int) -> int:
        """By how many places the causal mask is moved."""
        return max(start, earlier)

    def forward(self, x: Tensor, start_pos: int) -> Tensor:
        q, k, v = projected(x + TABLE[start_pos : start_pos + x.shape[1]], None)
        first, read = self.written(start_pos), self.read(start_pos + x.shape[1])
        self.cache_k[:, :, first : first + x.shape[1]] = k  # here
        self.cache_v[:, :, first : first + x.shape[1]] = v
        k, v = self.cache_k[:, :, read], self.cache_v[:, :, read]
        return attended(q, k, v, self.offset(start_pos, k.shape[2] - x.shape[1]))


class WrittenOnePlaceTooFar(Buffers):
    def written(self, start: int) -> int:
        return start + 1


class WrittenOverTheLastToken(Buffers):
    def written(self, start: int) -> int:
        return max(0, start - 1)


class BeginsAtTheSecondPlace(WrittenOnePlaceTooFar):
    """Reads the empty first place as well."""

    def read(self, end: int) -> slice:
        return slice(0, end + 1)


class WithoutTheFirstPlace(WrittenOnePlaceTooFar):
    """The first place stays empty, and is not read."""

    def read(self, end: int) -> slice:
        return slice(1, end + 1)


class ReadsOnePlaceLess(Buffers):
    def read(self, end: int) -> slice:
        return slice(0, end - 1)


class ReadsEmptyPlaces(Buffers):
    def read(self, end: int) -> slice:
        return slice(0, 16)


class HidesEmptyPlaces(ReadsEmptyPlaces):
    def offset(self, start: int, earlier: int) -> int:
        return start


class NeverRead(Buffers):
    def forward(self, x: Tensor, start_pos: int) -> Tensor:
        q, k, v = projected(x + TABLE[start_pos : start_pos + x.shape[1]], None)
        self.cache_k[:, :, start_pos : start_pos + x.shape[1]] = k  # here
        self.cache_v[:, :, start_pos : start_pos + x.shape[1]] = v
        return attended(q, k, v, 0)


class ReadBehindThePrompt(NeverRead):
    """Reads its cache where there is something in it besides its own tokens."""

    def forward(self, x: Tensor, start_pos: int) -> Tensor:
        return super().forward(x, start_pos) if start_pos == 0 else Buffers.forward(self, x, start_pos)


class KeptBesideItsOwn(Buffers):
    """Reads the tokens before its own, none of the first ones', and puts its own keys and values beside them."""

    def start(self, start_pos: int) -> int:
        return start_pos

    def forward(self, x: Tensor, start_pos: int = 0) -> Tensor:
        at = self.start(start_pos)
        x = x + TABLE[at : at + x.shape[1]]  # here
        q, k, v = projected(x, None)
        self.cache_k[:, :, start_pos : start_pos + x.shape[1]] = k
        self.cache_v[:, :, start_pos : start_pos + x.shape[1]] = v
        k, v = (torch.cat([kept[:, :, :start_pos], own], 2) for kept, own in ((self.cache_k, k), (self.cache_v, v)))
        return attended(q, k, v, start_pos)


class PositionsFromZero(KeptBesideItsOwn):
    def start(self, start_pos: int) -> int:
        return 0


class ToldAllSoFar(Buffers):
    """Is told how many tokens there are, instead of where its own begin."""

    def begins(self, new: int, seq_len: int) -> int:
        return seq_len - new

    def forward(self, x: Tensor, seq_len: int | None = None) -> Tensor:
        """`seq_len` is the number of tokens so far, including those of x."""
        new = x.shape[1]
        start = self.begins(new, new if seq_len is None else seq_len)
        q, k, v = projected(x, None)
        self.cache_k[:, :, start : start + new] = k  # here
        self.cache_v[:, :, start : start + new] = v
        return attended(q, self.cache_k[:, :, : start + new], self.cache_v[:, :, : start + new], start)


class BeginsBehindAllSoFar(ToldAllSoFar):
    """Leaves a place empty between the prompt and the next token, and reads it."""

    def begins(self, new: int, seq_len: int) -> int:
        return 0 if seq_len == new else seq_len


def told_its_start(kind: type[nn.Module]) -> Invocation:
    """A call of a module whose tokens are the first."""
    call = of_x(kind())
    call.arguments["start_pos"] = 0
    return call


ANGLES = torch.outer(torch.arange(16.0), torch.tensor([1.0, 0.1])).double()
ROTATIONS = torch.polar(torch.ones_like(ANGLES), ANGLES)


class Steps(Buffers):
    """One token a call, rotated by its position."""

    def first_row(self, start: int) -> int:
        return start

    def rotated(self, x: Tensor, start: int) -> Tensor:
        first = self.first_row(start)
        table = ROTATIONS[first : first + 1]  # here
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * table).flatten(-2)

    def forward(self, x: Tensor, start_pos: int) -> Tensor:
        q, k, v = projected(x, None)
        self.cache_k[:, :, start_pos : start_pos + 1] = self.rotated(k, start_pos)
        self.cache_v[:, :, start_pos : start_pos + 1] = v
        kept = (each[:, :, : start_pos + 1] for each in (self.cache_k, self.cache_v))
        return attended(self.rotated(q, start_pos), *kept, start_pos)


class StepsAtTheBeginning(Steps):
    def first_row(self, start: int) -> int:
        return 0


def in_steps(kind: type[nn.Module]) -> Invocation:
    """A call of one token after the other."""
    return replace(told_its_start(kind), in_steps=True, steps_from="start_pos", positional=[])


CASES = [
    Case("cache-positions", StepsAtTheBeginning, Steps, in_steps),
    Case("cache-places", WrittenOnePlaceTooFar, Buffers, told_its_start),
    Case("cache-places", WrittenOverTheLastToken, Buffers, told_its_start),
    Case("cache-places", BeginsAtTheSecondPlace, WithoutTheFirstPlace, told_its_start),
    Case("cache-places", ReadsOnePlaceLess, Buffers, told_its_start),
    Case("cache-places", ReadsEmptyPlaces, HidesEmptyPlaces, told_its_start),
    Case("cache-places", BeginsBehindAllSoFar, ToldAllSoFar, of_module),
    Case("cache-positions", PositionsFromZero, KeptBesideItsOwn, of_module),
    Case("cache-places", NeverRead, ReadBehindThePrompt, told_its_start),
]
