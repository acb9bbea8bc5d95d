"""Steps of a decoder with an LSTM: its state is two tensors, of which the first asks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from target_calls import first
from torch import Tensor, nn

from regard.check import check
from regard.check.target.decoder_steps import is_state_of_two

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

RIGHT = ("right", "different by design")
State = tuple[Tensor, Tensor]


class Additive(nn.Module):
    def __init__(self, in_dim: int, hidden_size: int, axis: int = 1) -> None:
        super().__init__()
        self.axis, self.energy = axis, nn.Linear(hidden_size, 1)
        self.of_keys, self.of_state = nn.Linear(in_dim, hidden_size), nn.Linear(hidden_size, hidden_size)

    def read(self, asking: Tensor, features: Tensor) -> Tensor:
        energies = self.energy(torch.tanh(self.of_keys(features) + self.of_state(asking)[:, None]))
        return (energies.softmax(self.axis) * features).sum(1)


class OfACell(Additive):
    """The character before comes as a row of ones and zeros; the state goes to the cell as it came."""

    def __init__(self, in_dim: int, hidden_size: int, classes: int, axis: int = 1) -> None:
        super().__init__(in_dim, hidden_size, axis)
        self.cell = nn.LSTMCell(in_dim + classes, hidden_size)

    def forward(self, prev_state: State, features: Tensor, onehot: Tensor) -> State:
        return self.cell(torch.cat([self.read(prev_state[0], features), onehot], 1), prev_state)


class TakenApart(Additive):
    def __init__(self, in_dim: int, hidden_size: int, classes: int, axis: int = 1) -> None:
        super().__init__(in_dim, hidden_size, axis)
        self.decoder = nn.LSTMCell(in_dim + classes, hidden_size)

    def forward(self, last_hidden: State, features: Tensor, one_hots: Tensor) -> State:
        hidden, cell = last_hidden
        return self.decoder(torch.cat([self.read(hidden, features), one_hots], 1), (hidden, cell))


class OfAnId(Additive):
    """An LSTM of layers; the word before is looked up."""

    def __init__(self, in_dim: int, hidden_size: int, classes: int, axis: int = 1) -> None:
        super().__init__(in_dim, hidden_size, axis)
        self.table = nn.Embedding(classes, in_dim)
        self.layer = nn.LSTM(2 * in_dim, hidden_size, batch_first=True)

    def forward(self, word: Tensor, hidden: State, encoder_outputs: Tensor) -> tuple[Tensor, State]:
        read = self.read(hidden[0][-1], encoder_outputs)
        made, hidden = self.layer(torch.cat([self.table(word), read[:, None]], -1), hidden)
        return made, hidden


SIZES: dict[str, Any] = {"in_dim": 16, "hidden_size": 12, "classes": 5}


@pytest.mark.parametrize("kind", [OfACell, TakenApart])
def test_a_state_of_two_tensors_asks_by_the_first(kind: type[nn.Module]) -> None:
    call = first(kind, **SIZES)
    assert [tuple(each.shape) for each in call.arguments.values()] == [(2, 12), (2, 12), (2, 7, 16), (2, 5)]
    assert [each.role for each in call.streams] == ["x", "context"]
    assert check(kind, args=SIZES).verdict in RIGHT


@pytest.mark.parametrize("kind", [OfACell, TakenApart])
def test_weights_over_samples_are_found_in_such_a_step(kind: type[nn.Module]) -> None:
    assert check(kind, args={**SIZES, "axis": 0}).verdict == "wrong"


def test_the_state_of_layers_has_an_axis_of_layers() -> None:
    call = first(OfAnId, **SIZES)
    assert [tuple(each.shape) for each in call.arguments.values()] == [(2, 1), (1, 2, 12), (1, 2, 12), (2, 7, 16)]
    assert check(OfAnId, args=SIZES).verdict in RIGHT


def test_a_state_of_other_layers_is_one_tensor() -> None:
    class Gated(OfACell):
        def __init__(self) -> None:
            super().__init__(**SIZES)
            self.cell = nn.GRUCell(21, 12)  # type: ignore[assignment]

    source = "self.cell(x, prev_state)"
    assert is_state_of_two(OfACell(**SIZES), source, "prev_state")
    assert not is_state_of_two(OfACell(**SIZES), source, "features")
    assert not is_state_of_two(Gated(), source, "prev_state")
