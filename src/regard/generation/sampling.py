"""From logits to the next token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard._shapes import Float
from regard.generation.strategy import Greedy, Sample

__all__ = ["Chooser", "Draws", "Likeliest", "chooser_of", "distribution"]


class Likeliest:
    """`Greedy`: the token with the largest logit."""

    def __call__(
        self, logits: Float[Tensor, "rows vocab_size"], texts: Sequence[Sequence[int]], rows: Sequence[int]
    ) -> list[int]:
        """The next token of each row."""
        chosen: list[int] = logits.argmax(dim=-1).tolist()
        return chosen


class Draws:
    """`Sample`: a token drawn, each row from a stream of random numbers of its own."""

    def __init__(self, strategy: Sample, rows: int) -> None:
        self.strategy = strategy
        first = torch.Generator()
        first.manual_seed(torch.initial_seed() if strategy.seed is None else strategy.seed)
        if strategy.seed is None:
            first = torch.default_generator
        # The seed of a row does not hang on how many rows there are.
        seeds = [int(torch.randint(2**62, (), generator=first)) for _ in range(rows)]
        self.streams = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(
        self, logits: Float[Tensor, "rows vocab_size"], texts: Sequence[Sequence[int]], rows: Sequence[int]
    ) -> list[int]:
        """The next token of each row.

        Args:
            logits: of the rows.
            texts: what stands in each row so far, prompt included.
            rows: which rows these are of those that the draws began with.
        """
        probabilities, tokens = distribution(logits, self.strategy, texts)
        # In float64, so that 50,000 roundings do not add up to a token that can never be drawn.
        reached = probabilities.double().cumsum(dim=-1)
        drawn = torch.cat([torch.rand(1, generator=self.streams[row], dtype=torch.float64) for row in rows])
        at = torch.searchsorted(reached, (drawn.to(reached.device) * reached[:, -1])[:, None], right=True)
        chosen: list[int] = tokens.gather(-1, at.clamp(max=tokens.shape[-1] - 1))[:, 0].tolist()
        return chosen


Chooser = Likeliest | Draws


def chooser_of(strategy: Greedy | Sample, rows: int) -> Chooser:
    """What chooses by a strategy, for so many rows."""
    return Draws(strategy, rows) if isinstance(strategy, Sample) else Likeliest()


def distribution(
    logits: Float[Tensor, "rows vocab_size"], strategy: Sample, texts: Sequence[Sequence[int]]
) -> tuple[Float[Tensor, "rows tokens"], Tensor]:
    """The probabilities that a token is drawn by, and which tokens they are of, the likeliest first.

    Only the tokens that are left are there, up to the longest row of the batch; the others have 0.
    """
    if strategy.repetition_penalty != 1:
        logits = _penalised(logits, strategy.repetition_penalty, texts)
    logits = logits / strategy.temperature
    kept = logits.shape[-1] if strategy.top_k is None else min(strategy.top_k, logits.shape[-1])
    # All of them, also the last one: added up, probabilities may reach 1 before it.
    top_p = None if strategy.top_p == 1 else strategy.top_p
    if kept == logits.shape[-1] and top_p is None and strategy.min_p is None:
        every = torch.arange(logits.shape[-1], device=logits.device).expand_as(logits)
        return logits.softmax(dim=-1), every
    logits, tokens = logits.topk(kept, dim=-1)
    probabilities = logits.softmax(dim=-1)
    if top_p is not None:
        # The first token that reaches the share still belongs to it.
        before = probabilities.cumsum(dim=-1) - probabilities
        logits = logits.masked_fill(before >= top_p, -torch.inf)
        probabilities = logits.softmax(dim=-1)
    if strategy.min_p is not None:
        logits = logits.masked_fill(probabilities < strategy.min_p * probabilities[:, :1], -torch.inf)
        probabilities = logits.softmax(dim=-1)
    return probabilities, tokens


def _penalised(logits: Tensor, penalty: float | int, texts: Sequence[Sequence[int]]) -> Tensor:
    logits = logits.clone()
    for row, text in zip(logits, texts, strict=True):
        there = torch.tensor(sorted(set(text)), device=logits.device)
        scores = row[there]
        row[there] = torch.where(scores < 0, scores * penalty, scores / penalty)
    return logits
