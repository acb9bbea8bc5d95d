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

SIGNATURES = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp"}
"""The first bytes of image files, and their formats."""

MAX_EXTRA_TOKENS = 8
"""The most tokens that are no patch: class and register tokens."""


@dataclass(frozen=True)
class PageImage:
    """An image file and its patches.

    Args:
        data: a PNG, JPEG, GIF or WebP file.
        patches: rows and columns of patches; by default the number of patches is a square.
    """

    data: bytes
    patches: tuple[int, int] | None = None

    @classmethod
    def load(cls, image: Any, patches: tuple[int, int] | None = None) -> PageImage:
        """Read an image from a path, the bytes of a file, or a ``PIL.Image``.

        Raises:
            InputError: the file cannot be read, or is not an image that browsers show.
            TypeError: an argument of another type.
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
            supported = image if image.mode in ("1", "L", "LA", "P", "RGB", "RGBA") else image.convert("RGB")
            supported.save(file, "PNG")
            data = file.getvalue()
        else:
            raise TypeError(
                f"image={type(image).__name__}: a path, the bytes of a file, or a PIL.Image (PIL.Image.fromarray makes "
                "one of numbers)"
            )
        if _format(data) is None:
            name = repr(str(image)) if isinstance(image, str | Path) else "these bytes"
            raise InputError(f"{name}: no PNG, JPEG, GIF or WebP image")
        return cls(data, patches)

    def facts(self, keys: Mapping[int, int]) -> dict[str, Any]:
        """What static/core/data.js calls Image.

        Args:
            keys: the number of keys of each attention that may see the image, by its index in the page; of several
                stacks, the image belongs to the one that fits best.

        Raises:
            ValueError: there are fewer tokens than patches; patches were not given and make no square.
        """
        counts = list(keys.values())
        if self.patches is not None:
            rows, columns = self.patches
            largest = max(counts)
            if rows * columns > largest:
                raise ValueError(f"patches=({rows}, {columns}): the model has {largest} tokens")
            count = min(each for each in counts if each >= rows * columns)
        else:
            count = min(counts, key=lambda each: each - math.isqrt(each) ** 2)
            rows = columns = math.isqrt(count)
            if count - rows**2 > MAX_EXTRA_TOKENS:
                raise ValueError(
                    f"the model has {count} tokens, which are no square of patches and a few more: say "
                    "patches=(rows, columns)"
                )
        # Class and register tokens come before the patches.
        return {
            "source": f"data:image/{_format(self.data)};base64,{b64encode(self.data).decode()}",
            "rows": rows,
            "columns": columns,
            "first_patch": count - rows * columns,
            "attentions": [index for index, each in keys.items() if each >= count],
        }


def _format(data: bytes) -> str | None:
    """The format of an image file; None if browsers do not show it."""
    format_ = next((name for signature, name in SIGNATURES.items() if data.startswith(signature)), None)
    return None if format_ == "webp" and data[8:12] != b"WEBP" else format_  # audio files begin with RIFF, too
