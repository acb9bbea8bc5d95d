"""Decoders whose queries are learned: of which sample a query is, the keys beside it tell."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, drawn
from regard.check.properties.analysis import Analysis
from regard.check.properties.analyze import analyze
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare


class Detector(nn.Module):
    """Learned queries ask the tokens of an encoder, in two layers, tokens first."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, batch_first=True)
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(WIDTH, 2, 2 * WIDTH) for _ in range(2))
        self.queries = nn.Parameter(torch.randn(5, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        memory = self.ordered(self.encoder(x))
        read = self.queries[:, None].repeat(1, memory.shape[1], 1)
        for layer in self.decoder:
            read = layer(read, memory)
        return read.transpose(0, 1)

    def ordered(self, memory: Tensor) -> Tensor:
        return memory.transpose(0, 1)


class BatchFirst(Detector):
    """The decoder takes the samples for tokens."""

    def ordered(self, memory: Tensor) -> Tensor:
        return memory


def analysis(module: nn.Module) -> Analysis:
    prepare(module, 1)
    return analyze(Invocation(module, {"x": drawn(3, 4, WIDTH, seed=0)}, ["x"], [Stream("x", "x", 0, (1,))]))


def test_learned_queries_are_of_the_sample_whose_keys_they_meet() -> None:
    found = analysis(Detector())
    assert found.complete
    assert not [*found.violations, *found.designs]


def test_keys_of_another_order_are_of_other_samples() -> None:
    assert {each.property for each in analysis(BatchFirst()).violations} >= {"samples-apart"}


class Resampler(nn.Module):
    """Learned latents ask the tokens and themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(3, WIDTH))
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        latents = self.latents.expand(len(x), -1, -1)
        for _ in range(2):
            asked = self.joined(x, latents)
            weights = (self.q(latents) @ self.k(asked).mT / WIDTH**0.5).softmax(self.axis)
            latents = latents + weights @ self.v(asked)
        return latents

    axis = -1

    def joined(self, x: Tensor, latents: Tensor) -> Tensor:
        return torch.cat((x, latents), 1)


class OverQueries(Resampler):
    axis = 1


def test_latents_that_ask_themselves_as_well_are_rows_of_the_projections() -> None:
    found = analysis(Resampler())
    assert found.complete
    assert not [*found.violations, *found.designs]
    assert {each.property for each in analysis(OverQueries()).violations} == {"softmax-over-keys"}
