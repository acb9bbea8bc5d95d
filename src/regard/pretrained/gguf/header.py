"""The header of a GGUF file: its metadata, and where each tensor lies.

The format is ggml's (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), versions 2 and 3. The package `gguf`
has a reader as well. It makes an array of numpy of each of the 98,000 strings of SmolLM2's tokenizer, which takes
1.8 s, and it believes the counts of a damaged file. This one takes a fiftieth of that, and compares every count with
the bytes that are there before it reads on. The types of tensors, and how they are dequantised, are the package's.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.errors import InputError, short_repr

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType

MAX_SHOWN = 60

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
"""Bytes; tensors begin at multiples of it, unless ``general.alignment`` says otherwise."""
MAX_AXES = 4
MIN_ENTRY_BYTES = 8 + 4 + 1
"""The fewest bytes of an entry of the metadata: the length of its name, its type and its value."""
MIN_TENSOR_BYTES = 8 + 4 + 4 + 8
"""The fewest bytes that describe a tensor: the length of its name, the number of axes, its type and its offset."""

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The formats of `struct` by the numbers of the value types."""
STRING, ARRAY = 8, 9


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a GGUF file."""

    name: str
    shape: tuple[int, ...]
    """The sizes of its axes in PyTorch's order; the file has them the other way round."""
    type: GGMLQuantizationType
    start: int
    """Its first byte in the file."""
    num_bytes: int


@dataclass(frozen=True, eq=False)
class Header:
    """What stands before the tensors of a GGUF file."""

    path: Path
    metadata: Mapping[str, Any]
    """Numbers, texts and lists of them by their keys."""
    tensors: Mapping[str, TensorInfo]

    def data(self, tensor: TensorInfo) -> np.ndarray:
        """The bytes of a tensor, mapped from the file and read where they are used."""
        return np.asarray(np.memmap(self.path, np.uint8, "r", tensor.start, (tensor.num_bytes,)))


def shown(value: Any) -> str:
    """A value of the metadata for a message of one line; of a long one its beginning."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def read_header(path: Path) -> Header:
    """The header of a GGUF file.

    Raises:
        InputError: no GGUF file, or one that is cut, damaged or of another version.
    """
    try:
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
            if start != MAGIC:
                raise InputError(f"{path} is no GGUF file: it begins with {start!r}, not with {MAGIC!r}")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _Cursor(path, content).header()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


class _Cursor:
    """A place in a GGUF file, that moves behind what it reads."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self.path, self.content, self.size = path, content, len(content)
        self.at = len(MAGIC)
        self.doing = "its header"

    def header(self) -> Header:
        version = self.number("I")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            what = "big-endian, which" if swapped in VERSIONS else f"of version {version}, and this version"
            raise InputError(f"{self.path} is {what} regard does not read; it reads little-endian GGUF 2 and 3")
        num_tensors, num_entries = self.number("Q"), self.number("Q")
        self.require(num_tensors * MIN_TENSOR_BYTES + num_entries * MIN_ENTRY_BYTES)
        metadata = self.entries(num_entries)
        described = [self.tensor() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or not 0 < alignment <= 2**20 or alignment % 8:
            raise InputError(f"{self.path}: general.alignment is {shown(alignment)}; it must be a multiple of 8")
        start = -(-self.at // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for name, shape, type_number, offset in described:
            if name in tensors:
                raise InputError(f"{self.path} is damaged: it has the tensor {short_repr(name)} twice")
            tensors[name] = self.placed(name, shape, type_number, start, offset, alignment)
        self.refuse_overlaps(tensors.values())
        return Header(self.path, metadata, tensors)

    def entries(self, count: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(count):
            key = self.text()
            self.doing = short_repr(key)
            if key in metadata:
                raise InputError(f"{self.path} is damaged: it has the setting {short_repr(key)} twice")
            metadata[key] = self.value(self.number("I"))
            self.doing = f"what follows {short_repr(key)}"
        return metadata

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, type and offset of the next tensor."""
        name = self.text()
        self.doing = f"the tensor {short_repr(name)}"
        num_axes = self.number("I")
        if not 1 <= num_axes <= MAX_AXES:
            raise InputError(f"{self.path} is damaged: {self.doing} has {num_axes} axes, not 1 to {MAX_AXES}")
        shape = tuple(reversed([self.number("Q") for _ in range(num_axes)]))
        if 0 in shape:
            raise InputError(f"{self.path} is damaged: {self.doing} has the shape {shape}, which holds nothing")
        kind, offset = self.number("I"), self.number("Q")
        self.doing = f"what follows the tensor {short_repr(name)}"
        return name, shape, kind, offset

    def placed(
        self, name: str, shape: tuple[int, ...], type_number: int, start: int, offset: int, alignment: int
    ) -> TensorInfo:
        """A tensor that is known to lie in the file."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        try:
            type_ = GGMLQuantizationType(type_number)
            block, bytes_of_block = GGML_QUANT_SIZES[type_]
        except (ValueError, KeyError):
            raise InputError(
                f"{self.path}: the tensor {short_repr(name)} has type {type_number}, which the installed gguf does not "
                "know; a newer one may: pip install --upgrade gguf"
            ) from None
        if shape[-1] % block:
            raise InputError(
                f"{self.path} is damaged: {short_repr(name)} has rows of {shape[-1]}, and {type_.name} stores blocks "
                f"of {block}"
            )
        num_bytes = math.prod(shape) // block * bytes_of_block
        if offset % alignment:
            raise InputError(f"{self.path} is damaged: {short_repr(name)} does not begin at a multiple of {alignment}")
        if start + offset + num_bytes > self.size:
            raise InputError(
                f"{self.path} is truncated: {short_repr(name)} of shape {shape} ends at byte "
                f"{start + offset + num_bytes}, the file at {self.size}. Fetch it anew"
            )
        return TensorInfo(name, shape, type_, start + offset, num_bytes)

    def refuse_overlaps(self, tensors: Iterable[TensorInfo]) -> None:
        """Refuse tensors that share bytes: a small file could fill the memory with them."""
        placed = sorted(tensors, key=lambda tensor: tensor.start)
        for tensor, following in pairwise(placed):
            if tensor.start + tensor.num_bytes > following.start:
                names = f"{short_repr(tensor.name)} and {short_repr(following.name)}"
                raise InputError(f"{self.path} is damaged: the tensors {names} share bytes")

    def value(self, value_type: int) -> Any:
        if value_type == STRING:
            return self.text()
        if value_type != ARRAY:
            return self.number(self.number_format(value_type))
        item_type, count = self.number("I"), self.number("Q")
        if item_type == ARRAY:
            raise InputError(f"{self.path}: {self.doing} is a list of lists, which no model has")
        if item_type == STRING:
            self.require(count * 8)
            return self.texts(count)
        form = self.number_format(item_type)
        return list(struct.unpack_from(f"<{count}{form}", self.content, self.take(count * struct.calcsize(f"<{form}"))))

    def number_format(self, value_type: int) -> str:
        if value_type not in NUMBERS:
            raise InputError(f"{self.path} is damaged: {self.doing} has a value of type {value_type}")
        return NUMBERS[value_type]

    def number(self, form: str) -> Any:
        return struct.unpack_from(f"<{form}", self.content, self.take(struct.calcsize(f"<{form}")))[0]

    def text(self) -> str:
        return self.texts(1)[0]

    def texts(self, count: int) -> list[str]:
        """The next texts. A vocabulary has a hundred thousand, hence the local names."""
        content, size, at = self.content, self.size, self.at
        length_of: Callable[..., tuple[int]] = struct.Struct("<Q").unpack_from
        texts = []
        for _ in range(count):
            end = at + 8 + length_of(content, at)[0] if at + 8 <= size else size + 1
            if end > size:
                self.at = at
                self.require(end - at)
            try:
                texts.append(content[at + 8 : end].decode("utf-8"))
            except UnicodeDecodeError as error:
                raise InputError(f"{self.path} is damaged: {self.doing} holds a text that is no UTF-8") from error
            at = end
        self.at = at
        return texts

    def take(self, num_bytes: int) -> int:
        """The present place, which moves on by so many bytes."""
        self.require(num_bytes)
        self.at += num_bytes
        return self.at - num_bytes

    def require(self, num_bytes: int) -> None:
        """Refuse to go on where the file does not have so many more bytes.

        Raises:
            InputError: the file ends before.
        """
        if self.at + num_bytes > self.size:
            raise InputError(
                f"{self.path} is truncated or damaged: {self.doing} takes {num_bytes} bytes from byte {self.at}, and "
                f"the file has {self.size}. Fetch it anew"
            )
