"""The gradient of keys or values, summed block by block: the first block of a key is copied, later ones are added.

Each packed document has its own keys, so most of the gradient is written once. To start from zeros and add every
block doubled the time of the products.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.kernels.score_block import ScoreBlock


def empty_like_layout(like: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """An empty (batch, heads, tokens, width) in the memory layout that the kernel chooses for such a tensor."""
    batch, heads, tokens, _ = like.shape
    if like.stride(1) < like.stride(2):
        return torch.empty(batch, tokens, heads, width, dtype=dtype, device=like.device).transpose(1, 2)
    return torch.empty(batch, heads, tokens, width, dtype=dtype, device=like.device)


class GradAccumulator:
    """The sum of the gradients that the blocks give for their keys.

    Args:
        like: the keys or the values, (batch, heads, keys, width).
        dtype: of the sum. A key gets one term from each block of rows, and half precision would round after each.
    """

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self.total = empty_like_layout(like, like.shape[-1], dtype)
        self.dtype = like.dtype
        self._num_written = [0] * len(like)
        """How many keys of each batch row are written; the memory after them is uninitialized."""

    def add(self, block: ScoreBlock, part: Tensor) -> None:
        """Add the gradient that one block gives for its keys."""
        first, stop = block.key_span
        rows = range(len(self.total)) if block.batch is None else [block.batch]
        first_write = not isinstance(block.keys, Tensor) and block.key_stride >= block.columns
        first_write = first_write and all(self._num_written[row] <= first for row in rows)
        # There may be other keys between those of a stack.
        no_gaps = block.num_stacked == 1 or block.key_stride == block.columns
        for row in rows:
            self._fill_zeros(row, first if first_write and no_gaps else stop)
            self._num_written[row] = max(self._num_written[row], stop)
        if first_write:
            block.take_keys(self.total).copy_(part)
        else:
            block.add_to_keys(self.total, part)

    def result(self) -> Tensor:
        """The sum, in the dtype of the keys."""
        for row in range(len(self.total)):
            self._fill_zeros(row, self.total.shape[2])
        return self.total.to(self.dtype)

    def _fill_zeros(self, row: int, stop: int) -> None:
        if self._num_written[row] < stop:
            self.total[row, :, self._num_written[row] : stop] = 0
            self._num_written[row] = stop
