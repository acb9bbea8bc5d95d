"""Attention to another sequence of as many tokens: what is read is added to what asked for it."""

from __future__ import annotations

from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, of_module
from regard.check.target import Invocation, Stream


class Reads(nn.Module):
    """What a memory has for each query, joined with the query."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, query: Tensor, memory: Tensor) -> Tensor:
        normed: Tensor = self.norm(self.joined(self.read(query, memory), query, memory))
        return normed

    def read(self, query: Tensor, memory: Tensor) -> Tensor:
        q, k, v = (
            part(each).unflatten(-1, (2, -1)).transpose(1, 2)
            for part, each in ((self.q, query), (self.k, memory), (self.v, memory))
        )
        read = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        joined: Tensor = self.out(read.transpose(1, 2).flatten(2))
        return joined

    def joined(self, read: Tensor, query: Tensor, memory: Tensor) -> Tensor:
        return read + query


class AddedToTheMemory(Reads):
    def joined(self, read: Tensor, query: Tensor, memory: Tensor) -> Tensor:
        return read + memory


class AddedToBoth(Reads):
    def joined(self, read: Tensor, query: Tensor, memory: Tensor) -> Tensor:
        return read + memory + query


class JoinedNormed(Reads):
    def joined(self, read: Tensor, query: Tensor, memory: Tensor) -> Tensor:
        normed: Tensor = (read + memory) * self.norm(query).sigmoid()
        return normed


class Guided(Reads):
    """A guide asks what is to be changed, which goes on."""

    def forward(self, guide: Tensor, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(self.read(guide, x) + x)
        return normed


class ReadsItself(Reads):
    """Unless it is handed a memory."""

    def forward(self, query: Tensor, memory: Tensor | None = None) -> Tensor:
        if memory is None:
            memory = query
        return super().forward(query, memory)


class AddedToItsMemory(ReadsItself):
    def joined(self, read: Tensor, query: Tensor, memory: Tensor) -> Tensor:
        return read + memory


class AddedToWhatItIsTold(Reads):
    """Nothing is read from what the output is added to."""

    def forward(self, query: Tensor, identity: Tensor | None = None) -> Tensor:
        if identity is None:
            identity = query
        normed: Tensor = self.norm(self.read(query, query) + identity)
        return normed


def of_both(kind: type) -> Invocation:
    """A call with two sequences of as many tokens."""
    call = of_module(kind)
    one, other = ("guide", "x") if kind is Guided else ("query", "memory")
    given = {one: drawn(2, 4, WIDTH, seed=0), other: drawn(2, 4, WIDTH, seed=1)}
    streams = [Stream(one, "x", 0, (1,)), Stream(other, "context", 0, (1,))]
    return Invocation(call.target, given, [one, other], streams)


def of_one(kind: type) -> Invocation:
    """A call with the queries alone."""
    call = of_module(kind)
    return Invocation(call.target, {"query": drawn(2, 4, WIDTH, seed=0)}, ["query"], [Stream("query", "x", 0, (1,))])


CASES = [
    Case("residual-of-the-input", AddedToTheMemory, Reads, of_both, has_line=False),
    Case("residual-of-the-input", AddedToTheMemory, AddedToBoth, of_both, has_line=False),
    Case("residual-of-the-input", AddedToTheMemory, JoinedNormed, of_both, has_line=False),
    Case("residual-of-the-input", AddedToTheMemory, Guided, of_both, has_line=False),
    Case("residual-of-the-input", AddedToItsMemory, ReadsItself, of_one, has_line=False),
    Case("residual-of-the-input", AddedToItsMemory, AddedToWhatItIsTold, of_one, has_line=False),
]
