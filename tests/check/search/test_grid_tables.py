"""Tables of a grid that a module adds to maps: the order of channels is free, their frequencies are not."""

import math

import pytest
import torch
from torch import nn

from bank.modules_grid_positions import GridPositions, PositionsByAWholeQuotient
from regard.check.search.grid_tables import judge_grid_table, looks_like_grid_table
from regard.check.search.subject import subject_of

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


def judged(what):
    """The verdict, and the causes or the reason."""
    subject = subject_of(what, {})
    assert looks_like_grid_table(subject)
    [stage] = judge_grid_table(subject).stages
    if stage.found is None:
        return "undetermined", stage.why
    causes = {known.id for known, _ in stage.found.causes}
    return ("wrong" if causes else "right"), causes


class HalfAndHalf(nn.Module):
    """Rows in the first half of the channels and columns in the last, sines before cosines; channels come last."""

    def __init__(self, d_model, height=16, width=16):
        super().__init__()
        angles = [torch.arange(1, size + 1)[:, None] * self.rates(d_model // 4) for size in (height, width)]
        rows, columns = (torch.cat([each.sin(), each.cos()], -1) for each in angles)
        table = torch.cat(
            [rows[:, None].expand(-1, width, -1), columns[None].expand(height, -1, -1)],
            -1,
        )
        self.register_buffer("pos_table", table)

    def rates(self, count):
        return 10000 ** -(torch.arange(count) / count)

    def forward(self, x):
        return x + self.pos_table[: x.shape[1], : x.shape[2]]


class TooFast(HalfAndHalf):
    def rates(self, count):
        return 10000 ** -(1.5 * torch.arange(count) / count)


class OfTheWholeWidth(HalfAndHalf):
    """Frequencies of as many channels as both axes have, of which each takes the first half."""

    def rates(self, count):
        return 10000 ** -(torch.arange(count) / (2 * count))


class ToTheEnd(HalfAndHalf):
    def rates(self, count):
        return torch.exp(torch.arange(count) * -(math.log(1e4) / (count - 1)))


class OfAnotherBase(HalfAndHalf):
    """For small maps."""

    def rates(self, count):
        return 20 ** -(torch.arange(count) / count)


class BothOfRows(HalfAndHalf):
    def __init__(self, d_model, height=16, width=16):
        super().__init__(d_model, height, width)
        self.pos_table[..., d_model // 2 :] = self.pos_table[..., : d_model // 2]


class Learned(nn.Module):
    def __init__(self, d_model, height=16, width=16):
        super().__init__()
        self.pos = nn.Parameter(torch.zeros(1, d_model, height, width))

    def forward(self, x):
        return x + self.pos[:, :, : x.shape[2], : x.shape[3]]


@pytest.mark.parametrize("what", [GridPositions(256), PositionsByAWholeQuotient(256)], ids=["right", "wrong"])
def test_wide_tables_are_told_as_well(what):
    assert judged(what)[0] == ("wrong" if isinstance(what, PositionsByAWholeQuotient) else "right")


@pytest.mark.parametrize("what", [GridPositions, HalfAndHalf, OfTheWholeWidth, ToTheEnd])
def test_frequencies_of_10000_are_right_in_any_order(what):
    assert judged(what) == ("right", set())


@pytest.mark.parametrize("what", [PositionsByAWholeQuotient, TooFast])
def test_others_are_named_where_the_code_says_10000(what):
    assert judged(what) == ("wrong", {"pe-frequencies"})


@pytest.mark.parametrize("what", [OfAnotherBase, BothOfRows])
def test_what_is_not_known_stays_open(what):
    verdict, why = judged(what)
    assert verdict == "undetermined"
    assert why


def test_a_learned_table_of_a_grid_is_none_of_sines():
    assert not looks_like_grid_table(subject_of(Learned, {}))
