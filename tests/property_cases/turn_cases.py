"""Steps of several sequences in turn, and a mask of steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare

STEPS = 4


class Turn(nn.Module):
    """Causal attention, twice, over (r_1, s_1, a_1, r_2, ...); keep has a number for each step."""

    def __init__(self) -> None:
        super().__init__()
        self.rewards, self.states, self.moves = nn.Linear(1, WIDTH), nn.Linear(5, WIDTH), nn.Linear(2, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))

    def repeated(self, keep: Tensor) -> Tensor:
        return keep.repeat_interleave(3, 1)

    def forward(self, rewards: Tensor, states: Tensor, actions: Tensor, keep: Tensor | None = None) -> Tensor:
        x = torch.stack((self.rewards(rewards), self.states(states), self.moves(actions)), 2).flatten(1, 2)
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        if keep is not None:
            is_itself = torch.eye(x.shape[1]).bool()
            hidden = hidden | (self.repeated(keep.bool())[:, None] == 0) & ~is_itself
        for layer in self.layers:
            q, k, v = layer(x).chunk(3, -1)
            scores = q @ k.mT / WIDTH**0.5  # here
            x = x + scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
        return x.unflatten(1, (-1, 3))[:, :, 1]


class RepeatedAsAWhole(Turn):
    def repeated(self, keep: Tensor) -> Tensor:
        return keep.repeat(1, 3)


def in_turn(kind: Any) -> Invocation:
    """A call of three sequences, which may be given a mask of steps."""
    module = kind()
    prepare(module, 1)
    widths = {"rewards": 1, "states": 5, "actions": 2}
    given = {name: drawn(2, STEPS, width, seed=seed) for seed, (name, width) in enumerate(widths.items())}
    call = Invocation(module, given, [*given], [Stream(name, "x", 0, (1,)) for name in given])
    call.masks = ["keep"]
    return call


CASES = [Case("mask-argument", RepeatedAsAWhole, Turn, in_turn, attentions=2)]
