"""Additive scores, and what is done with their weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, of_module, of_x_and_context
from regard.check.target import Invocation
from regard.check.target.preparation import prepare

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


class OfStates(nn.Module):
    """c_i = sum_j a_ij h_j with a_ij = softmax_j(v . tanh(W s_i + U h_j)) (Bahdanau et al., 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.of_s, self.of_h = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.score = nn.Linear(WIDTH, 1, bias=False)

    def forward(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        keys = self.of_h(context)
        weights = self.weights(self.of_s(x), keys)
        return weights @ self.states(context, keys), weights  # here

    def weights(self, queries: Tensor, keys: Tensor) -> Tensor:
        scores: Tensor = self.score((queries[:, :, None] + keys[:, None]).tanh())
        return scores.squeeze(-1).softmax(-1)

    def states(self, context: Tensor, keys: Tensor) -> Tensor:
        return context


class OfProjectedStates(OfStates):
    r"""Additive attention.

    .. math::
        e_{ij} = v^T \tanh(W_a s_{i-1} + U_a h_j) \\
        c_i = \sum_{j} \alpha_{ij} h_j
    """

    def states(self, context: Tensor, keys: Tensor) -> Tensor:
        return keys


class OfKeysAsIsSaid(OfProjectedStates):
    """Additive attention that reads the projected states.

    scores: v . tanh(W s_i + U h_j); output: sum_j a_ij k_j, with k_j = U h_j
    """


class OfKeysWithoutAFormula(OfProjectedStates):
    """Additive attention (Bahdanau et al., 2015)."""


class OfValuesOfTheirOwn(OfStates):
    """c_i = sum_j a_ij h_j with a_ij = softmax_j(v . tanh(W s_i + U h_j)); h_j are annotations of the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.annotate = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x, self.annotate(context))


class ByProducts(OfProjectedStates):
    """score(s_i, h_j) = s_i^T W h_j; context_i = sum_j weights_ij * h_j."""

    def weights(self, queries: Tensor, keys: Tensor) -> Tensor:
        return (queries @ keys.mT / WIDTH**0.5).softmax(-1)


def of_states(kind: Callable[[], nn.Module]) -> Invocation:
    module = kind()
    prepare(module, 1)
    return of_x_and_context(module)


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
    *(
        Case("values-as-documented", wrong, right, of_states)
        for wrong, right in (
            (OfProjectedStates, OfStates),
            (OfProjectedStates, OfKeysAsIsSaid),
            (OfProjectedStates, OfKeysWithoutAFormula),
            (ByProducts, OfValuesOfTheirOwn),
        )
    ),
]
