"""One attention, in the form that every kernel works on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from regard.attention.bias import PositionBias
from regard.attention.kernels.block import ScoreBlock
from regard.attention.mask.base import Mask
from regard.attention.mask.geometry import Tile
from regard.attention.validation import resolve_mask

__all__ = ["AttentionCall", "ensure_unchanged", "mask_tensors"]


@dataclass(frozen=True)
class AttentionCall:
    """What `regard.attend` was asked for, checked, every tensor (batch, heads, tokens, width)."""

    q: Tensor
    k: Tensor
    v: Tensor
    original_qk: tuple[Tensor, Tensor]
    """q and k with the axes they came with: what masks and biases broadcast against."""
    mask: Mask | None
    scale: float | int
    bias: Tensor | PositionBias | None = None
    softcap: float | int | None = None
    sinks: Tensor | None = None
    dropout: float | int = 0.0

    @classmethod
    def from_inputs(cls, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, **options: Any) -> AttentionCall:
        """Tensors that fit one another, whatever their batch axes."""
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
        # In a graph a comparison of sizes is no bool, and PyTorch's kernels want one.
        if self.q.shape[1] == self.k.shape[1]:  # noqa: SIM103
            return False
        return True

    @property
    def full_tile(self) -> Tile:
        """Every query and every key."""
        return Tile.full(self.queries, self.keys, self.q.device)

    def tile(self, rows: tuple[int, int], columns: tuple[int, int]) -> Tile:
        """Some rows against some columns."""
        return Tile(self.queries, self.keys, rows, columns, self.q.device)

    def allowed(self, tile: Tile, mask: Mask | None = None) -> Tensor:
        """The mask, or a part of it, in an area; four axes, each of its own size or 1."""
        mask = self.mask if mask is None else mask
        assert mask is not None
        return self.broadcast_to_batch(resolve_mask(mask, *self.original_qk, tile))

    def bias_for(self, block: ScoreBlock) -> Tensor | None:
        """The bias of a block's rows towards its keys; four axes."""
        if self.bias is None or isinstance(self.bias, Tensor):
            return None if self.bias is None else block.take_pairs(self.bias)
        blocks = [block]
        if block.num_stacked > 1:
            # Queries that move as far as keys keep their distances: the first block's bias is that of all.
            same = self.bias.relative and block.key_stride == block.height
            blocks = list(islice(block.unstack(), 1 if same else None))
        parts = [self.bias(*self._positions(each))[None].to(self.q.dtype) for each in blocks]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _positions(self, block: ScoreBlock) -> tuple[Tensor, Tensor]:
        """Where the queries and the keys of a block stand among the keys."""
        key = block.keys if isinstance(block.keys, Tensor) else torch.arange(*block.keys, device=self.q.device)
        return torch.arange(*block.rows, device=self.q.device) + self.keys - self.queries, key

    def without_tensors(self) -> AttentionCall:
        """The same for what needs shapes alone, so that the backward pass keeps no q, k and v but those it saves."""
        q, k = self.original_qk
        original = _shape_of(q), _shape_of(k)
        return replace(
            self, q=_shape_of(self.q), k=_shape_of(self.k), v=_shape_of(self.v), original_qk=original, sinks=None
        )

    def version_snapshot(self) -> list[tuple[Tensor, int]]:
        """The tensors that mask and bias hold, each with how often it was changed in place so far."""
        tensors = list(mask_tensors(self.mask))
        if isinstance(self.bias, Tensor):
            tensors.append(self.bias)
        elif self.bias is not None:
            tensors += [*self.bias.parameters(), *self.bias.buffers()]
        return [(t, t._version) for t in tensors if not t.is_inference()]

    def broadcast_to_batch(self, t: Tensor) -> Tensor:
        """A mask or bias with the same four axes as q, broadcast over the batch where it was."""
        lead = self.original_qk[0].shape[:-3]
        t = t[(None,) * (max(len(lead) + 3, 4) - t.ndim)]
        if t.ndim == 4:
            return t
        return t.expand(*lead, *t.shape[-3:]).reshape(lead.numel(), *t.shape[-3:])


def ensure_unchanged(held: list[tuple[Tensor, int]]) -> None:
    """Refuse to go on where a tensor of `AttentionCall.version_snapshot` was changed since.

    Raises:
        RuntimeError: as autograd does for the tensors that it saves.
    """
    for t, version in held:
        if t._version != version:
            raise RuntimeError(
                f"a tensor of shape {tuple(t.shape)} that the mask or the bias holds was changed in place between the "
                "forward and the backward pass of attend, which needs it again: change a copy"
            )


def mask_tensors(mask: Mask | None) -> Iterator[Tensor]:
    """Every tensor that a mask is made of."""
    for value in vars(mask).values() if mask is not None else ():
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Mask):
            yield from mask_tensors(value)


def _shape_of(t: Tensor) -> Tensor:
    """A tensor of the same shape, dtype and device that takes no memory."""
    return torch.empty((), dtype=t.dtype, device=t.device).expand(t.shape)


def _four_axes(t: Tensor) -> Tensor:
    """(..., heads, tokens, width) as (batch, heads, tokens, width)."""
    if t.ndim == 4:
        return t
    heads = t.shape[-3] if t.ndim > 2 else 1
    return t.reshape(t.shape[:-3].numel(), heads, *t.shape[-2:])
