"""A mask in the form that other libraries take; `interop` lists their conventions and reads them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from regard.attention.mask.geometry import MaskGeometry


class MaskExport(MaskGeometry):
    """The ``to_...`` methods of every mask."""

    def to_sdpa(
        self,
        queries: int,
        keys: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """An ``attn_mask`` for ``F.scaled_dot_product_attention``: True = may attend.

        Args:
            queries: number of queries.
            keys: number of keys.
            dtype: None for a boolean tensor; a floating-point dtype for a tensor that is added to the scores, 0 = may
                attend and -inf = may not.
            device: the device of the result; by default that of the mask's own tensors.

        Returns:
            ``(..., queries, keys)``, as `dense`.
        """
        allowed = self.dense(queries, keys, device=device)
        return allowed if dtype is None else _additive("to_sdpa", allowed, dtype, -torch.inf)

    def to_multihead(
        self,
        queries: int,
        keys: int,
        *,
        batch_size: int | None = None,
        num_heads: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """An ``attn_mask`` for ``nn.MultiheadAttention``: True = may NOT attend, the opposite of a mask here.

        A query with nothing to attend to gets a zero output from regard, and NaN from that module.

        Args:
            queries: number of queries.
            keys: number of keys.
            batch_size: number of batch rows, needed by a mask that differs by head but not by batch row.
            num_heads: number of heads, needed by a mask that differs by batch row.
            dtype: None for a boolean tensor; a floating-point dtype for a tensor that is added to the scores, 0 = may
                attend and -inf = may not.
            device: the device of the result; by default that of the mask's own tensors.

        Returns:
            ``(queries, keys)``, or ``(batch_size * num_heads, queries, keys)`` from a mask that differs by batch row
            or head, the heads of one batch row side by side. It includes padding: ``key_padding_mask`` stays None.

        Raises:
            ValueError: batch_size or num_heads is needed and missing, or differs from the mask's own.
        """
        rows, heads = self.batch_heads(queries, keys)
        allowed = self.dense(queries, keys, device=device)
        if rows is heads is None:
            allowed = allowed.reshape(queries, keys)
        else:
            for name, argument, own in (("batch_size", batch_size, rows), ("num_heads", num_heads, heads)):
                if argument is None and own is None:
                    raise ValueError(
                        f"{self!r}.to_multihead(): nn.MultiheadAttention wants it as (batch_size * num_heads, queries, "
                        f"keys): say {name}"
                    )
            batch_size = self._agreed_size("batch rows", batch_size, rows)
            num_heads = self._agreed_size("heads", num_heads, heads)
            assert batch_size is not None
            assert num_heads is not None
            allowed = allowed.expand(batch_size, num_heads, queries, keys)
            allowed = allowed.reshape(batch_size * num_heads, queries, keys)
        return ~allowed if dtype is None else _additive("to_multihead", allowed, dtype, -torch.inf)

    def to_huggingface(
        self, queries: int, keys: int, *, dtype: torch.dtype, device: torch.device | str | None = None
    ) -> Tensor:
        """A four-axis ``attention_mask`` for models of ``transformers``: 0 = may attend, finfo(dtype).min = may not.

        The models add it to the scores and add no mask of their own: causality and padding must be in it. A query
        with nothing to attend to gets a zero output from regard, and the mean of all values from these models.

        Args:
            queries: number of queries.
            keys: number of keys.
            dtype: the model's own dtype.
            device: the device of the result; by default that of the mask's own tensors.

        Returns:
            ``(batch, heads, queries, keys)``; batch and heads are 1 where one mask serves all.
        """
        rows, heads = self.batch_heads(queries, keys)
        allowed = self.dense(queries, keys, device=device)
        allowed = allowed.reshape(1 if rows is None else rows, 1 if heads is None else heads, queries, keys)
        return _additive("to_huggingface", allowed, dtype, None)

    def to_flex(
        self,
        queries: int,
        keys: int,
        *,
        batch_size: int | None = None,
        num_heads: int | None = None,
        device: torch.device | str,
        block_size: int | tuple[int, int] = 128,
    ) -> BlockMask:
        """A ``BlockMask`` for ``flex_attention``, whose ``mask_mod`` returns True = may attend.

        ``create_block_mask`` evaluates every pair at once to find its blocks: queries x keys bytes and more.

        Args:
            queries: number of queries.
            keys: number of keys.
            batch_size: number of batch rows; by default the mask's own number, or one that serves all.
            num_heads: number of heads; likewise.
            device: the device of q, k and v.
            block_size: queries and keys of a block.

        Raises:
            ValueError: batch_size or num_heads differs from the mask's own; there are no queries or no keys.
        """
        if queries < 1 or keys < 1:
            raise ValueError(f"{self!r}.to_flex({queries}, {keys}): a BlockMask wants at least one query and one key")
        rows, heads = self.batch_heads(queries, keys)
        return create_block_mask(
            self.predicate(queries, keys, device),
            self._agreed_size("batch rows", batch_size, rows),
            self._agreed_size("heads", num_heads, heads),
            queries,
            keys,
            device,
            block_size,
        )

    def _agreed_size(self, axis: str, argument: int | None, own: int | None) -> int | None:
        """A size that the caller or the mask gives; both must be equal if both give it."""
        if argument is not None and own is not None and argument != own:
            raise ValueError(f"{self!r} has {own} {axis}, but there are {argument}")
        return own if argument is None else argument


def _additive(name: str, allowed: Tensor, dtype: torch.dtype, blocked: float | None) -> Tensor:
    """0 where True; where False, the number for blocked pairs, by default the smallest number of the dtype."""
    if not dtype.is_floating_point:
        raise TypeError(f"{name}(dtype={dtype}): a mask that is added to the scores has a floating-point dtype")
    blocked = torch.finfo(dtype).min if blocked is None else blocked
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, blocked)
