"""The sizes of an image and its patches, which are an image encoder's tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Patches:
    """An image is split into patches of one size, row by row (Dosovitskiy et al. 2021, section 3.1).

    Raises:
        ValueError: sizes that are not whole numbers from 1, or that do not divide.
    """

    image_size: tuple[int, int]
    """Height and width of an image, in pixels."""
    patch_size: tuple[int, int]
    """Height and width of a patch."""
    channels: int = 3
    """Numbers of a pixel: 3 for colour images, 1 for grey ones."""

    def __post_init__(self) -> None:
        for name, sizes in (
            ("image_size", self.image_size),
            ("patch_size", self.patch_size),
            ("channels", (self.channels,) * 2),
        ):
            if len(sizes) != 2 or any(type(size) is not int or not 1 <= size < 2**15 for size in sizes):
                value = getattr(self, name)
                raise ValueError(f"{name}={value!r}: whole numbers, at least 1 and below 2**15 (height, width)")
        for image, patch in zip(self.image_size, self.patch_size, strict=True):
            if image % patch:
                raise ValueError(
                    f"image_size={self.image_size} does not divide into patches of patch_size={self.patch_size}"
                )

    @property
    def num_rows(self) -> int:
        """How many rows of patches there are."""
        return self.image_size[0] // self.patch_size[0]

    @property
    def num_columns(self) -> int:
        """How many columns of patches there are."""
        return self.image_size[1] // self.patch_size[1]

    @property
    def num_tokens(self) -> int:
        """How many tokens an encoder reads: the class token and one for each patch."""
        return 1 + self.num_rows * self.num_columns

    @property
    def token_names(self) -> list[str]:
        """Names of the tokens: ``[class]``, then row and column of each patch, counted from 0."""
        return ["[class]", *(f"{row},{column}" for row in range(self.num_rows) for column in range(self.num_columns))]
