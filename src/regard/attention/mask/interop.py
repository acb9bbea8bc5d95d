"""Masks of other libraries, read as a `Mask`; `Mask.to_sdpa` and the other ``to_...`` methods write them.

Four conventions are in use, and two of them are opposite:

| library | True | as numbers that are added to the scores |
|---|---|---|
| `regard.mask`, ``F.scaled_dot_product_attention``, FlexAttention's ``mask_mod`` | may attend | 0 may, -inf may not |
| ``nn.MultiheadAttention`` | may NOT attend | 0 may, -inf may not |
| Hugging Face, a row per text (0 and 1) | 1 = a real key | |
| Hugging Face, four axes | may attend | 0 may, finfo.min may not |
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_mask

from regard._shapes import Bool
from regard.attention.mask.base import Mask
from regard.attention.mask.geometry import Predicate, Tile
from regard.attention.mask.kinds import allowed, blocked


def from_sdpa(t: Tensor) -> Mask:
    """The mask of an ``attn_mask`` for ``F.scaled_dot_product_attention``.

    Args:
        t: ``(..., queries, keys)``; boolean, True = may attend, or floating point, 0 = may attend and -inf = may not.

    Raises:
        TypeError: a dtype that is neither boolean nor floating point.
        ValueError: a float mask with other numbers than 0 and -inf; fewer than two axes.
    """
    return allowed(t if _is_boolean("from_sdpa", t, hint="mask.from_sdpa(t == 1)") else _is_zero("from_sdpa", t))


def from_multihead(
    attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None, *, num_heads: int | None = None
) -> Mask:
    """The mask of the two tensors that ``nn.MultiheadAttention`` takes, where True = may NOT attend.

    Args:
        attn_mask: ``(queries, keys)`` or ``(batch * num_heads, queries, keys)``; boolean, True = may NOT attend, or
            floating point, 0 = may attend and -inf = may not.
        key_padding_mask: ``(batch, keys)`` or ``(keys,)``; boolean, True = a key that no query may attend to, or
            floating point, as above.
        num_heads: needed by an attn_mask with three axes.

    Raises:
        TypeError: a dtype that is neither boolean nor floating point.
        ValueError: neither mask is given; other shapes, or shapes that contradict each other; a float mask with other
            numbers than 0 and -inf; three axes without num_heads.
    """
    parts = []
    if attn_mask is not None:
        part = _blocked("from_multihead(attn_mask)", attn_mask)
        shape = tuple(part.shape)
        if len(shape) not in (2, 3):
            raise ValueError(
                f"from_multihead(attn_mask) wants (queries, keys) or (batch * num_heads, queries, keys); got {shape}"
            )
        if len(shape) == 3:
            if num_heads is None:
                raise ValueError(
                    f"from_multihead(attn_mask) of shape {shape} holds batch * num_heads masks: say num_heads"
                )
            if num_heads < 1 or shape[0] % num_heads:
                raise ValueError(
                    f"from_multihead(attn_mask) of shape {shape}: {shape[0]} masks are not for {num_heads} heads each"
                )
            part = part.reshape(shape[0] // num_heads, num_heads, *shape[1:])
        parts.append(blocked(part))
    if key_padding_mask is not None:
        part = _blocked("from_multihead(key_padding_mask)", key_padding_mask)
        if part.ndim not in (1, 2):
            raise ValueError(
                f"from_multihead(key_padding_mask) wants (batch, keys) or (keys,); got {tuple(part.shape)}"
            )
        parts.append(blocked(part[:, None, None, :] if part.ndim == 2 else part[None, :]))
    if not parts:
        raise ValueError("from_multihead() was given no mask; where every query may attend to every key, use mask=None")
    return parts[0] if len(parts) == 1 else parts[0] & parts[1]


def from_huggingface(attention_mask: Tensor) -> Mask:
    """The mask of an ``attention_mask`` for ``transformers``, whose decoders add ``& causal()`` themselves.

    Args:
        attention_mask: ``(batch, keys)``, as tokenizers make it: 1 or True = a real key, 0 or False = padding, on
            either side. Or ``(batch, heads, queries, keys)``: boolean, True = may attend, or floating point, 0 = may
            attend, and the dtype's smallest number or -inf = may not.

    Raises:
        TypeError: a dtype without a known polarity.
        ValueError: other shapes or numbers.
    """
    t, name = attention_mask, "from_huggingface"
    if isinstance(t, Tensor) and t.ndim not in (2, 4):
        raise ValueError(
            f"{name}(attention_mask) wants (batch, keys) or (batch, heads, queries, keys); got {tuple(t.shape)}"
        )
    if isinstance(t, Tensor) and t.ndim == 2:
        if t.is_floating_point() or t.is_complex():
            raise TypeError(
                f"{name}(attention_mask) of shape {tuple(t.shape)} wants whole numbers or booleans, 1 or True = a real "
                f"key; got {t.dtype}. Where 1 is a real key: mask.{name}(t == 1)"
            )
        if t.dtype != torch.bool:
            other = t[(t != 0) & (t != 1)]
            if other.numel():
                raise ValueError(
                    f"{name}(attention_mask) wants 1 = a real key and 0 = padding; got {other[0].item()}. "
                    f"For the ids of packed documents: mask.documents(t)"
                )
            t = t == 1
        return allowed(t[:, None, None, :])
    return allowed(t if _is_boolean(name, t, hint=f"mask.{name}(t == 1)") else _is_zero(name, t))


def from_flex(block_mask: BlockMask) -> Mask:
    """The mask of a ``BlockMask`` for FlexAttention, for its own numbers of queries and keys.

    As in its kernels, a pair may attend where its block is full, or where its block is listed and ``mask_mod`` returns
    True. A ``mask_mod`` counts queries from the first, so they are not aligned with the last keys. A BlockMask of one
    batch row or one head serves all.

    Raises:
        TypeError: not a BlockMask.
        ValueError: a BlockMask without the two axes batch and heads.
    """
    if not isinstance(block_mask, BlockMask):
        raise TypeError(f"from_flex(block_mask) wants a BlockMask of flex_attention; got {type(block_mask).__name__}")
    if len(block_mask.shape) != 4:
        raise ValueError(f"from_flex wants a BlockMask (batch, heads, queries, keys); got {tuple(block_mask.shape)}")
    *_, queries, keys = block_mask.shape
    blocks = -(-keys // block_mask.BLOCK_SIZE[1])
    partial = _listed(block_mask.kv_num_blocks, block_mask.kv_indices, blocks)
    full = torch.zeros_like(partial)
    if block_mask.full_kv_num_blocks is not None and block_mask.full_kv_indices is not None:
        full = _listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, blocks)
    return FlexMask(block_mask.mask_mod, (queries, keys), block_mask.BLOCK_SIZE, partial, full)


@dataclass(frozen=True, eq=False, repr=False)
class FlexMask(Mask):
    """See `from_flex`."""

    mask_mod: Predicate
    sizes: tuple[int, int]
    block: tuple[int, int]
    partial: Bool[Tensor, "batch heads blocks_of_queries blocks_of_keys"]
    full: Bool[Tensor, "batch heads blocks_of_queries blocks_of_keys"]

    def evaluate(self, tile: Tile) -> Bool[Tensor, "*batch_heads #rows #columns"]:
        predicate, (rows, columns) = self.predicate(*self.sizes), (tile.rows, tile.columns)
        batch, heads = self.full.shape[:2]
        shape = batch, heads, rows[1] - rows[0], columns[1] - columns[0]
        own_device = self.full.device
        if 0 in shape:
            return torch.zeros(shape, dtype=torch.bool, device=tile.device or own_device)
        # PyTorch's own function evaluates it, because a mask_mod may only be called the way PyTorch calls it.
        part = create_mask(lambda b, h, i, j: predicate(b, h, i + rows[0], j + columns[0]), *shape, device=own_device)
        return part.to(tile.device or own_device)

    def predicate(self, queries: int, keys: int, device: torch.device | str | None = None) -> Predicate:
        full, partial = self.full.to(device or self.full.device), self.partial.to(device or self.full.device)
        return lambda b, h, i, j: self._allows(full, partial, b, h, i, j)

    def _allows(self, full: Tensor, partial: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        b, h = b if len(full) > 1 else b * 0, h if full.shape[1] > 1 else h * 0
        block = b, h, i // self.block[0], j // self.block[1]
        return full[block] | (partial[block] & self.mask_mod(b, h, i, j))

    def validate(self, queries: int, keys: int) -> None:
        if (queries, keys) != self.sizes:
            raise ValueError(f"{self!r} does not fit {queries} queries and {keys} keys")

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        return self.full.shape[0] if self.full.shape[0] != 1 else None

    @property
    def shape(self) -> tuple[int | None, int | None]:  # type: ignore[override]
        return self.sizes

    def __repr__(self) -> str:
        return f"from_flex(<BlockMask {(*self.full.shape[:2], *self.sizes)}>)"


def _is_boolean(name: str, t: object, *, hint: str) -> bool:
    """Whether a tensor is boolean; if not, it must be floating point."""
    if isinstance(t, Tensor) and (t.dtype == torch.bool or t.is_floating_point()):
        return t.dtype == torch.bool
    found = f"a {t.dtype} tensor" if isinstance(t, Tensor) else type(t).__name__
    raise TypeError(
        f"{name} wants a boolean tensor, or a floating-point one of 0 and -inf; got {found}. "
        f"Where 1 means what True means there: {hint}"
    )


def _blocked(name: str, t: Tensor) -> Tensor:
    """A mask of nn.MultiheadAttention as booleans, True = may not."""
    hint = "mask.from_multihead(t == 1), whose True means may NOT attend"
    return t if _is_boolean(name, t, hint=hint) else ~_is_zero(name, t)


def _is_zero(name: str, t: Tensor) -> Bool[Tensor, "..."]:
    """Where a float mask allows. It is ADDED to the scores: 0 changes nothing, minus infinity blocks."""
    if t.isnan().any():
        raise ValueError(f"{name}: NaN is neither 0 (may attend) nor -inf (may not)")
    zero = t == 0
    # Hugging Face blocks with the smallest number of the dtype in place of -inf. Sums of such masks and biases are near
    # that number or -inf, so every number below half of it blocks.
    other = t[~zero & (t > torch.finfo(t.dtype).min / 2)]
    if not other.numel():
        return zero
    if bool(((t == 0) | (t == 1)).all()):
        raise ValueError(
            f"{name}: a {t.dtype} mask is added to the scores, so one of 0 and 1 blocks nothing. "
            "Say what 1 means: mask.allowed(t == 1) where 1 = may attend, mask.blocked(t == 1) where 1 = may not"
        )
    raise ValueError(
        f"{name}: {other[0].item():g} is neither 0 (may attend) nor -inf (may not), so this is a bias: "
        "attend(..., bias=t). Where every other number than 0 stands for -inf: mask.allowed(t == 0)"
    )


def _listed(number: Tensor, indices: Tensor, blocks: int) -> Bool[Tensor, "batch heads rows blocks"]:
    """The blocks that a BlockMask lists, as booleans: in each row, the first ``number`` of its indices."""
    is_listed = torch.arange(indices.shape[-1], device=indices.device) < number[..., None]
    listed = torch.zeros(*indices.shape[:-1], blocks + 1, dtype=torch.bool, device=indices.device)
    # The other indices are written to one extra column, which is cut off.
    return listed.scatter(-1, torch.where(is_listed, indices, blocks).long(), True)[..., :blocks]
