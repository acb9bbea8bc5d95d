"""Pictures that are cut into rectangles of other sides than a patch is told to have."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare


class UnfoldedPatches(nn.Module):
    """Patches of 2 x 2 places: unfold sets the axes of windows behind all others."""

    order = (0, 2, 3, 1, 4, 5)

    def __init__(self, patch_size: int = 2) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.project, self.qkv = nn.Linear(3 * patch_size**2, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, image: Tensor) -> Tensor:
        windows = image.unfold(2, self.patch_size, self.patch_size).unfold(3, self.patch_size, self.patch_size)
        rows = windows.permute(self.order).reshape(len(image), -1, self.project.in_features)
        x = self.project(rows)  # here
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT / WIDTH**0.5).softmax(-1) @ v


class OfRowsOfPixels(UnfoldedPatches):
    order = (0, 2, 4, 1, 3, 5)


class ToldNoSide(OfRowsOfPixels):
    """Strips of four places of a row, and nothing says that they are patches of 2 x 2."""

    def __init__(self) -> None:
        super().__init__()
        del self.patch_size

    def forward(self, image: Tensor) -> Tensor:
        x = self.project(image.permute(0, 2, 1, 3).flatten(2))
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT / WIDTH**0.5).softmax(-1) @ v


def of_picture(kind: Any) -> Invocation:
    """A call with square pictures."""
    module = kind()
    prepare(module, 1)
    return Invocation(module, {"image": drawn(2, 3, 4, 4, seed=0)}, ["image"], [Stream("image", "x", 0, (2, 3))])


CASES = [
    Case("patches-whole", OfRowsOfPixels, UnfoldedPatches, of_picture),
    Case("patches-whole", OfRowsOfPixels, ToldNoSide, of_picture),
]
