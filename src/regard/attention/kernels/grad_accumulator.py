"""The gradient of keys or values, gathered block by block: what nobody wrote yet is written, the rest is added to.

Packed documents have their keys for themselves, and most of such a gradient is then written once. Zeros everywhere
first, and all added to them, took as long again as the products.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.kernels.block import ScoreBlock

__all__ = ["GradAccumulator", "empty_like_layout"]


def empty_like_layout(like: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """An empty (batch, heads, tokens, width) in the order of memory that the kernel gives beside such a tensor."""
    batch, heads, tokens, _ = like.shape
    if like.stride(1) < like.stride(2):
        return torch.empty(batch, tokens, heads, width, dtype=dtype, device=like.device).transpose(1, 2)
    return torch.empty(batch, heads, tokens, width, dtype=dtype, device=like.device)


class GradAccumulator:
    """The sum of what each block says of its keys.

    Args:
        like: the keys or the values, (batch, heads, keys, width).
        dtype: to sum in. A key has a part of its gradient in each block of rows: half precision would round each.
    """

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self.total = empty_like_layout(like, like.shape[-1], dtype)
        self.dtype = like.dtype
        self._written = [0] * len(like)
        """Up to which key each batch row holds numbers; beyond is whatever was in memory."""

    def add(self, block: ScoreBlock, part: Tensor) -> None:
        """What one block says of its keys."""
        first, stop = block.key_span
        rows = range(len(self.total)) if block.batch is None else [block.batch]
        fresh = not isinstance(block.keys, Tensor) and block.key_stride >= block.columns
        fresh = fresh and all(self._written[row] <= first for row in rows)
        # The keys of a stack may have others between them.
        fresh_to = first if fresh and (block.num_stacked == 1 or block.key_stride == block.columns) else stop
        for row in rows:
            self._zeros(row, fresh_to)
            self._written[row] = max(self._written[row], stop)
        if fresh:
            block.take_keys(self.total).copy_(part)
        else:
            block.add_to_keys(self.total, part)

    def result(self) -> Tensor:
        """The sum, in the dtype of the keys."""
        for row in range(len(self.total)):
            self._zeros(row, self.total.shape[2])
        return self.total.to(self.dtype)

    def _zeros(self, row: int, stop: int) -> None:
        if self._written[row] < stop:
            self.total[row, :, self._written[row] : stop] = 0
            self._written[row] = stop
