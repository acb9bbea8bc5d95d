"""An image whose patches are the tokens of a vision model."""

from __future__ import annotations

import io
import math
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import InputError

__all__ = ["PageImage"]

TYPES = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp"}
"""How files of images begin."""

OTHERS = 8
"""A model has at most so many tokens that are no patch: of the class, or to rest on."""


@dataclass(frozen=True)
class PageImage:
    """An image, and how it is cut.

    Args:
        data: a PNG, JPEG, GIF or WebP file.
        patches: rows and columns of patches; by default as many as make a square.
    """

    data: bytes
    patches: tuple[int, int] | None = None

    @classmethod
    def load(cls, image: Any, patches: tuple[int, int] | None = None) -> PageImage:
        """An image of a path, of the bytes of a file, or a ``PIL.Image``.

        Raises:
            InputError: the file cannot be read, or is no image that browsers show.
            TypeError: something else.
            ValueError: patches below 1.
        """
        if patches is not None:
            if not isinstance(patches, tuple | list) or [type(n) for n in patches] != [int, int]:
                raise TypeError(f"patches={patches!r}: (rows, columns)")
            if min(patches) < 1:
                raise ValueError(f"patches={patches}: at least one row and one column")
            patches = (patches[0], patches[1])
        if isinstance(image, str | Path):
            try:
                data = Path(image).read_bytes()
            except OSError as error:
                raise InputError(f"{image} cannot be read: {error.strerror or error}") from error
        elif isinstance(image, bytes):
            data = image
        elif hasattr(image, "save") and hasattr(image, "mode"):
            file = io.BytesIO()
            shown = image if image.mode in ("1", "L", "LA", "P", "RGB", "RGBA") else image.convert("RGB")
            shown.save(file, "PNG")
            data = file.getvalue()
        else:
            raise TypeError(
                f"image={type(image).__name__}: a path, the bytes of a file, or a PIL.Image (PIL.Image.fromarray makes "
                "one of numbers)"
            )
        if _kind(data) is None:
            named = repr(str(image)) if isinstance(image, str | Path) else "these bytes"
            raise InputError(f"{named}: no PNG, JPEG, GIF or WebP image")
        return cls(data, patches)

    def facts(self, keys: Mapping[int, int]) -> dict[str, Any]:
        """What static/core/data.js calls Image.

        Args:
            keys: how many keys each attention has that may look at the image, by its number on the page; of several
                towers, the one that fits best is the image's.

        Raises:
            ValueError: there are fewer tokens than patches, or patches that make no square and were not said.
        """
        tokens = list(keys.values())
        if self.patches is not None:
            rows, columns = self.patches
            most = max(tokens)
            if rows * columns > most:
                raise ValueError(f"patches=({rows}, {columns}): the model has {most} tokens")
            count = min(each for each in tokens if each >= rows * columns)
        else:
            count = min(tokens, key=lambda each: each - math.isqrt(each) ** 2)
            rows = columns = math.isqrt(count)
            if count - rows**2 > OTHERS:
                raise ValueError(
                    f"the model has {count} tokens, which are no square of patches and a few more: say "
                    "patches=(rows, columns)"
                )
        # Tokens that are no patch, of the class or to rest on, stand before the patches.
        return {
            "source": f"data:image/{_kind(self.data)};base64,{b64encode(self.data).decode()}",
            "rows": rows,
            "columns": columns,
            "first": count - rows * columns,
            "attentions": [attention for attention, each in keys.items() if each >= count],
        }


def _kind(data: bytes) -> str | None:
    """What kind of image a file is; None for no image that browsers show."""
    found = next((kind for mark, kind in TYPES.items() if data.startswith(mark)), None)
    return None if found == "webp" and data[8:12] != b"WEBP" else found  # sound begins with RIFF, too
