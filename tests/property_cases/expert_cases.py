"""Mixtures of experts beside an attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, of_module, of_x
from property_cases.output_cases import attention


class Experts(nn.Module):
    """Each token goes to two of three experts."""

    count = 3

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, self.count, bias=False)
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(self.count)])

    def forward(self, x: Tensor) -> Tensor:
        x = x + attention(x)
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(2, -1)  # here
        weights = weights / weights.sum(-1, keepdim=True)
        return x + self.mixed(tokens, weights, chosen).view(x.shape)

    def mixed(self, tokens: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        mixed = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            if len(token):
                read = expert(tokens[token]) * self.weights_of(weights, token, place)[:, None]
                mixed = mixed.index_add(0, token, read)
        return mixed

    def weights_of(self, weights: Tensor, token: Tensor, place: Tensor) -> Tensor:
        return weights[token, place]


class WeightsOfTheFirst(Experts):
    def weights_of(self, weights: Tensor, token: Tensor, place: Tensor) -> Tensor:
        return weights[token, 0]


class ByTheRest(Experts):
    """Two weights that sum to 1: one tells the other."""

    def weights_of(self, weights: Tensor, token: Tensor, place: Tensor) -> Tensor:
        return torch.where(place == 0, weights[token, 0], 1 - weights[token, 0])


class FullExperts(Experts):
    """What is chosen second finds no place, and the first expert takes the whole token."""

    def mixed(self, tokens: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        first = [self.experts[int(number)](token) for number, token in zip(chosen[:, 0], tokens, strict=True)]
        return torch.stack(first) * weights[:, :1]


def routed(x: Tensor, axis: int) -> Tensor:
    gates = (x @ drawn(WIDTH, 3, seed=5)).softmax(axis)
    values = torch.einsum("btd,edf,bte->btf", x, drawn(3, WIDTH, WIDTH, seed=6), gates)
    later = torch.ones(x.shape[1], x.shape[1]).triu(1) > 0
    scores = (x @ drawn(WIDTH, WIDTH, seed=7)) @ x.mT / WIDTH**0.5
    return scores.masked_fill(later, -torch.inf).softmax(-1) @ values


def routed_over_the_tokens(x: Tensor) -> Tensor:
    """A token's output depends on itself and earlier tokens only."""
    return routed(x, 1)


def routed_over_the_experts(x: Tensor) -> Tensor:
    """A token's output depends on itself and earlier tokens only."""
    return routed(x, -1)


CASES = [
    *(
        Case("experts-by-their-weights", WeightsOfTheFirst, right, of_module)
        for right in (Experts, ByTheRest, FullExperts)
    ),
    Case("later-tokens-hidden", routed_over_the_tokens, routed_over_the_experts, of_x, has_line=False, attentions=2),
]
