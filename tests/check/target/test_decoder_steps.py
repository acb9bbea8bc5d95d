"""Steps of a recurrent decoder are called with one id and one state of each sample, beside encoder states."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from target_calls import first
from torch import Tensor, nn

from regard.check import check
from regard.check.conclusion import conclude
from regard.check.sandbox.torch_settings import UserSettings
from regard.check.target import invocations
from regard.check.target.decoder_steps import (
    LAST_TOKEN,
    documented_step_roles,
    documented_vector_roles,
    step_roles,
)

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class OfCells(nn.Module):
    """A cell goes on from what the state read of the encoder."""

    def __init__(self, vocab: int = 20, hidden: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.w_q, self.w_k, self.energy = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 1)
        self.cell, self.out = nn.GRUCell(2 * hidden, hidden), nn.Linear(hidden, vocab)

    def forward(self, word: Tensor, state: Tensor, encoded: Tensor) -> tuple[Tensor, Tensor]:
        read = self.read(state, encoded)
        state = self.cell(torch.cat([self.embed(word), read], -1), state)
        return self.out(state), state

    def read(self, state: Tensor, encoded: Tensor) -> Tensor:
        energies = self.energy(torch.tanh(self.w_q(state)[:, None] + self.w_k(encoded)))[..., 0]
        return (energies.softmax(-1)[..., None] * encoded).sum(1)


class OfLayers(OfCells):
    """The state has an axis of layers in front, and the word one of a step behind it."""

    def __init__(self, vocab: int = 20, hidden: int = 12) -> None:
        super().__init__(vocab, hidden)
        del self.cell
        self.layer = nn.GRU(2 * hidden, hidden, batch_first=True)

    def forward(self, word: Tensor, state: Tensor, encoded: Tensor) -> tuple[Tensor, Tensor]:
        read = self.read(state[-1], encoded)
        made, state = self.layer(torch.cat([self.embed(word), read[:, None]], -1), state)
        return self.out(made), state


class TokensFirst(nn.Module):
    """Luong et al. 2015: the new state asks, by the dot score; samples are the second axis of all."""

    def __init__(self, vocab: int = 20, hidden: int = 12, axis: int = 0) -> None:
        super().__init__()
        self.axis = axis
        self.embed, self.layer = nn.Embedding(vocab, hidden), nn.GRU(hidden, hidden)
        self.mixed, self.out = nn.Linear(2 * hidden, hidden), nn.Linear(hidden, vocab)

    def forward(self, word: Tensor, last_hidden: Tensor, encoder_outputs: Tensor) -> tuple[Tensor, Tensor]:
        made, state = self.layer(self.embed(word), last_hidden)
        weights = (made * encoder_outputs).sum(-1).softmax(self.axis)  # (steps, samples)
        read = (weights[..., None] * encoder_outputs).sum(0)
        return self.out(self.mixed(torch.cat([read, made[0]], -1)).tanh()), state


def verdict(kind: type[nn.Module], **args: Any) -> str:
    return conclude(kind, args, UserSettings()).report().verdict


@pytest.mark.parametrize(
    ("kind", "word", "state"),
    [(OfCells, (2,), (2, 12)), (OfLayers, (2, 1), (1, 2, 12)), (TokensFirst, (1, 2), (1, 2, 12))],
)
def test_a_step_is_called_with_one_word_and_one_state(
    kind: type[nn.Module], word: tuple[int, ...], state: tuple[int, ...]
) -> None:
    given, asked, _ = next(invocations(kind(), args={})).arguments.values()
    assert (given.shape, asked.shape) == (word, state)
    assert not given.is_floating_point()
    assert verdict(kind) in ("right", "different by design")


def test_a_mistake_in_a_step_is_found() -> None:
    assert verdict(TokensFirst, axis=1) == "wrong"


def test_three_arguments_are_needed_and_a_recurrent_layer() -> None:
    named = {"word": True, "state": False, "encoded": False}
    assert step_roles(named, "self.cell = nn.GRUCell(4, 4)") == {"word": LAST_TOKEN, "state": "x", "encoded": "context"}
    assert step_roles(named, "self.layer = nn.Linear(4, 4)") == {}
    assert step_roles({"word": True, "state": False}, "nn.LSTM(4, 4)") == {}


class SaysWhatTheyAre(nn.Module):
    """Intra-temporal attention (Paulus et al. 2017, equation 3), whose arguments have names of their own."""

    def __init__(self, hidden: int = 12, axis: int = 1) -> None:
        super().__init__()
        self.axis = axis
        self.w_h, self.w_s, self.v = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 1)

    def forward(self, st_hat: Tensor, h: Tensor, sum_temporal: Tensor) -> tuple[Tensor, Tensor]:
        """Attend.

        :param st_hat: decoder hidden state at the current time step
        :param h: encoder hidden states
        :param sum_temporal: summation of attention weights from previous decoder steps
        """
        scores = self.v(torch.tanh(self.w_h(h) + self.w_s(st_hat).unsqueeze(1)))[..., 0].exp()
        weights = scores / sum_temporal
        weights = weights / weights.sum(self.axis, keepdim=True)
        return torch.bmm(weights.unsqueeze(1), h)[:, 0], sum_temporal + scores


def test_a_documentation_says_which_argument_is_the_state() -> None:
    st_hat, h, past = next(invocations(SaysWhatTheyAre(), args={})).arguments.values()
    assert (st_hat.shape, h.shape, past.shape) == ((2, 12), (2, h.shape[1], 12), (2, h.shape[1]))
    assert verdict(SaysWhatTheyAre) == "different by design"
    assert verdict(SaysWhatTheyAre, axis=0) == "wrong"


def test_one_state_and_one_encoder_are_needed_to_be_said() -> None:
    source = 'def f(a, b):\n    """Attend.\n\n    a: decoder hidden state\n    b: encoder {}\n    """'
    assert documented_step_roles("ab", source.format("outputs")) == {"a": "x", "b": "context"}
    assert documented_step_roles("ab", source.format("mask")) == {}


class AsksHids(nn.Module):
    """A vector of each sample asks the states of an encoder (fairseq's LSTM)."""

    def __init__(self, input_embed_dim: int, source_embed_dim: int) -> None:
        super().__init__()
        self.input_proj = nn.Linear(input_embed_dim, source_embed_dim)

    def forward(self, input: Tensor, source_hids: Tensor) -> Tensor:
        # input: bsz x input_embed_dim
        # source_hids: srclen x bsz x source_embed_dim
        scores = (source_hids * self.input_proj(input).unsqueeze(0)).sum(2)
        return (scores.softmax(0).unsqueeze(2) * source_hids).sum(0)


def test_a_comment_says_which_of_two_is_one_vector_of_each_sample() -> None:
    call = first(AsksHids)
    assert call.arguments["input"].ndim == 2
    assert call.arguments["source_hids"].ndim == 3
    assert check(AsksHids).verdict == "different by design"


@pytest.mark.parametrize(
    ("letters", "roles"),
    [
        (("B x D", "T x B x D"), {"x": "x", "hids": "context"}),
        (("B x T x D", "B x S x D"), {}),
        (("T x D", "S x D"), {}),
    ],
)
def test_two_sequences_are_two_sequences(letters: tuple[str, str], roles: dict[str, str]) -> None:
    source = f"def f(x, hids):\n    # x: {letters[0]}\n    # hids: {letters[1]}\n    return x"
    assert documented_vector_roles({"x": "x", "hids": None}, source) == roles
