"""Positions that rotate queries and keys, beside what has none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attention_styles import heads_call
from property_cases import drawn, joined, of_module, of_q_k_v, of_x, split
from property_cases.position_cases import ANGLES, keys_conjugated, parts_of_keys_exchanged, rotated
from regard.check.conclusion import conclude
from regard.check.properties.analyze import analyze
from regard.check.sandbox.torch_settings import UserSettings

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


@pytest.mark.parametrize("is_first", [True, False], ids=["sink first", "sink last"])
def test_a_learned_value_beside_those_of_the_tokens_is_no_position(is_first: bool) -> None:
    def with_a_sink(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (
            torch.cat((learned, each) if is_first else (each, learned), 2)
            for each, learned in ((rotated(k), drawn(2, 2, 1, 4, seed=5)), (v, drawn(2, 2, 1, 4, seed=6)))
        )
        return (rotated(q) @ k.mT / 2).softmax(-1) @ v

    found = {each.property for each in analyze(of_q_k_v(with_a_sink)).designs}
    assert found == {"rotary", "sinks"}


def other_angles_for_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (rotated(q) @ rotated(k, ANGLES * 0.7).mT / 2).softmax(-1) @ v


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (parts_of_keys_exchanged, "at other places in keys than in queries (by 2 channels of 4)"),
        (other_angles_for_keys, "queries and keys are rotated by angles that differ"),
    ],
)
def test_keys_whose_channels_moved_are_told_from_keys_of_other_angles(
    function: Callable[..., Tensor], says: str
) -> None:
    (found,) = analyze(of_q_k_v(function)).violations
    assert says in found.message


def test_the_scale_of_rotated_complex_numbers_is_known() -> None:
    found = analyze(of_q_k_v(keys_conjugated)).findings
    kinds = {each.property: each.kind for each in found}
    assert (kinds["scale"], kinds["rotary"]) == ("holds", "design")


def scaled_by_the_place(x: Tensor) -> Tensor:
    """Queries alone are longer the later they come, in each head by a number of its own."""
    scales = 1 + torch.arange(x.shape[1]).double()[:, None] * torch.tensor([0.5, -0.1]).double()[:, None, None]
    return joined((split(x) * scales @ split(x).mT / 2).softmax(-1) @ split(x))


def test_a_scale_of_each_query_is_no_position() -> None:
    found = analyze(of_x(scaled_by_the_place)).violations
    assert "positions-without-effect" not in {each.property for each in found}


class Rotary(nn.Module):
    """Neighbours, or halves, of a part of each head are rotated; the table is made once."""

    def __init__(
        self, frequencies: Callable[[int], Tensor], *, neighbours: bool = False, rotated: int = 8, float32: bool = False
    ) -> None:
        super().__init__()
        angles = torch.arange(16)[:, None] * frequencies(rotated).to(torch.float32 if float32 else torch.float64)
        self.neighbours, self.rotated = neighbours, rotated
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def turned(self, x: Tensor) -> Tensor:
        x, rest = x[..., : self.rotated], x[..., self.rotated :]
        cos, sin = (each[: x.shape[-2]] for each in (self.cos, self.sin))
        a, b = (x[..., ::2], x[..., 1::2]) if self.neighbours else x.chunk(2, -1)
        turned = (a * cos - b * sin, b * cos + a * sin)
        x = torch.stack(turned, -1).flatten(-2) if self.neighbours else torch.cat(turned, -1)
        return torch.cat((x, rest), -1)

    def forward(self, x: Tensor) -> Tensor:
        heads = split(x)
        return joined((self.turned(heads) @ self.turned(heads).mT / heads.shape[-1] ** 0.5).softmax(-1) @ heads)


def paper(width: int) -> Tensor:
    return 10000 ** (-torch.arange(0, width, 2).double() / width)


def ntk(width: int) -> Tensor:
    return (10000 * 4 ** (width / (width - 2))) ** (-torch.arange(0, width, 2).double() / width)


def interpolated(width: int) -> Tensor:
    return paper(width) / 4


def llama(width: int) -> Tensor:
    """Slow ones are slower still."""
    return torch.where(paper(width) < 0.05, paper(width) / 8, paper(width))


def of_half_of_the_channels(width: int) -> Tensor:
    return paper(2 * width)[: width // 2]


def slower(width: int) -> Tensor:
    return 10000 ** (-torch.arange(width // 2).double() / width)


@pytest.mark.parametrize(
    ("frequencies", "rotated"),
    [(paper, 8), (paper, 4), (ntk, 8), (interpolated, 8), (llama, 8), (of_half_of_the_channels, 4)],
)
@pytest.mark.parametrize("neighbours", [True, False], ids=["neighbours", "halves"])
def test_scaled_and_partial_frequencies_are_right(
    frequencies: Callable[[int], Tensor], rotated: int, neighbours: bool
) -> None:
    call = of_x(Rotary(frequencies, neighbours=neighbours, rotated=rotated))
    call.arguments["x"] = drawn(2, 4, 16, seed=0)
    analysis = analyze(call)
    assert analysis.violations == []
    assert "rotary" in {each.property for each in analysis.designs}


@pytest.mark.parametrize("neighbours", [True, False], ids=["neighbours", "halves"])
@pytest.mark.parametrize("float32", [True, False], ids=["of float32", "of float64"])
def test_frequencies_in_a_table_that_was_made_before_are_measured(neighbours: bool, float32: bool) -> None:
    call = of_x(Rotary(slower, neighbours=neighbours, float32=float32))
    call.arguments["x"] = drawn(2, 4, 16, seed=0)
    call.assumptions = ["base=10000"]
    (found,) = analyze(call).violations
    assert found.property == "rotary-frequencies"
    assert "1, 0.316, 0.1, 0.0316 from token to token: of the base 10000 it is 1, 0.1, 0.01, 0.001" in found.message


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("added", [0.0, 1.0], ids=["from 0", "from 1"])
def test_one_angle_for_all_tokens_is_no_position(heads: int, added: float) -> None:
    angles = (torch.arange(heads).double()[:, None, None] + added) * ANGLES[1]

    def by_the_head(x: Tensor) -> Tensor:
        q, k, v = (split(x @ drawn(8, heads * 4, seed=seed), heads) for seed in range(3))
        return joined((rotated(q, angles) @ rotated(k, angles).mT / 2).softmax(-1) @ v)

    (found,) = analyze(of_x(by_the_head)).violations
    assert found.step == "positions"


def test_one_query_at_the_first_position_is_turned_by_nothing() -> None:
    def by_its_table(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (rotated(q, ANGLES[:1]) @ rotated(k, ANGLES[:1]).mT / 2).softmax(-1) @ v

    call = heads_call(by_its_table, drawn(2, 2, 1, 4, seed=0), *(drawn(2, 2, 3, 4, seed=seed) for seed in (1, 2)))
    assert not analyze(call).violations


class ScaledAfterwards(nn.Module):
    """HunYuan: rotated queries and keys are normalized, each channel times a learned weight."""

    def __init__(self, scale_of_positions: float = 0.0) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.norm, self.stretch = nn.RMSNorm(4), scale_of_positions

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[1])[:, None] * torch.tensor([1.0, 0.01]).repeat(2)
        q, k = (rotated(split(each(x)), angles) * (1 + self.stretch * angles) for each in (self.q, self.k))
        q, k = (self.norm(q), self.norm(k)) if not self.stretch else (q * self.norm.weight, k * self.norm.weight)
        return joined((q @ k.mT / 2).softmax(-1) @ split(self.v(x)))


def test_learned_weights_of_a_norm_may_come_after_the_rotation() -> None:
    found = analyze(of_module(ScaledAfterwards))
    assert not found.violations
    assert any("normalized after positions" in each.message for each in found.designs)


def test_what_stretches_by_the_position_is_no_scale_of_a_norm() -> None:
    found = analyze(of_module(lambda: ScaledAfterwards(0.5)))
    assert {each.step for each in found.violations} == {"positions"}


class LayersOfXPos(nn.Module):
    """Positions lengthen queries and shorten keys (xPos) of tokens that earlier layers have mixed; or keys as well."""

    def __init__(self, *, are_keys_shortened: bool = True) -> None:
        super().__init__()
        self.power = -1 if are_keys_shortened else 1
        self.of_layers = nn.ModuleList(nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in "qkv") for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(float(x.shape[1])), torch.tensor([1.0, 0.1]).repeat(2)).to(x)
        growth = 1.1 ** (torch.arange(x.shape[1])[:, None] * torch.tensor([0.5, 1]).repeat(2))
        for of_q, of_k, of_v in self.of_layers:
            q, k, v = (split(each(x)) for each in (of_q, of_k, of_v))
            scores = rotated(q, angles) * growth.to(x) @ (rotated(k, angles) * growth.to(x) ** self.power).mT / 2
            x = x + joined((scores + torch.full_like(scores, -torch.inf).triu(1)).softmax(-1) @ v)
        return x


def test_queries_that_grow_as_much_as_keys_shrink_are_rotated_in_every_layer() -> None:
    def found(layers: LayersOfXPos) -> set[tuple[str, str]]:
        call = of_x(layers.double())
        of_positions = [each for each in analyze(call).findings if each.step == "positions"]
        return {(each.kind, each.property) for each in of_positions}

    assert found(LayersOfXPos()) == {("design", "rotary")}
    assert ("violation", "rotation-keeps-lengths") in found(LayersOfXPos(are_keys_shortened=False))


class OfIdsThroughNumpy(nn.Module):
    """Ids are made anew from an array, so that nothing shows that what a norm takes is made of them."""

    def __init__(self, vocab_size: int = 30, width: int = 16, max_len: int = 32) -> None:
        super().__init__()
        self.of_ids = nn.Embedding(vocab_size, width, padding_idx=0)
        self.of_places = nn.Embedding(max_len, width, padding_idx=0)
        self.norm, self.attend = nn.LayerNorm(width), nn.MultiheadAttention(width, 2)

    def forward(self, ids: Tensor) -> Tensor:
        places = np.arange(1, ids.shape[1] + 1)[None].repeat(len(ids), 0)
        places *= ids != 0
        x = self.of_ids(torch.LongTensor(np.asarray(ids))) + self.of_places(torch.LongTensor(places))
        x = self.norm(x).transpose(0, 1)
        later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        return self.attend(x, x, x, attn_mask=later)[0].transpose(0, 1)


def test_a_norm_of_ids_that_went_through_numpy_is_no_stretched_rotation() -> None:
    found = conclude(OfIdsThroughNumpy, {}, UserSettings()).report()
    assert found.ok, str(found)


class Interpolated(Rotary):
    """Rotary positions with linear position interpolation: positions are squeezed by the factor."""

    factor = 4.0

    def __init__(self, frequencies: Callable[[int], Tensor]) -> None:
        super().__init__(frequencies, float32=True)


class FourTimesAsFar(Rotary):
    """Rotary positions which are 4 times as far apart, for pictures of a quarter of the resolution."""


@pytest.mark.parametrize(
    ("kind", "times", "is_wrong"),
    [(Interpolated, 4.0, True), (Interpolated, 0.25, False), (Interpolated, 1.0, False), (FourTimesAsFar, 4.0, False)],
)
def test_positions_that_are_said_to_be_squeezed_are_not_set_apart(
    kind: Callable[..., Rotary], times: float, is_wrong: bool
) -> None:
    call = of_x(kind(lambda width: paper(width) * times))
    call.arguments["x"] = drawn(2, 4, 16, seed=0)
    call.assumptions = ["base=10000"]
    violations = analyze(call).violations
    assert [each.property for each in violations] == (["rotary-frequencies"] if is_wrong else [])
    assert not is_wrong or "positions are times 4, by which interpolation divides them" in violations[0].message


class TurnedByWhatIsGiven(nn.Module):
    """Cosines and sines are handed over together, as of a memory whose tokens all stand at the first position."""

    def __init__(self, dim: int = 12) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))

    def forward(self, x: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:
        cos, sin = position_embeddings
        q, k = (each * cos + torch.cat((-each[..., 6:], each[..., :6]), -1) * sin for each in (self.q(x), self.k(x)))
        return (q @ k.mT / 12**0.5).softmax(-1) @ self.v(x)


def test_angles_of_zero_that_are_handed_over_are_no_fault_of_the_code() -> None:
    first = (torch.ones(1, 1, 12).double(), torch.zeros(1, 1, 12).double())
    given = {"x": drawn(2, 5, 12, seed=0), "position_embeddings": first}
    report = conclude(TurnedByWhatIsGiven, {}, UserSettings(), given).report()
    assert "positions-without-effect" not in report.causes
    assert report.verdict != "wrong", str(report)
