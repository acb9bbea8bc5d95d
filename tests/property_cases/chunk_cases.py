"""Queries in chunks, to save memory, and linear attention in chunks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, joined, of_q_k_v, of_x, split
from regard.check.target import Invocation


def _in_chunks(q: Tensor, k: Tensor, v: Tensor, size: int, *, from_the_start: bool) -> Tensor:
    outputs = []
    for start in range(0, q.shape[-2], size):
        part = q[..., start : start + size, :]
        rows = torch.arange(part.shape[-2]) + (start if from_the_start else 0)
        later = torch.arange(k.shape[-2]) > rows[:, None]
        scores = part @ k.mT / 2  # here
        outputs.append(scores.masked_fill(later, -torch.inf).softmax(-1) @ v)
    return torch.cat(outputs, -2)


def places_in_the_chunk(q: Tensor, k: Tensor, v: Tensor, query_chunk_size: int = 32) -> Tensor:
    """Each chunk counts its queries anew."""
    return _in_chunks(q, k, v, query_chunk_size, from_the_start=False)


def places_in_the_sequence(q: Tensor, k: Tensor, v: Tensor, query_chunk_size: int = 32) -> Tensor:
    return _in_chunks(q, k, v, query_chunk_size, from_the_start=True)


W_Q, W_K = (drawn(WIDTH, WIDTH, seed=seed) / 3 for seed in (80, 81))


class ChunksOfRetention(nn.Module):
    """Retention in chunks, equal to the parallel form for every chunk size."""

    def __init__(self) -> None:
        super().__init__()
        self.chunk_size = 2

    def forward(self, x: Tensor) -> Tensor:
        size, decay = self.chunk_size, torch.tensor(0.8)
        places = torch.arange(size)
        apart = places[:, None] - places
        within = decay**apart * (apart >= 0)
        state, outputs = torch.zeros(4, 4), []
        for chunk in x.split(size, 1):
            q, k, v = split(chunk @ W_Q), split(chunk @ W_K), split(chunk)
            before = q @ state  # here
            outputs.append((q @ k.mT * within) @ v + before * self.since(places)[:, None])
            state = state * decay**size + k.mT @ (v * (decay ** (size - 1 - places))[:, None])
        return joined(torch.cat(outputs, 2))

    def since(self, places: Tensor) -> Tensor:
        """By which what came before a chunk has decayed at each of its places."""
        return 0.8 ** (places + 1)


class OneStepTooLate(ChunksOfRetention):
    """Retention in chunks, equal to the parallel form for every chunk size."""

    def since(self, places: Tensor) -> Tensor:
        return 0.8**places


class ChunksAtOnce(ChunksOfRetention):
    """Linear attention, which sums up to each chunk at once."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each).unflatten(2, (-1, self.chunk_size)) for each in (x @ W_Q, x @ W_K, x))
        sums = (k.mT @ v).cumsum(2) - k.mT @ v
        within = (q @ k.mT * torch.ones(self.chunk_size, self.chunk_size).tril()) @ v
        return joined((within + q @ sums).flatten(2, 3))


class ChunksThatAreMeant(OneStepTooLate):
    """Linear attention in which a chunk does not forget what came before at its first place."""


def of_eight(kind: type[nn.Module]) -> Invocation:
    """A call of a module with four chunks."""
    return of_x(kind(), tokens=8)


CASES = [
    Case("chunks-joined", places_in_the_chunk, places_in_the_sequence, of_q_k_v),
    Case("chunks-joined", OneStepTooLate, ChunksOfRetention, of_eight, attentions=2),
    Case("chunks-joined", OneStepTooLate, ChunksAtOnce, of_eight, attentions=2),
    Case("chunks-joined", OneStepTooLate, ChunksThatAreMeant, of_eight, attentions=2),
]
