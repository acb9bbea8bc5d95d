"""The checked arguments of `attend`, in the form that every kernel takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from regard.attention.bias import PositionBias
from regard.attention.kernels.score_block import ScoreBlock
from regard.attention.mask.base import Mask
from regard.attention.mask.geometry import Tile
from regard.attention.validation import resolve_mask


@dataclass(frozen=True)
class AttentionCall:
    """The arguments of one `regard.attend`, checked; every tensor is (batch, heads, tokens, width)."""

    q: Tensor
    k: Tensor
    v: Tensor
    original_qk: tuple[Tensor, Tensor]
    """q and k with the caller's own axes, against which masks and biases broadcast."""
    mask: Mask | None
    scale: float | int
    bias: Tensor | PositionBias | None = None
    softcap: float | int | None = None
    sinks: Tensor | None = None
    dropout: float | int = 0.0

    @classmethod
    def from_inputs(cls, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, **options: Any) -> AttentionCall:
        """The call of tensors that fit one another, with any number of batch axes."""
        call = cls(_four_axes(q), _four_axes(k), _four_axes(v), (q, k), mask, **options)
        return replace(call, bias=call.broadcast_to_batch(call.bias)) if isinstance(call.bias, Tensor) else call

    @property
    def queries(self) -> int:
        """Number of queries."""
        return self.q.shape[-2]

    @property
    def keys(self) -> int:
        """Number of keys."""
        return self.k.shape[-2]

    @property
    def grouped(self) -> bool:
        """Whether a key head serves several query heads."""
        # In a graph, a comparison of sizes is not a bool, but PyTorch's kernels need one.
        if self.q.shape[1] == self.k.shape[1]:  # noqa: SIM103
            return False
        return True

    @property
    def full_tile(self) -> Tile:
        """Every query and every key."""
        return Tile.full(self.queries, self.keys, self.q.device)

    def tile(self, rows: tuple[int, int], columns: tuple[int, int]) -> Tile:
        """Some queries and some keys."""
        return Tile(self.queries, self.keys, rows, columns, self.q.device)

    def allowed(self, tile: Tile, mask: Mask | None = None) -> Tensor:
        """The mask, or the part of it that is given, in a tile: four axes, each full or of size 1."""
        mask = self.mask if mask is None else mask
        assert mask is not None
        return self.broadcast_to_batch(resolve_mask(mask, *self.original_qk, tile))

    def bias_for(self, block: ScoreBlock) -> Tensor | None:
        """The bias of the rows and keys of a block; four axes."""
        if self.bias is None or isinstance(self.bias, Tensor):
            return None if self.bias is None else block.take_pairs(self.bias)
        blocks = [block]
        if block.num_stacked > 1:
            # Where queries and keys move on together their distances stay: one bias serves every block of the stack.
            one_bias = self.bias.relative and block.key_stride == block.height
            blocks = list(islice(block.unstack(), 1 if one_bias else None))
        parts = [self.bias(*self._positions(single))[None].to(self.q.dtype) for single in blocks]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _positions(self, block: ScoreBlock) -> tuple[Tensor, Tensor]:
        """The positions of the queries and keys of a block, counted from the first key."""
        row, key = (
            places if isinstance(places, Tensor) else torch.arange(*places, device=self.q.device)
            for places in (block.rows, block.keys)
        )
        return row + self.keys - self.queries, key

    def without_tensors(self) -> AttentionCall:
        """The call without its tensors but with their shapes: the backward pass has saved q, k and v already."""
        q, k = self.original_qk
        original = _without_data(q), _without_data(k)
        return replace(
            self,
            q=_without_data(self.q),
            k=_without_data(self.k),
            v=_without_data(self.v),
            original_qk=original,
            sinks=None,
        )

    def version_snapshot(self) -> list[tuple[Tensor, int]]:
        """The tensors of the mask and the bias, each with its version: the number of changes in place so far."""
        tensors = list(mask_tensors(self.mask))
        if isinstance(self.bias, Tensor):
            tensors.append(self.bias)
        elif self.bias is not None:
            tensors += [*self.bias.parameters(), *self.bias.buffers()]
        return [(t, t._version) for t in tensors if not t.is_inference()]

    def broadcast_to_batch(self, t: Tensor) -> Tensor:
        """A mask or bias with four axes; an axis of size 1 stays."""
        lead = self.original_qk[0].shape[:-3]
        t = t[(None,) * (max(len(lead) + 3, 4) - t.ndim)]
        if t.ndim == 4:
            return t
        return t.expand(*lead, *t.shape[-3:]).reshape(lead.numel(), *t.shape[-3:])


def ensure_unchanged(snapshot: list[tuple[Tensor, int]]) -> None:
    """Refuse tensors that were changed in place after `AttentionCall.version_snapshot`.

    Raises:
        RuntimeError: as autograd does for the tensors that it saves.
    """
    for t, version in snapshot:
        if t._version != version:
            raise RuntimeError(
                f"a tensor of shape {tuple(t.shape)} of the mask or the bias was changed in place between the forward "
                "and the backward pass of attend, which needs it again: change a copy"
            )


def mask_tensors(mask: Mask | None) -> Iterator[Tensor]:
    """Every tensor in a mask."""
    for value in vars(mask).values() if mask is not None else ():
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Mask):
            yield from mask_tensors(value)


def _without_data(t: Tensor) -> Tensor:
    """A tensor of the same shape, dtype and device that needs no memory."""
    return torch.empty((), dtype=t.dtype, device=t.device).expand(t.shape)


def _four_axes(t: Tensor) -> Tensor:
    """(..., heads, tokens, width) as (batch, heads, tokens, width)."""
    if t.ndim == 4:
        return t
    heads = t.shape[-3] if t.ndim > 2 else 1
    return t.reshape(t.shape[:-3].numel(), heads, *t.shape[-2:])
