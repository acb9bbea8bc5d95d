"""The next token from logits: `Argmax` for `Greedy`, `Sampler` for `Sample`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard._shapes import Float
from regard.decoding import Greedy, Sample


class Argmax:
    """`Greedy`: the token with the largest logit."""

    def __call__(
        self, logits: Float[Tensor, "rows vocab_size"], texts: Sequence[Sequence[int]], rows: Sequence[int]
    ) -> list[int]:
        """The next token of each row."""
        next_tokens: list[int] = logits.argmax(dim=-1).tolist()
        return next_tokens


class Sampler:
    """`Sample`: a token sampled with each row's own random number generator."""

    def __init__(self, strategy: Sample, batch_size: int) -> None:
        self.strategy = strategy
        seed_generator = torch.Generator()
        seed_generator.manual_seed(torch.initial_seed() if strategy.seed is None else strategy.seed)
        if strategy.seed is None:
            seed_generator = torch.default_generator
        # The seed of a row does not depend on the batch size.
        seeds = [int(torch.randint(2**62, (), generator=seed_generator)) for _ in range(batch_size)]
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(
        self, logits: Float[Tensor, "rows vocab_size"], texts: Sequence[Sequence[int]], rows: Sequence[int]
    ) -> list[int]:
        """The next token of each row.

        Args:
            logits: of the rows.
            texts: the tokens of each row so far, with the prompt.
            rows: the indices of these rows in the batch.
        """
        probabilities, tokens = sampling_distribution(logits, self.strategy, texts)
        # In float64, so that 50,000 rounding errors do not make the last token impossible.
        cumulative = probabilities.double().cumsum(dim=-1)
        uniform = torch.cat([torch.rand(1, generator=self.generators[row], dtype=torch.float64) for row in rows])
        index = torch.searchsorted(cumulative, (uniform.to(cumulative.device) * cumulative[:, -1])[:, None], right=True)
        next_tokens: list[int] = tokens.gather(-1, index.clamp(max=tokens.shape[-1] - 1))[:, 0].tolist()
        return next_tokens


TokenSelector = Argmax | Sampler


def token_selector(strategy: Greedy | Sample, batch_size: int) -> TokenSelector:
    """The token selector of a strategy."""
    return Sampler(strategy, batch_size) if isinstance(strategy, Sample) else Argmax()


def sampling_distribution(
    logits: Float[Tensor, "rows vocab_size"], strategy: Sample, texts: Sequence[Sequence[int]]
) -> tuple[Float[Tensor, "rows tokens"], Tensor]:
    """The probabilities that a token is sampled with, and the tokens, the likeliest first.

    The columns are the tokens that the strategy allows; a row that allows fewer than another has zeros at its end.
    """
    if strategy.repetition_penalty != 1:
        logits = _penalize_repetition(logits, strategy.repetition_penalty, texts)
    logits = logits / strategy.temperature
    vocab_size = logits.shape[-1]
    top_k = vocab_size if strategy.top_k is None else min(strategy.top_k, vocab_size)
    # 1 means every token: a sum of rounded probabilities may reach 1 before the last token.
    top_p = None if strategy.top_p == 1 else strategy.top_p
    if top_k == vocab_size and top_p is None and strategy.min_p is None:
        return logits.softmax(dim=-1), torch.arange(vocab_size, device=logits.device).expand_as(logits)
    logits, tokens = logits.topk(top_k, dim=-1)
    probabilities = logits.softmax(dim=-1)
    if top_p is not None:
        # The token that reaches top_p is allowed as well.
        before = probabilities.cumsum(dim=-1) - probabilities
        logits = logits.masked_fill(before >= top_p, -torch.inf)
        probabilities = logits.softmax(dim=-1)
    if strategy.min_p is not None:
        logits = logits.masked_fill(probabilities < strategy.min_p * probabilities[:, :1], -torch.inf)
        probabilities = logits.softmax(dim=-1)
    return probabilities, tokens


def _penalize_repetition(logits: Tensor, penalty: float | int, texts: Sequence[Sequence[int]]) -> Tensor:
    logits = logits.clone()
    for row, text in zip(logits, texts, strict=True):
        repeated = torch.tensor(sorted(set(text)), device=logits.device)
        scores = row[repeated]
        row[repeated] = torch.where(scores < 0, scores * penalty, scores / penalty)
    return logits
