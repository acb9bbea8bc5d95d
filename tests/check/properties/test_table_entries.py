"""Which entries of a learned table of positions two tokens read: one of its own for each offset."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from property_cases import drawn, joined, of_module, of_x, split
from property_cases.table_cases import OfAWindow
from regard.check.properties.analysis import Analysis
from regard.check.properties.analyze import analyze

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


def places(tokens: int) -> Tensor:
    return torch.arange(tokens) - torch.arange(tokens)[:, None]


def by_buckets(both_sides: bool, sign_lost: bool) -> Callable[[int], Tensor]:
    def index(tokens: int) -> Tensor:
        """As in T5."""
        distance, count = places(tokens), 32
        found = torch.zeros_like(distance)
        if both_sides:
            count //= 2
            found += 0 if sign_lost else (distance > 0) * count
            distance = distance.abs()
        else:
            distance = -distance.clamp(max=0)
        exact = count // 2
        far = exact + (distance.clamp(min=1).double() / exact).log() / math.log(128 / exact) * (count - exact)
        return found + torch.where(distance < exact, distance, far.long().clamp(max=count - 1))

    return index


class Looked(nn.Module):
    """A bias of each two tokens, by an index."""

    def __init__(self, entries: int, index: Callable[[int], Tensor], *, parameter: bool = False) -> None:
        super().__init__()
        self.index, self.parameter = index, parameter
        self.embedding = nn.Embedding(entries, 2)

    def forward(self, x: Tensor) -> Tensor:
        index = self.index(x.shape[1])
        table = self.embedding.weight[index.flatten()].unflatten(0, index.shape) if self.parameter else None
        bias = (self.embedding(index) if table is None else table).permute(2, 0, 1)
        q, k, v = (split(x @ (drawn(8, 8, seed=seed) / 8**0.5)) for seed in (1, 2, 3))
        return joined((q @ k.mT / 2 + bias).softmax(-1) @ v)


def analyzed(entries: int, index: Callable[[int], Tensor], *, tokens: int = 4, parameter: bool = False) -> Analysis:
    module = Looked(entries, index, parameter=parameter).double()
    nn.init.normal_(module.embedding.weight, generator=torch.Generator().manual_seed(5))
    return analyze(of_x(module, tokens=tokens))


@pytest.mark.parametrize("parameter", [True, False], ids=["parameter", "embedding"])
@pytest.mark.parametrize("both_sides", [True, False], ids=["both sides", "one side"])
def test_buckets_of_distances_are_right(both_sides: bool, parameter: bool) -> None:
    analysis = analyzed(32, by_buckets(both_sides, sign_lost=False), parameter=parameter)
    assert analysis.violations == []
    assert "relative-bias" in {each.property for each in analysis.designs}


@pytest.mark.parametrize("parameter", [True, False], ids=["parameter", "embedding"])
def test_buckets_that_lost_the_side_are_wrong(parameter: bool) -> None:
    (found,) = analyzed(32, by_buckets(both_sides=True, sign_lost=True), parameter=parameter).violations
    assert found.property == "entry-of-each-offset"
    assert found.message == "16 of the 32 entries of the table are read at no distance, up to 319 tokens"


@pytest.mark.parametrize(
    ("entries", "index"),
    [
        (7, lambda tokens: places(tokens) + tokens - 1),
        (9, lambda tokens: places(tokens).clamp(-4, 4) + 4),
        (512, lambda tokens: places(tokens).abs()),
        (7, lambda tokens: places(tokens).abs()),
        (16, lambda tokens: places(tokens).abs().clamp(max=15)),
        (3, lambda tokens: places(tokens).clamp(-1, 1) + 1),
    ],
    ids=["a distance each", "clipped", "longer", "as long by accident", "of both sides alike", "the nearest alone"],
)
def test_tables_by_distance_are_right(entries: int, index: Callable[[int], Tensor]) -> None:
    assert analyzed(entries, index).violations == []


def test_distances_without_their_side_in_a_table_of_both_are_wrong() -> None:
    (found,) = analyzed(7, lambda _: places(4).abs()).violations
    assert found.message == (
        "the table has 7 entries, as many as there are offsets in 4 tokens: 3 of them are read by no two tokens, and "
        "tokens 0 and 1 read the same as 1 and 0 (entry 1)"
    )


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (2, 3), (3, 2), (3, 3)])
def test_a_window_of_any_sides_has_an_entry_for_each_offset(rows: int, columns: int) -> None:
    call = of_x(OfAWindow(rows, columns).double(), tokens=rows * columns)
    assert analyze(call).violations == []
    (found,) = analyze(of_x(OfAWindow(rows, columns, factor=1).double(), tokens=rows * columns)).violations
    assert found.property == "entry-of-each-offset"
    assert of_module(lambda: OfAWindow(2, 2)).target.rows == 2


@pytest.mark.parametrize("told", ["sides", "two numbers", "square"])
def test_rows_multiplied_by_the_width_alone_are_wrong(told: str) -> None:
    """The places are then as those of a text, of which a table that is longer is right."""
    rows, columns = (3, 3) if told == "square" else (3, 4)

    def of(factor: int) -> nn.Module:
        module = OfAWindow(rows, columns, factor=factor).double()
        if told == "sides":
            module.window_size = (rows, columns)
        elif told == "two numbers":
            module.columns = columns
        return module

    assert analyze(of_x(of(0), tokens=rows * columns)).violations == []
    (found,) = analyze(of_x(of(columns), tokens=rows * columns)).violations
    assert found.property == "entry-of-each-offset"
    assert f"as many as there are offsets in a window of {rows} x {columns} tokens" in found.message


def test_rows_multiplied_by_the_width_alone_are_wrong_where_the_sides_are_not_kept() -> None:
    """torch.meshgrid made the places of its tokens."""
    assert analyze(of_x(OfAWindow(3, 5, factor=0).double(), tokens=15)).violations == []
    assert analyze(of_x(OfAWindow(5, 3, factor=0).double(), tokens=15)).violations == []
    (found,) = analyze(of_x(OfAWindow(3, 5, factor=5).double(), tokens=15)).violations
    assert found.property == "entry-of-each-offset"


def test_a_longer_table_of_distances_in_a_row_is_right() -> None:
    assert analyzed(25, lambda tokens: places(tokens) + 12, tokens=9).violations == []


def of_three_axes(depth: int, rows: int, columns: int, factor: int) -> Callable[[int], Tensor]:
    def index(_: int) -> Tensor:
        places = torch.stack(torch.unravel_index(torch.arange(depth * rows * columns), [depth, rows, columns]))
        along = places[:, :, None] - places[:, None]
        along = along + torch.tensor([depth, rows, columns])[:, None, None] - 1
        return (along[0] * factor + along[1]) * (2 * columns - 1) + along[2]

    return index


def test_a_window_of_three_axes_has_an_entry_for_each_offset() -> None:
    assert analyzed(45, of_three_axes(2, 3, 2, 5), tokens=12).violations == []
    (found,) = analyzed(45, of_three_axes(2, 3, 2, 3), tokens=12).violations
    assert "as many as there are offsets in a window of" in found.message


class Gathered(nn.Module):
    """A bias of each two of 2 x 2 tokens, gathered of a table with an entry for each offset and head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.side = 2
        rows, columns = torch.unravel_index(torch.arange(4), (self.side, self.side))
        index = (rows[:, None] - rows + 1) * width + columns[:, None] - columns + 1
        self.register_buffer("index", index.flatten()[:, None])
        self.table = nn.Parameter(torch.zeros(9, 2))

    def forward(self, x: Tensor) -> Tensor:
        bias = self.table.gather(0, self.index.repeat(1, 2)).unflatten(0, (4, 4)).permute(2, 0, 1)
        q, k, v = (split(x @ (drawn(8, 8, seed=seed) / 8**0.5)) for seed in (1, 2, 3))
        return joined((q @ k.mT / 2 + bias).softmax(-1) @ v)


@pytest.mark.parametrize("width", [3, 2])
def test_entries_may_be_gathered(width: int) -> None:
    found = {each.property for each in analyze(of_module(lambda: Gathered(width))).violations}
    assert found == ({"entry-of-each-offset"} if width == 2 else set())
