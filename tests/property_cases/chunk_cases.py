"""Queries in chunks, to save memory."""

from __future__ import annotations

import torch
from torch import Tensor

from property_cases import Case, of_q_k_v


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


CASES = [Case("chunks-joined", places_in_the_chunk, places_in_the_sequence, of_q_k_v)]
