"""Frequencies of tables of sines and cosines that are added to the tokens."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from property_cases import drawn, joined, of_x, split
from regard.check import check
from regard.check.properties.analyze import analyze
from regard.check.target import Invocation

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

BASE = 10000.0
WIDTH = 16


class WithPlaces(nn.Module):
    """A table is added to the tokens, which attend to one another; its base is 10000 where none is told."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table)
        self.base = BASE

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.table[: x.shape[1]]
        q, k, v = (split(x @ (drawn(WIDTH, WIDTH, seed=seed) / 4)) for seed in (1, 2, 3))
        return joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)


def table(frequencies: Tensor, *, halves: bool = False, places: Tensor | None = None) -> Tensor:
    angles = (torch.arange(16.0) if places is None else places)[:, None] * frequencies
    both = angles.sin(), angles.cos()
    return torch.cat(both, -1) if halves else torch.stack(both, -1).flatten(1)


EVEN = torch.arange(0, WIDTH, 2.0)


@pytest.mark.parametrize("halves", [True, False], ids=["halves", "in turn"])
@pytest.mark.parametrize(
    "exponents",
    [EVEN / WIDTH, torch.arange(8.0) / 7],
    ids=["of the paper", "to the end"],
)
def test_published_frequencies_are_right(exponents: Tensor, halves: bool) -> None:
    assert analyze(of_x_of_width(table(BASE**-exponents, halves=halves))).violations == []


def of_x_of_width(made: Tensor) -> Invocation:
    call = of_x(WithPlaces(made))
    call.arguments["x"] = drawn(2, 5, WIDTH, seed=0)
    return call


ANGLES = torch.arange(16.0)[:, None] * BASE ** (-EVEN / WIDTH)


@pytest.mark.parametrize(
    "made",
    [ANGLES.sin().repeat_interleave(2, 1), ANGLES.sin().repeat(1, 2), ANGLES.cos().repeat(1, 2)],
    ids=["in turn", "halves of sines", "halves of cosines"],
)
def test_a_sine_in_the_place_of_each_cosine_is_told(made: Tensor) -> None:
    (found,) = analyze(of_x_of_width(made)).violations
    assert found.property == "sinusoid-frequencies"
    assert found.message.endswith("each channel is there twice, the same at every place")


class Hears(nn.Module):
    """An encoder of spectra of 8 bands and twice as many frames as tokens, with sinusoids of the base 10000.0."""

    def __init__(self, n_bands: int = 8, n_frames: int = 24, d_model: int = 32, n_heads: int = 4) -> None:
        super().__init__()
        self.listen = nn.Conv1d(n_bands, d_model, 3, stride=2, padding=1)
        angles = torch.arange(n_frames // 2)[:, None] * BASE ** (-torch.arange(0, d_model, 2) / d_model)
        self.register_buffer("places", self.table(angles))
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def table(self, angles: Tensor) -> Tensor:
        """Sines, then cosines."""
        return torch.cat([angles.sin(), angles.cos()], 1)

    def forward(self, spectrum: Tensor) -> Tensor:
        """spectrum: (batch, n_bands, n_frames)"""
        x = self.listen(spectrum).transpose(1, 2)
        x = x + self.places
        q, k, v = (each.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return x + self.out((weights @ v).transpose(1, 2).flatten(2))


class HearsSines(Hears):
    """An encoder of spectra of 8 bands and twice as many frames as tokens, with sinusoids of the base 10000.0."""

    def table(self, angles: Tensor) -> Tensor:
        """Sines, and sines."""
        return torch.cat([angles.sin(), angles.sin()], 1)


def test_a_table_that_is_added_behind_a_convolution_is_looked_at() -> None:
    sizes = {"n_bands": 8, "n_frames": 24, "d_model": 32, "n_heads": 4}
    assert check(Hears, args=sizes).verdict not in ("wrong", "undetermined")
    assert [each.id for each in check(HearsSines, args=sizes).causes] == ["sinusoid-frequencies"]


def test_one_frequency_in_all_channels_is_told() -> None:
    (found,) = analyze(of_x_of_width(table(torch.ones(WIDTH // 2)))).violations
    assert found.property == "sinusoid-frequencies"
    assert found.message.endswith("are one and the same, 1, in all 16 channels: with 10000 they fall from 1")


class WithWaves(nn.Module):
    def __init__(self, frequencies: Tensor, least: float) -> None:
        super().__init__()
        self.frequencies, self.least = frequencies, least

    def forward(self, x: Tensor) -> Tensor:
        x = x + table(self.frequencies, halves=True)[: x.shape[1]]
        q, k = (split(x @ (drawn(WIDTH, WIDTH, seed=seed) / 4)) for seed in (1, 2))
        return joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ split(x))


def test_places_of_frequencies_that_were_raised_to_a_small_number_are_one_frequency() -> None:
    for least in (BASE, 1 / BASE):
        (found,) = analyze(of_waves((EVEN / WIDTH) ** (1 / BASE), least)).violations
        assert found.property == "sinusoid-frequencies"
        assert "are one and the same, 1, in all 14 channels" in found.message


def test_of_a_small_number_other_frequencies_say_nothing() -> None:
    twice = BASE ** (-2 * EVEN / WIDTH)
    assert [each.property for each in analyze(of_waves(twice, BASE)).violations] == ["sinusoid-frequencies"]
    assert analyze(of_waves(twice, 1 / BASE)).violations == []


def of_waves(frequencies: Tensor, least: float) -> Invocation:
    call = of_x(WithWaves(frequencies, least))
    call.arguments["x"] = drawn(2, 5, WIDTH, seed=0)
    return call


def test_normalized_places_and_a_frequency_for_each_channel_are_right() -> None:
    normalized = torch.arange(16.0) / 5 * 2 * math.pi
    assert analyze(of_x_of_width(table(BASE ** (-EVEN / WIDTH), places=normalized))).violations == []
    angles = torch.arange(16.0)[:, None] * BASE ** (-torch.arange(WIDTH) / WIDTH)
    own = torch.where(torch.arange(WIDTH) % 2 == 0, angles.sin(), angles.cos())
    assert analyze(of_x_of_width(own)).violations == []
    assert analyze(of_x_of_width(drawn(16, WIDTH, seed=4))).violations == []


@pytest.mark.parametrize("halves", [True, False], ids=["halves", "in turn"])
@pytest.mark.parametrize(
    ("frequencies", "said"),
    [
        (torch.exp(EVEN * (-math.log(BASE) / WIDTH // 2)), "are 1, 0.135, 0.0183, ..."),
        (BASE ** (EVEN / WIDTH), "grow from pair to pair, 1, 3.16, 10, ..."),
        (torch.exp(EVEN / 2), "grow from pair to pair, 1, 2.72, 7.39, ..."),
        (BASE ** (-2 * EVEN / WIDTH), "are 1, 0.1, 0.01, ...: with 10000 and 16 channels they are 1, 0.316, 0.1, ..."),
    ],
    ids=["floored", "sign lost", "powers of e", "twice as fast"],
)
def test_frequencies_that_10000_does_not_say_are_wrong(frequencies: Tensor, said: str, halves: bool) -> None:
    (found,) = analyze(of_x_of_width(table(frequencies, halves=halves))).violations
    assert found.property == "sinusoid-frequencies"
    assert said in found.message


def test_sines_that_were_written_over_leave_half_of_the_channels_empty() -> None:
    made = table(BASE ** (-EVEN / WIDTH))
    made[:, 0::2], made[:, 1::2] = made[:, 1::2], 0.0
    (found,) = analyze(of_x_of_width(made)).violations
    assert found.message.endswith("every second one is 0 at every place, as where sines were written over")


def test_a_pair_whose_sine_and_cosine_have_different_frequencies_is_wrong() -> None:
    angles = torch.arange(16.0)[:, None] * BASE ** (-2 * torch.arange(WIDTH) / WIDTH)
    own = torch.where(torch.arange(WIDTH) % 2 == 0, angles.sin(), angles.cos())
    (found,) = analyze(of_x_of_width(own)).violations
    assert "from channel to channel, not from pair to pair" in found.message


def test_frequencies_of_a_table_are_known_where_a_text_is_short() -> None:
    exponents = torch.arange(WIDTH) * 2 / WIDTH  # one for each channel, not for each pair
    angles = torch.arange(16.0)[:, None] * BASE**-exponents
    call = of_x_of_width(torch.where(torch.arange(WIDTH) % 2 == 0, angles.sin(), angles.cos()))
    call.arguments["x"] = call.arguments["x"][:, :2]
    (found,) = analyze(call).violations
    assert found.property == "sinusoid-frequencies"
    assert "from channel to channel, not from pair to pair" in found.message


def test_sines_whose_frequencies_grow_beside_cosines_whose_frequencies_fall_are_wrong() -> None:
    places, frequencies = torch.arange(16.0)[:, None], BASE ** (-EVEN / WIDTH)
    sines, cosines = places / frequencies, places * frequencies
    (found,) = analyze(of_x_of_width(torch.stack([sines.sin(), cosines.cos()], -1).flatten(1))).violations
    assert found.property == "sinusoid-frequencies"
    assert "grow in every second channel alone, 1, 3.16, 10" in found.message


@pytest.mark.parametrize("scale", [1.0, 8.3])
def test_a_base_and_an_exponent_that_are_exchanged_make_one_frequency(scale: float) -> None:
    (found,) = analyze(of_x_of_width(table(scale * (EVEN / WIDTH) ** (1 / BASE)))).violations
    assert "one and the same" in found.message
    assert analyze(of_x_of_width(table((1 / BASE) ** (EVEN / WIDTH)))).violations == []
