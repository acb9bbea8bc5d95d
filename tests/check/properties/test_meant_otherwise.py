"""What would be wrong, and is meant: by a line of the code, a comment, a draw of samples, or the axes of a table."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from property_cases import HEADS, WIDTH, joined, of_module, split
from property_cases.named_mask_cases import of_keys_or_more, of_more_axes, of_three_heads
from property_cases.unregistered_cases import InAList, InAModuleList, NamedBesides
from regard.check import check
from regard.check.properties.analyze import analyze
from regard.check.properties.drawn_samples import drawn_sample_design

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class Reads(nn.Module):
    """Cross-attention."""

    def __init__(self, d_model: int = 16) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (
            one(each).unflatten(-1, (4, -1)).transpose(1, 2)
            for one, each in zip((self.q, self.k, self.v), (q, k, v), strict=True)
        )
        return self.out(((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))


class OneMemory(nn.Module):
    """A line makes one of both."""

    def __init__(self, d_model: int = 16) -> None:
        super().__init__()
        self.read, self.norm = Reads(d_model), nn.LayerNorm(d_model)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        value = self.norm(value)
        key = value
        return query + self.read(query, key, value)


class KeysForgotten(nn.Module):
    """No line says so."""

    def __init__(self, d_model: int = 16) -> None:
        super().__init__()
        self.read, self.norm = Reads(d_model), nn.LayerNorm(d_model)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        value = self.norm(value)
        return query + self.read(query, value, value)


def test_keys_that_a_line_sets_to_the_values_are_meant() -> None:
    assert check(OneMemory).verdict != "wrong"
    assert "keys-from-their-input" in [each.id for each in check(KeysForgotten).causes]


class OneForAll(nn.Module):
    """As in "Attention Is All You Need"."""

    def __init__(self) -> None:
        super().__init__()
        # all heads use the same small matrices
        self.q, self.k, self.v = (nn.Linear(WIDTH // HEADS, WIDTH // HEADS) for _ in range(3))
        self.o = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(split(x)), self.k(split(x)), self.v(split(x))
        return self.o(joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v))


class OneTransformation(OneForAll):
    """Vaswani et al.; uses _the same_ query/key/value transformation on each head, of a slice of the channels."""

    def __init__(self) -> None:
        super().__init__()  # nothing else is said


class EachHeadTheSame(OneTransformation):
    """Of Vaswani et al. every head applies *identical* projections to its slice."""


class SlicesForHeads(OneTransformation):
    """Vaswani et al.: splits the embedding into as many slices as there are heads. All of them have the same width."""


class NarrowAttention(OneTransformation):
    """Its heads read a part of the embedding each; Attention Is All You Need."""


def test_words_may_say_that_heads_have_the_same_matrices() -> None:
    def kinds(kind: type[nn.Module]) -> list[str]:
        found = analyze(of_module(kind)).findings
        return [each.kind for each in found if each.property == "heads-of-their-own"]

    assert [kinds(each) for each in (OneForAll, OneTransformation, EachHeadTheSame, NarrowAttention)] == 4 * [
        ["design"]
    ]
    assert kinds(SlicesForHeads) == ["violation"]


class FewQueries(nn.Module):
    """The queries that a sample of the keys tells apart attend; the others read the mean."""

    def __init__(self, d_model: int = 16) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        measured = q @ k[:, torch.randint(x.shape[1], (2,))].mT
        best = (measured.amax(-1) - measured.mean(-1)).topk(x.shape[1] // 2 + 1).indices[..., None]
        best = best.expand(-1, -1, q.shape[-1])
        read = (q.gather(1, best) @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        return self.out(v.mean(1, keepdim=True).expand_as(v).scatter(1, best, read))


class NoiseBesides(FewQueries):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + 0.1 * torch.randn_like(x))


def test_places_that_are_drawn_are_meant_and_numbers_are_not() -> None:
    assert drawn_sample_design(of_module(lambda: FewQueries(WIDTH))) is not None
    assert drawn_sample_design(of_module(lambda: NoiseBesides(WIDTH))) is None
    assert check(FewQueries).verdict == "different by design"


class NoiseOfAStrength(nn.Module):
    """Noise is added to the tokens, times a learned number."""

    def __init__(self, d_model: int = 16) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.strength = nn.Parameter(torch.zeros([]))

    def noise(self, x: Tensor) -> Tensor:
        return torch.randn(*x.shape[:-1], 1, dtype=x.dtype) * self.strength

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / q.shape[-1] ** 0.5

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x + self.noise(x)).chunk(3, -1)
        return self.out(self.scores(q, k).softmax(-1) @ v)


class NoiseOfOneStrength(NoiseOfAStrength):
    """What it is multiplied by does not learn."""

    def noise(self, x: Tensor) -> Tensor:
        return torch.randn(*x.shape[:-1], 1, dtype=x.dtype) * 0.1


class NoiseOfScores(NoiseOfAStrength):
    """The noise is added to the scores."""

    def noise(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        scores = super().scores(q, k)
        return scores + torch.randn_like(scores) * self.strength


def test_noise_of_tokens_that_a_learned_number_multiplies_is_meant() -> None:
    assert check(NoiseOfAStrength).verdict == "different by design"
    assert check(NoiseOfOneStrength).verdict != "different by design"
    assert check(NoiseOfScores).verdict != "different by design"


class DrawnSlots(nn.Module):
    """Slot attention."""

    def __init__(self, d_model: int = 16, num_slots: int = 3) -> None:
        super().__init__()
        self.num_slots = num_slots
        self.mean, self.log_deviation = nn.Parameter(torch.randn(d_model)), nn.Parameter(torch.zeros(d_model))
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))
        self.update = nn.GRUCell(d_model, d_model)

    def begun(self, x: Tensor) -> Tensor:
        """The slots of each sample."""
        noise = torch.randn(len(x), self.num_slots, x.shape[-1], dtype=x.dtype)
        return self.mean + self.log_deviation.exp() * noise

    def weights(self, scores: Tensor) -> Tensor:
        """Of tokens, for which slots compete."""
        weights = scores.softmax(1) + 1e-8
        return weights / weights.sum(-1, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        slots = self.begun(x)
        for _ in range(2):
            scores = self.q(slots) @ self.k(x).mT / x.shape[-1] ** 0.5
            read = self.weights(scores) @ self.v(x)
            slots = self.update(read.flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
        return slots


class SlotsOfADistribution(DrawnSlots):
    def begun(self, x: Tensor) -> Tensor:
        """The slots of each sample."""
        deviation = self.log_deviation.exp().expand(len(x), self.num_slots, -1)
        return torch.distributions.Normal(self.mean.expand_as(deviation), deviation).rsample()


class NoisySlotScores(DrawnSlots):
    def weights(self, scores: Tensor) -> Tensor:
        """Of tokens, with noise, also in evaluation."""
        return super().weights(scores + 0.1 * torch.randn_like(scores))


class DrawnSlotsApart(DrawnSlots):
    """Slot attention."""

    def weights(self, scores: Tensor) -> Tensor:
        """The softmax runs over the tokens of each slot."""
        weights = scores.softmax(-1) + 1e-8
        return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("kind", [DrawnSlots, SlotsOfADistribution])
def test_slots_that_are_drawn_are_meant(kind: type[nn.Module]) -> None:
    assert check(kind).verdict == "different by design"


def test_what_else_is_drawn_beside_slots_is_not() -> None:
    assert check(NoisySlotScores).verdict != "different by design"
    assert check(DrawnSlotsApart).verdict == "wrong"


class OfATable(nn.Module):
    """Each column of a table is a token."""

    def __init__(self, columns: int = 5, width: int = 16) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.randn(columns, width)) for _ in range(2))
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.head = nn.Linear(width, 1)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (4, -1)).transpose(1, 2)

    def forward(self, x_num: Tensor) -> Tensor:
        x = x_num[:, :, None] * self.weight + self.bias
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        read = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        return self.head(self.out(read.transpose(1, 2).flatten(2)).mean(1))


class HeadsMeetHeads(nn.Module):
    """Of the tokens of one text: heads attend to heads."""

    def __init__(self, d_model: int = 16) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (4, -1)) for each in (self.q, self.k, self.v))
        return self.out(((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v).flatten(1))


def test_the_rows_of_a_table_are_samples_and_its_columns_tokens() -> None:
    assert check(OfATable).verdict != "wrong"
    assert check(HeadsMeetHeads).verdict == "wrong"


@pytest.mark.parametrize(("kind", "is_wrong"), [(InAList, True), (InAModuleList, False), (NamedBesides, False)])
def test_heads_in_a_list_are_wrong_where_nothing_registers_them(kind: Any, is_wrong: bool) -> None:
    found = [each.property for each in analyze(of_module(kind)).violations]
    assert found == ["parameters-registered"] * is_wrong


def test_a_mask_may_have_one_of_two_documented_shapes() -> None:
    found = [
        {each.property for each in analyze(of_three_heads(function), masks=True).violations}
        for function in (of_keys_or_more, of_more_axes)
    ]
    assert found == [set(), {"mask-shape-as-documented"}]
