"""Tables of positions that are added to tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, joined, of_module, of_x, of_x_and_context, split
from regard.check.target import Invocation, Stream

PLACES = drawn(16, WIDTH, seed=20)
"""(positions, width)."""
LATER = torch.ones(16, 16).triu(1) == 1


class WithoutItsTable(nn.Module):
    """A table that is made for later, and never added."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sinusoids", PLACES)

    def forward(self, x: Tensor) -> Tensor:
        return attended(x)


class WithItsTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("position_table", PLACES)

    def forward(self, x: Tensor) -> Tensor:
        return attended(x + self.position_table[: x.shape[1]])


ANGLES = torch.arange(16.0, dtype=torch.float64)[:, None] * 0.5 ** torch.arange(WIDTH // 2)
SINES = torch.cat([ANGLES.sin(), ANGLES.cos()], -1)
"""(positions, width)."""


def placed_by_sines(x: Tensor) -> Tensor:
    return attended(x + SINES[: x.shape[1]])


def placed_at_the_length(x: Tensor) -> Tensor:
    return attended(x + SINES[x.shape[1]])  # here


class PlacedBesideAStep(nn.Module):
    """Two sequences of vectors that are added, behind the token of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.inner = nn.Parameter(torch.zeros(1, 1, WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        both = torch.cat([self.start.expand(len(x), -1, -1), self.inner(x) + context], 1)
        return attended(both + self.places(both.shape[1]))[:, 1:]

    def places(self, count: int) -> Tensor:
        return SINES[:count]


class PlacedAtTheirNumber(PlacedBesideAStep):
    def places(self, count: int) -> Tensor:
        return SINES[count]


class Placing(nn.Module):
    """Adds the positions by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", PLACES)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.places[: x.shape[1]]


class WithAPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pos_encoder = Placing()

    def forward(self, x: Tensor) -> Tensor:
        return attended(self.pos_encoder(x))


class WithoutItsPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pos_encoding = Placing()

    def forward(self, x: Tensor) -> Tensor:
        return attended(x)


class OfAnotherPart(nn.Module):
    """A part that its caller made, and may call."""

    def __init__(self, pos_embedder: nn.Module) -> None:
        super().__init__()
        self.pos_embedder = pos_embedder

    def forward(self, x: Tensor) -> Tensor:
        return attended(x)


class OfIds(nn.Module):
    """Token ids, whose vectors are added to those of their places."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(10, WIDTH), nn.Embedding(16, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        placed = self.placed(self.tokens(ids), self.positions(self.places(ids)))
        return attended(torch.nn.functional.layer_norm(placed, (WIDTH,)))

    def places(self, ids: Tensor) -> Tensor:
        return torch.arange(ids.shape[1])

    def placed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return tokens + positions


class PlacedByTheirIds(OfIds):
    def places(self, ids: Tensor) -> Tensor:
        return ids


class PlacedByTheirSmallIds(OfIds):
    def places(self, ids: Tensor) -> Tensor:
        return ids.clamp(max=15)


class PlacedAtTheStart(OfIds):
    def places(self, ids: Tensor) -> Tensor:
        return torch.zeros_like(ids)


class PlacedAtTheEnd(OfIds):
    def places(self, ids: Tensor) -> Tensor:
        return torch.tensor(ids.shape[1] - 1)


class OverwrittenByTheirPlaces(OfIds):
    def placed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return positions.expand_as(tokens)


class Multiplied(OfIds):
    def placed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return tokens * positions


class MultipliedAndAdded(OfIds):
    """A factor and a term of the same table."""

    def placed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return tokens * positions + positions


class OfRowsAndColumns(OfIds):
    """The tokens of a grid that is 16 wide, row by row: a table of the rows and one of the columns."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.ModuleList([nn.Embedding(16, WIDTH), nn.Embedding(16, WIDTH)])

    def forward(self, ids: Tensor) -> Tensor:
        columns, rows = self.columns_and_rows(torch.arange(ids.shape[1]))
        placed = self.tokens(ids) + self.positions[0](columns) + self.positions[1](rows)
        return attended(torch.nn.functional.layer_norm(placed, (WIDTH,)))

    def columns_and_rows(self, places: Tensor) -> tuple[Tensor, Tensor]:
        return places % 16, places // 16


class OfColumnsTwice(OfRowsAndColumns):
    def columns_and_rows(self, places: Tensor) -> tuple[Tensor, Tensor]:
        columns = places % 16
        return columns, columns


def of_ids(kind: type[OfIds]) -> Invocation:
    call = of_x(of_module(kind).target)
    call.arguments = {"ids": torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])}
    call.positional, call.streams = ["ids"], [Stream("ids", "x", 0, (1,))]
    return call


def of_x_beside_another(kind: type[PlacedBesideAStep]) -> Invocation:
    return of_x_and_context(of_module(kind).target)


def of_a_part(kind: type[nn.Module]) -> Invocation:
    return of_module(kind if kind is WithoutItsPart else lambda: OfAnotherPart(Placing()))


def attended(x: Tensor, *, causal: bool = False) -> Tensor:
    q, k, v = (split(x @ (drawn(WIDTH, WIDTH, seed=seed) / WIDTH**0.5)) for seed in (1, 2, 3))
    scores = q @ k.mT / 2  # here
    count = x.shape[1]
    return joined((scores.masked_fill(LATER[:count, :count], -torch.inf) if causal else scores).softmax(-1) @ v)


def added_once(x: Tensor) -> Tensor:
    return attended(x + PLACES[: x.shape[1]])


def added_twice(x: Tensor) -> Tensor:
    x = x + PLACES[: x.shape[1]]
    x = x + PLACES[: x.shape[1]]  # here
    return attended(x)


def thrown_away(x: Tensor) -> Tensor:
    x + PLACES[: x.shape[1]]  # here
    return attended(x)


def added_to_what_is_read(x: Tensor) -> Tensor:
    positions = PLACES[: x.shape[1]]
    return attended(x) + positions  # here


def last_rows(x: Tensor) -> Tensor:
    return attended(x + PLACES[-x.shape[1] :], causal=True)


def first_rows(x: Tensor) -> Tensor:
    return attended(x + PLACES[: x.shape[1]], causal=True)


CASES = [
    Case("positions-without-effect", WithoutItsTable, WithItsTable, of_module, has_line=False),
    Case("positions-without-effect", WithoutItsPart, WithAPart, of_module, has_line=False),
    Case("positions-without-effect", WithoutItsPart, OfAnotherPart, of_a_part, has_line=False),
    *(
        Case("positions-without-effect", wrong, OfIds, of_ids, has_line=False)
        for wrong in (PlacedByTheirIds, PlacedByTheirSmallIds, PlacedAtTheStart, PlacedAtTheEnd)
    ),
    Case("positions-without-effect", OfColumnsTwice, OfRowsAndColumns, of_ids, has_line=False),
    Case("value-of-the-key", OverwrittenByTheirPlaces, OfIds, of_ids, has_line=False),
    Case("positions-added", Multiplied, MultipliedAndAdded, of_ids, has_line=False),
    Case("positions-once", added_twice, added_once, of_x),
    Case("positions-without-effect", added_to_what_is_read, added_once, of_x),
    Case("positions-without-effect", thrown_away, added_once, of_x),
    Case("positions-without-effect", placed_at_the_length, placed_by_sines, of_x),
    Case("positions-without-effect", PlacedAtTheirNumber, PlacedBesideAStep, of_x_beside_another, has_line=False),
    Case("positions-from-the-start", last_rows, first_rows, of_x),
]
