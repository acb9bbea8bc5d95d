"""Decoders that read one token after the other with a recurrent layer, and attend with its state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, of_x_and_context
from regard.check.target import Invocation
from regard.check.target.preparation import prepare


class GoesOnFromItsState(nn.Module):
    """What the state asks for is put beside each token."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.begin = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.cell = nn.GRU(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        state, states = self.begin(context.mean(1)), []
        for token in x.unbind(1):
            scores = self.query(state)[:, None] @ context.mT / WIDTH**0.5
            read = (scores.softmax(-1) @ context)[:, 0]
            state = self.step(torch.cat([token, read], -1)[None], state[None])[-1]
            states.append(state)
        return torch.stack(states, 1)

    def step(self, given: Tensor, state: Tensor) -> Tensor:
        return self.cell(given, state)[1]


class BeginsAtEachToken(GoesOnFromItsState):
    def step(self, given: Tensor, state: Tensor) -> Tensor:
        return self.cell(given)[1]  # here


class BeginsWithZeros(GoesOnFromItsState):
    """The first state is one of zeros, and no other."""

    def __init__(self) -> None:
        super().__init__()
        del self.begin

    def begin(self, mean: Tensor) -> Tensor:
        return torch.zeros_like(mean)


def of_steps(kind: type[nn.Module]) -> Invocation:
    """A call of a decoder with tokens and what it attends to."""
    module = kind()
    prepare(module, 1)
    return of_x_and_context(module)


CASES = [
    Case("state-handed-on", BeginsAtEachToken, GoesOnFromItsState, of_steps, attentions=3),
    Case("state-handed-on", BeginsAtEachToken, BeginsWithZeros, of_steps, attentions=3),
]
