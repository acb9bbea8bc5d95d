"""Streams beside one another: the content and the queries of XLNet, and the trajectory of a decision transformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn
from property_cases.relation_cases import attended
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare

STEPS = 4


def each_stream_itself(query: Tensor, content: Tensor) -> tuple[Tensor, Tensor]:
    """Two-stream attention, as in XLNet."""
    return attended(query, query, 1), attended(content, content, 4)


def both_read_the_content(query: Tensor, content: Tensor) -> tuple[Tensor, Tensor]:
    """Two-stream attention, as in XLNet."""
    return attended(query, content, 1), attended(content, content, 4)


def two_pictures(query: Tensor, content: Tensor) -> tuple[Tensor, Tensor]:
    """Two-stream attention: each picture is read by itself."""
    return attended(query, query, 1), attended(content, content, 4)


def of_streams(function: object) -> Invocation:
    """A call of two sequences that are both asking."""
    given = {"query": drawn(2, 4, WIDTH, seed=0), "content": drawn(2, 4, WIDTH, seed=1)}
    return Invocation(function, given, [*given], [Stream(name, "x", 0, (1,)) for name in given])


class Decides(nn.Module):
    """Causal attention over (r_1, s_1, a_1, r_2, s_2, a_2, ...)."""

    place = 1

    def __init__(self) -> None:
        super().__init__()
        self.rewards, self.states, self.moves = nn.Linear(1, WIDTH), nn.Linear(5, WIDTH), nn.Linear(2, WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.to_state, self.to_action = nn.Linear(WIDTH, 5), nn.Linear(WIDTH, 2)

    def forward(self, states: Tensor, actions: Tensor, returns_to_go: Tensor) -> tuple[Tensor, Tensor]:
        tokens = torch.stack((self.rewards(returns_to_go), self.states(states), self.moves(actions)), 2)
        x = tokens.flatten(1, 2)
        scores = self.q(x) @ self.k(x).mT / WIDTH**0.5
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        x = x + scores.masked_fill(hidden, -torch.inf).softmax(-1) @ self.v(x)
        h = x.unflatten(1, (-1, 3))
        next_states, next_actions = self.to_state(h[:, :, 2]), self.to_action(h[:, :, self.place])
        return next_states, next_actions


class CopiesTheAction(Decides):
    """The same over (r_1, s_1, a_1, r_2, s_2, a_2, ...)."""

    place = 2

    def forward(self, states: Tensor, actions: Tensor, returns_to_go: Tensor) -> tuple[Tensor, Tensor]:
        next_states, next_actions = super().forward(states, actions, returns_to_go)
        return next_states, next_actions


class PredictsTheAction(Decides):
    """The same over (r_1, s_1, a_1, r_2, s_2, a_2, ...), of actions alone."""

    def predict_action(self, h: Tensor) -> Tensor:
        return self.to_action(h)

    def forward(self, states: Tensor, actions: Tensor, returns_to_go: Tensor) -> Tensor:  # type: ignore[override]
        tokens = torch.stack((self.rewards(returns_to_go), self.states(states), self.moves(actions)), 2)
        x = tokens.flatten(1, 2)
        scores = self.q(x) @ self.k(x).mT / WIDTH**0.5
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        x = x + scores.masked_fill(hidden, -torch.inf).softmax(-1) @ self.v(x)
        return self.predict_action(x.unflatten(1, (-1, 3))[:, :, self.place])


class PredictsTheActionItHas(PredictsTheAction):
    """The same over (r_1, s_1, a_1, r_2, s_2, a_2, ...), of actions alone."""

    place = 2


def of_a_trajectory(kind: type[nn.Module]) -> Invocation:
    """A call of states, actions and returns."""
    module = kind()
    prepare(module, 1)
    widths = {"states": 5, "actions": 2, "returns_to_go": 1}
    given = {name: drawn(2, STEPS, width, seed=width) for name, width in widths.items()}
    return Invocation(module, given, [*given], [Stream(name, "x", 0, (1,)) for name in given])


CASES = [
    Case("keys-of-the-content", each_stream_itself, both_read_the_content, of_streams, attentions=2),
    Case("keys-of-the-content", each_stream_itself, two_pictures, of_streams, attentions=2),
    Case("action-to-come", CopiesTheAction, Decides, of_a_trajectory, has_line=False),
    Case("action-to-come", PredictsTheActionItHas, PredictsTheAction, of_a_trajectory, has_line=False),
]
