"""How an image becomes tokens."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Patches"]


@dataclass(frozen=True, kw_only=True)
class Patches:
    """How an image is cut: into patches of one size, row by row (Dosovitskiy et al. 2021, section 3.1).

    Raises:
        ValueError: sizes that are no whole numbers from 1, or that do not divide.
    """

    image_size: tuple[int, int]
    """Height and width of an image, in pixels."""
    patch_size: tuple[int, int]
    """Height and width of a patch."""
    channels: int = 3
    """Numbers of a pixel: 3 for colours, 1 for grey."""

    def __post_init__(self) -> None:
        for name, sizes in (
            ("image_size", self.image_size),
            ("patch_size", self.patch_size),
            ("channels", (self.channels,) * 2),
        ):
            if len(sizes) != 2 or any(type(size) is not int or not 1 <= size < 2**15 for size in sizes):
                said = getattr(self, name)
                raise ValueError(f"{name}={said!r}: whole numbers, at least 1 and below 2**15 (height, width)")
        for image, patch in zip(self.image_size, self.patch_size, strict=True):
            if image % patch:
                raise ValueError(
                    f"image_size={self.image_size} does not divide into patches of patch_size={self.patch_size}"
                )

    @property
    def rows(self) -> int:
        """How many patches stand one below the other."""
        return self.image_size[0] // self.patch_size[0]

    @property
    def columns(self) -> int:
        """How many patches stand side by side."""
        return self.image_size[1] // self.patch_size[1]

    @property
    def tokens(self) -> int:
        """How many tokens an encoder reads: one for each patch, and before them the class token."""
        return 1 + self.rows * self.columns

    @property
    def names(self) -> list[str]:
        """What the tokens may be called: ``[class]``, then row and column of each patch, counted from 0."""
        return ["[class]", *(f"{row},{column}" for row in range(self.rows) for column in range(self.columns))]
