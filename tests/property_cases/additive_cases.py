"""Additive scores, and what is done with their weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, of_module, of_x_and_context

W_Q, W_K = drawn(WIDTH, WIDTH, seed=30), drawn(WIDTH, WIDTH, seed=31)
VECTOR = drawn(WIDTH, 1, seed=32)


def scores_of_both(x: Tensor, context: Tensor) -> Tensor:
    """Of one query and one key each."""
    return ((x @ W_Q)[:, :, None] + (context @ W_K)[:, None]).tanh() @ VECTOR


def of_both(x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    weights = scores_of_both(x, context).softmax(2)
    return (weights * context[:, None]).sum(2), weights[..., 0]


def of_the_query(x: Tensor, context: Tensor) -> Tensor:
    one = ((x @ W_Q)[:, :, None].tanh() @ VECTOR).squeeze(-1)  # here
    weights = one.expand(-1, -1, context.shape[1]).softmax(2)
    return weights @ context


def divided_by_the_values(x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    weights = scores_of_both(x, context).softmax(2)
    return (weights / context[:, None]).sum(2), weights[..., 0]  # here


def averaged_over_the_keys(x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    weights = scores_of_both(x, context).softmax(2)
    return (weights * context[:, None]).mean(2), weights[..., 0]  # here


def averaged_and_multiplied(x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    weights = scores_of_both(x, context).softmax(2)
    return (weights * context[:, None]).mean(2) * context.shape[1], weights[..., 0]


class OfNeighbors(nn.Module):
    """Graph attention of all with all."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH, bias=False)
        self.vector = nn.Parameter(torch.zeros(2 * WIDTH, 1))

    def forward(self, x: Tensor) -> Tensor:
        made = self.project(x)
        of_query, of_key = self.halves()
        scores = nn.functional.leaky_relu(made @ of_query + (made @ of_key).mT, 0.2)
        return scores.softmax(-1) @ made

    def halves(self) -> tuple[Tensor, Tensor]:
        return self.vector[:WIDTH], self.vector[WIDTH:]


class OfOneHalf(OfNeighbors):
    def halves(self) -> tuple[Tensor, Tensor]:
        return self.vector[WIDTH:], self.vector[WIDTH:]


class ReadAndGated(nn.Module):
    """A learned number times what was read, beside the input."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed, self.gate = nn.Linear(WIDTH, 3 * WIDTH), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mixed(x).chunk(3, -1)
        return self.gated((q @ k.mT / WIDTH**0.5).softmax(-1) @ v) + x

    def gated(self, read: Tensor) -> Tensor:
        return read * self.gate


class GateOverWhatWasRead(ReadAndGated):
    def gated(self, read: Tensor) -> Tensor:
        return self.gate / read  # here


class WithASigmoidByHand(ReadAndGated):
    """A divisor that is made of what was read, and is never 0; and the length of what was read."""

    def gated(self, read: Tensor) -> Tensor:
        return self.gate / (1 + (-read).exp()) + read / read.norm(dim=-1, keepdim=True)


CASES = [
    Case("weights-kept", averaged_over_the_keys, of_both, of_x_and_context),
    Case("weights-kept", averaged_over_the_keys, averaged_and_multiplied, of_x_and_context),
    Case("key-in-the-weights", of_the_query, of_both, of_x_and_context),
    Case("values-summed", divided_by_the_values, of_both, of_x_and_context),
    Case("projection-used", OfOneHalf, OfNeighbors, of_module, has_line=False),
    Case("values-summed", GateOverWhatWasRead, ReadAndGated, of_module),
    Case("values-summed", GateOverWhatWasRead, WithASigmoidByHand, of_module),
]
