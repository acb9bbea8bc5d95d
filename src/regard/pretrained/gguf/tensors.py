"""The tensors of a GGUF file, dequantised when they are wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard.errors import InputError
from regard.pretrained.gguf.header import Header, TensorInfo

Transform = Callable[[Tensor], Tensor]

CHUNK_VALUES = 2**17
"""How many values are dequantised at a time: half a megabyte, which stays in the processor's cache between the steps of
`gguf.dequantize`. With whole tensors or with the sixteen rows that the package takes, they need three times as long."""
COPIED_VALUES = 2**14
"""How many are copied at a time: so few PyTorch copies on this thread, and on a busy machine waits for no other."""


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor of a GGUF file, as a checkpoint of transformers would hold it; a `regard.pretrained.renames.LazyTensor`.

    Its values are read from the file and dequantised each time that they are copied.
    """

    header: Header
    info: TensorInfo
    transform: Transform | None = None
    """Makes a checkpoint's tensor of the file's; None where they are the same."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in the checkpoint."""
        if self.transform is None:
            return self.info.shape
        return tuple(self.transform(torch.empty(self.info.shape, device="meta")).shape)

    @property
    def dtype(self) -> torch.dtype:
        """What the values are dequantised to, before they take the dtype of the model."""
        return torch.float32

    def copy_to(self, destination: Tensor) -> None:
        """Write the values into a tensor.

        Args:
            destination: of the same shape and any dtype; a view of a larger one, for instance.

        Raises:
            InputError: the values are of a type that `gguf` cannot dequantise.
        """
        if self.transform is None and destination.is_contiguous():
            dequantize(self.header, self.info, destination)
        else:
            values = torch.empty(self.info.shape)
            dequantize(self.header, self.info, values)
            destination.copy_(values if self.transform is None else self.transform(values))


def dequantize(header: Header, info: TensorInfo, destination: Tensor) -> None:
    """Write the values of a file's tensor into a contiguous one of its shape.

    Raises:
        InputError: the values are of a type that `gguf` cannot dequantise.
    """
    import gguf

    data, flat = header.data(info), destination.view(-1)
    values_of_block, bytes_of_block = gguf.GGML_QUANT_SIZES[info.type]
    blocks = max(1, CHUNK_VALUES // values_of_block)
    for first in range(0, len(data) // bytes_of_block, blocks):
        # A block is dequantised by itself, so it does not matter where the rows of the tensor end.
        chunk = data[first * bytes_of_block : (first + blocks) * bytes_of_block].reshape(1, -1)
        try:
            with np.errstate(all="ignore"):  # a damaged file; the loader refuses what is not finite
                values = np.require(gguf.dequantize(chunk, info.type), np.float32, "W").reshape(-1)
        except NotImplementedError as error:
            raise InputError(
                f"{header.path}: {info.name} is stored as {info.type.name}, which the package gguf cannot dequantise"
            ) from error
        start = first * values_of_block
        pieces = torch.split(flat[start : start + len(values)], COPIED_VALUES)
        for piece, part in zip(pieces, torch.split(torch.from_numpy(values), COPIED_VALUES), strict=True):
            piece.copy_(part)
