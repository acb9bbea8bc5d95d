"""An image whose patches are the tokens of a vision model."""

from __future__ import annotations

import io
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import InputError

SIGNATURES = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp"}
"""The first bytes of image files, and their formats."""


@dataclass(frozen=True)
class PageImage:
    """An image file: PNG, JPEG, GIF or WebP."""

    data: bytes

    @classmethod
    def load(cls, image: Any) -> PageImage:
        """Read an image from a path, the bytes of a file, or a ``PIL.Image``.

        Raises:
            InputError: the file cannot be read, or is not an image that browsers show.
            TypeError: an argument of another type.
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
        return cls(data)

    @property
    def source(self) -> str:
        """The file as a data: address."""
        return f"data:image/{_format(self.data)};base64,{b64encode(self.data).decode()}"


def _format(data: bytes) -> str | None:
    """The format of an image file; None if browsers do not show it."""
    format_ = next((name for signature, name in SIGNATURES.items() if data.startswith(signature)), None)
    return None if format_ == "webp" and data[8:12] != b"WEBP" else format_  # audio files begin with RIFF, too
