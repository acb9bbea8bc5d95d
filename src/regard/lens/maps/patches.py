"""Which queries and keys of a map are patches of an image."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class ImagePatches:
    """The patches of one image in one batch row: tokens ``first + row * stride + column``.

    Raises:
        ValueError: numbers that are no grid of tokens.
    """

    batch: int
    """The batch row of the attention."""
    image: int
    """The number of the image among those that the model read."""
    first: int
    """The token of the patch at row 0, column 0."""
    rows: int
    columns: int
    stride: int
    """Tokens from a patch to the one below: more than the columns where a token ends each row of patches."""

    def __post_init__(self) -> None:
        if any(type(number) is not int for number in astuple(self)) or min(self.batch, self.image, self.first) < 0:
            raise ValueError(f"{self}: whole numbers from 0")
        if min(self.rows, self.columns) < 1 or self.stride < self.columns:
            raise ValueError(f"{self}: at least one row and one column, and stride >= columns")

    @property
    def end(self) -> int:
        """The token behind the last patch."""
        return self.first + (self.rows - 1) * self.stride + self.columns


@dataclass(frozen=True)
class AttentionPatches:
    """The patches among the queries and among the keys of an attention; none where it is not known."""

    queries: tuple[ImagePatches, ...] = ()
    keys: tuple[ImagePatches, ...] = ()

    def validate(self, shape: tuple[int, ...]) -> None:
        """Refuse patches that a map does not have.

        Args:
            shape: (batch, heads, queries, keys).

        Raises:
            ValueError: a batch row or a token that is not there.
        """
        for side, size in ((self.queries, shape[2]), (self.keys, shape[3])):
            for patches in side:
                if patches.batch >= shape[0] or patches.end > size:
                    raise ValueError(f"{patches} is not in a map of shape {tuple(shape)}")

    def to_json(self) -> dict[str, list[list[int]]]:
        """Each side as lists of numbers."""
        return {side.name: [list(astuple(patches)) for patches in getattr(self, side.name)] for side in fields(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> AttentionPatches:
        """What `to_json` wrote.

        Raises:
            TypeError: another number of numbers.
            ValueError: numbers that are no grid of tokens.
        """
        return cls(**{name: tuple(ImagePatches(*numbers) for numbers in side) for name, side in data.items()})


NO_PATCHES = AttentionPatches()
