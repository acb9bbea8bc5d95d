"""Pictures that are cut into patches, and made of patches again."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn
from property_cases.surrounding_cases import Attention
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare

SIDE, PATCH, CHANNELS = 6, 2, 3


class OfPatches(Attention):
    """Each token is a patch, and gives one."""

    into = "bhwpqc->bchpwq"

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding((SIDE // PATCH) ** 2, WIDTH)
        self.cut = nn.Conv2d(CHANNELS, WIDTH, PATCH, PATCH)
        self.last = nn.Linear(WIDTH, PATCH * PATCH * CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.last(super().forward(self.cut(x).flatten(2).mT))  # here
        patches = tokens.unflatten(-1, (PATCH, PATCH, CHANNELS)).unflatten(1, (SIDE // PATCH, SIDE // PATCH))
        return torch.einsum(self.into, patches).reshape(x.shape)


class OfLines(OfPatches):
    into = "bhwpqc->bchwpq"


class OfTransposedPatches(OfPatches):
    """Within a patch rows are columns: what is learned is in this order."""

    into = "bhwpqc->bchqwp"


class OfRows(Attention):
    """Each token is a row of the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(SIDE, WIDTH)
        self.first, self.last = nn.Linear(CHANNELS * SIDE, WIDTH), nn.Linear(WIDTH, CHANNELS * SIDE)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.first(x.transpose(1, 2).flatten(2))
        rows = self.last(super().forward(tokens))
        return rows.unflatten(-1, (CHANNELS, SIDE)).transpose(1, 2)  # type: ignore[no-any-return]


def of_a_picture(kind: type[nn.Module]) -> Invocation:
    """A call of a picture."""
    module = kind()
    prepare(module, 1)
    return Invocation(module, {"x": drawn(2, CHANNELS, SIDE, SIDE, seed=0)}, ["x"], [Stream("x", "x", 0, (2, 3))])


CASES = [
    Case("patches-put-back", OfLines, OfPatches, of_a_picture, has_line=False),
    Case("patches-put-back", OfLines, OfTransposedPatches, of_a_picture, has_line=False),
    Case("patches-put-back", OfLines, OfRows, of_a_picture, has_line=False),
]
