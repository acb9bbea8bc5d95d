"""Many steps of a decoder, each with an attention: the first and the last are judged, and it is said."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from property_cases import WIDTH, of_module
from regard.check.properties.analyze import analyze


class Captioner(nn.Module):
    """Twelve steps, whose states ask the tokens of the input."""

    def __init__(self, wrong_from: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(WIDTH, WIDTH)
        self.ask = nn.Linear(WIDTH, WIDTH)
        self.wrong_from = wrong_from

    def forward(self, x: Tensor) -> Tensor:
        state, states = x.new_zeros(len(x), WIDTH), []
        for step in range(12):
            scores = torch.einsum("bd,btd->bt", self.ask(state), x) / WIDTH**0.5
            weights = scores.softmax(0 if step >= self.wrong_from else 1)
            state = self.cell(torch.einsum("bt,btd->bd", weights, x), state)
            states.append(state)
        return torch.stack(states, 1)


@pytest.mark.parametrize(("wrong_from", "is_wrong"), [(12, False), (11, True), (0, True)])
def test_of_many_steps_the_first_and_the_last_are_judged(wrong_from: int, is_wrong: bool) -> None:
    analysis = analyze(of_module(lambda: Captioner(wrong_from)))
    assert bool(analysis.violations) == is_wrong
    assert [each.message for each in analysis.findings if each.property == "steps-of-a-loop"] == [
        "12 attentions were run, most of them in a loop; of a loop the first 3 steps and the last are judged"
    ]


class InPieces(nn.Module):
    """Two tokens at a time, which ask the tokens before them and one another."""

    def __init__(self, *, itself: bool = True) -> None:
        super().__init__()
        self.qkv, self.itself = nn.Linear(WIDTH, 3 * WIDTH), itself

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        found = []
        for begin in range(0, x.shape[1], 2):
            end = min(begin + 2, x.shape[1])
            scores = q[:, begin:end] @ k[:, :end].mT / WIDTH**0.5
            places = torch.arange(x.shape[1])
            later = places[None, :end] > places[begin:end, None] - (not self.itself and begin > 0)
            found.append(scores.masked_fill(later, -torch.inf).softmax(-1) @ v[:, :end])
        return torch.cat(found, 1)


@pytest.mark.parametrize("itself", [True])
def test_tokens_of_a_piece_are_no_queries_of_the_next_one(itself: bool) -> None:
    analysis = analyze(of_module(lambda: InPieces(itself=itself)))
    assert [each.property for each in analysis.violations] == ([] if itself else ["mask-pattern"])
