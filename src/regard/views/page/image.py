"""An image whose patches are the tokens of a vision model."""

from __future__ import annotations

import io
import math
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import InputError
from regard.views.page.contents import Told

__all__ = ["Image"]

TYPES = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp"}
"""How files of images begin."""


@dataclass(frozen=True)
class Image:
    """An image, and how it is cut.

    Args:
        data: a PNG, JPEG, GIF or WebP file.
        patches: rows and columns of patches; by default as many as make a square.
    """

    data: bytes
    patches: tuple[int, int] | None = None

    @classmethod
    def of(cls, image: Any, patches: tuple[int, int] | None = None) -> Image:
        """An image of a path, of the bytes of a file, or a ``PIL.Image``.

        Raises:
            InputError: the file cannot be read, or is no image that browsers show.
            TypeError: something else.
        """
        if isinstance(image, str | Path):
            try:
                data = Path(image).read_bytes()
            except OSError as error:
                raise InputError(f"{image} cannot be read: {error.strerror or error}") from error
        elif isinstance(image, bytes):
            data = image
        elif hasattr(image, "save") and hasattr(image, "mode"):
            file = io.BytesIO()
            image.save(file, "PNG")
            data = file.getvalue()
        else:
            raise TypeError(
                f"image={type(image).__name__}: a path, the bytes of a file, or a PIL.Image (PIL.Image.fromarray makes "
                "one of numbers)"
            )
        if not any(data.startswith(mark) for mark in TYPES):
            named = repr(str(image)) if isinstance(image, str | Path) else "these bytes"
            raise InputError(f"{named}: no PNG, JPEG, GIF or WebP image")
        return cls(data, patches)

    def facts(self, told: Sequence[Told]) -> dict[str, Any]:
        """What static/data.js calls Image.

        Raises:
            ValueError: there are fewer tokens than patches, or patches that make no square and were not said.
        """
        tokens = told[0].facts["keys"]
        rows, columns = self.patches or (math.isqrt(tokens),) * 2
        if not 0 < rows * columns <= tokens:
            raise ValueError(f"patches=({rows}, {columns}): the model has {tokens} tokens")
        kind = next(kind for mark, kind in TYPES.items() if self.data.startswith(mark))
        # Tokens that are no patch, of the class or to rest on, stand before the patches.
        return {
            "source": f"data:image/{kind};base64,{b64encode(self.data).decode()}",
            "rows": rows,
            "columns": columns,
            "first": tokens - rows * columns,
        }
