"""What others call a mask, both ways, with the polarity of each in words.

Four conventions are in use, two of them opposite to one another:

| whose | True | as numbers that are added to the scores |
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
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask

from regard._shapes import Bool
from regard.attention.mask.base import Mask, Predicate, Tile
from regard.attention.mask.kinds import allowed, blocked

__all__ = ["from_flex", "from_huggingface", "from_multihead", "from_sdpa"]


def from_sdpa(t: Tensor) -> Mask:
    """The mask that an ``attn_mask`` of ``F.scaled_dot_product_attention`` holds.

    Args:
        t: ``(..., queries, keys)``; boolean, True = may attend, or floating point, 0 = may attend and -inf = may not.

    Raises:
        TypeError: neither boolean nor floating point.
        ValueError: a float mask with other numbers than those two; fewer than two axes.
    """
    return allowed(t if _is_boolean("from_sdpa", t, one="mask.from_sdpa(t == 1)") else _zeros("from_sdpa", t))


def from_multihead(
    attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None, *, num_heads: int | None = None
) -> Mask:
    """The mask that ``nn.MultiheadAttention`` is given in two tensors, where True = may NOT attend.

    Args:
        attn_mask: ``(queries, keys)`` or ``(batch * num_heads, queries, keys)``; boolean, True = may NOT attend, or
            floating point, 0 = may attend and -inf = may not.
        key_padding_mask: ``(batch, keys)`` or ``(keys,)``; boolean, True = a key that nobody may attend to, or
            floating point, as above.
        num_heads: needed by an attn_mask with three axes.

    Raises:
        TypeError: neither boolean nor floating point.
        ValueError: neither mask is given; shapes other than these, or that contradict each other; a float mask
            with other numbers than 0 and -inf; three axes without num_heads.
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
        raise ValueError("from_multihead() was given no mask; where everyone may attend to everything, use mask=None")
    return parts[0] if len(parts) == 1 else parts[0] & parts[1]


def from_huggingface(attention_mask: Tensor) -> Mask:
    """The mask that an ``attention_mask`` of ``transformers`` holds; a decoder of theirs adds ``& causal()`` itself.

    Args:
        attention_mask: ``(batch, keys)``, as tokenizers make it: 1 or True = a real key, 0 or False = padding, on
            either side. Or ``(batch, heads, queries, keys)``: boolean, True = may attend, or floating point, 0 = may
            attend, and the dtype's smallest number or -inf = may not.

    Raises:
        TypeError: a dtype whose polarity is not known.
        ValueError: shapes or numbers other than these.
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
                    f"Numbers of packed documents: mask.documents(t)"
                )
            t = t == 1
        return allowed(t[:, None, None, :])
    return allowed(t if _is_boolean(name, t, one=f"mask.{name}(t == 1)") else _zeros(name, t))


def from_flex(block_mask: BlockMask) -> Mask:
    """The mask that a ``BlockMask`` of FlexAttention holds, for the numbers of queries and keys it was made for.

    As in its kernels, a pair may attend where its block is full, or where its block is listed and ``mask_mod`` returns
    True. A ``mask_mod`` counts queries from the first, so nothing is aligned here. A BlockMask of one batch row or
    one head stands for all of them.

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
    return Flex(block_mask.mask_mod, (queries, keys), block_mask.BLOCK_SIZE, partial, full)


@dataclass(frozen=True, eq=False, repr=False)
class Flex(Mask):
    """See `from_flex`."""

    mask_mod: Predicate
    lengths: tuple[int, int]
    block: tuple[int, int]
    partial: Bool[Tensor, "batch heads blocks_of_queries blocks_of_keys"]
    full: Bool[Tensor, "batch heads blocks_of_queries blocks_of_keys"]

    def evaluate(self, tile: Tile) -> Bool[Tensor, "*batch_heads #rows #columns"]:
        at, (rows, columns) = self.predicate(*self.lengths), (tile.rows, tile.columns)
        batch, heads = self.full.shape[:2]
        shape = batch, heads, rows[1] - rows[0], columns[1] - columns[0]
        home = self.full.device
        if 0 in shape:
            return torch.zeros(shape, dtype=torch.bool, device=tile.device or home)
        # Their own function evaluates it, because a mask_mod may only be asked the way they ask it.
        part = create_mask(lambda b, h, i, j: at(b, h, i + rows[0], j + columns[0]), *shape, device=home)
        return part.to(tile.device or home)

    def predicate(self, queries: int, keys: int, device: torch.device | str | None = None) -> Predicate:
        full, partial = self.full.to(device or self.full.device), self.partial.to(device or self.full.device)
        return lambda b, h, i, j: self._may(full, partial, b, h, i, j)

    def _may(self, full: Tensor, partial: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        b, h = b if len(full) > 1 else b * 0, h if full.shape[1] > 1 else h * 0
        block = b, h, i // self.block[0], j // self.block[1]
        return full[block] | (partial[block] & self.mask_mod(b, h, i, j))

    def validate(self, queries: int, keys: int) -> None:
        if (queries, keys) != self.lengths:
            raise ValueError(f"{self!r} does not fit {queries} queries and {keys} keys")

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        return self.full.shape[0] if self.full.shape[0] != 1 else None

    @property
    def shape(self) -> tuple[int | None, int | None]:  # type: ignore[override]
        return self.lengths

    def __repr__(self) -> str:
        return f"from_flex(<BlockMask {(*self.full.shape[:2], *self.lengths)}>)"


def to_sdpa(
    mask: Mask, queries: int, keys: int, *, dtype: torch.dtype | None, device: torch.device | str | None
) -> Tensor:
    """See `Mask.to_sdpa`."""
    may = mask.dense(queries, keys, device=device)
    return may if dtype is None else _added("to_sdpa", may, dtype, -torch.inf)


def to_multihead(
    mask: Mask,
    queries: int,
    keys: int,
    *,
    batch: int | None,
    num_heads: int | None,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
) -> Tensor:
    """See `Mask.to_multihead`."""
    rows, heads = mask.batch_heads(queries, keys)
    may = mask.dense(queries, keys, device=device)
    if rows is heads is None:
        may = may.reshape(queries, keys)
    else:
        for name, said, spoken in (("batch", batch, rows), ("num_heads", num_heads, heads)):
            if said is None and spoken is None:
                raise ValueError(
                    f"{mask!r}.to_multihead(): nn.MultiheadAttention wants it as (batch * num_heads, queries, keys): "
                    f"say {name}"
                )
        batch, num_heads = _one("batch rows", mask, batch, rows), _one("heads", mask, num_heads, heads)
        assert batch is not None
        assert num_heads is not None
        may = may.expand(batch, num_heads, queries, keys).reshape(batch * num_heads, queries, keys)
    return ~may if dtype is None else _added("to_multihead", may, dtype, -torch.inf)


def to_huggingface(
    mask: Mask, queries: int, keys: int, *, dtype: torch.dtype, device: torch.device | str | None
) -> Tensor:
    """See `Mask.to_huggingface`."""
    rows, heads = mask.batch_heads(queries, keys)
    may = mask.dense(queries, keys, device=device)
    may = may.reshape(1 if rows is None else rows, 1 if heads is None else heads, queries, keys)
    return _added("to_huggingface", may, dtype, None)


def to_flex(
    mask: Mask,
    queries: int,
    keys: int,
    *,
    batch: int | None,
    heads: int | None,
    device: torch.device | str,
    block_size: int | tuple[int, int],
) -> BlockMask:
    """See `Mask.to_flex`."""
    if queries < 1 or keys < 1:
        raise ValueError(f"{mask!r}.to_flex({queries}, {keys}): a BlockMask wants at least one query and one key")
    rows, spoken = mask.batch_heads(queries, keys)
    return create_block_mask(
        mask.predicate(queries, keys, device),
        _one("batch rows", mask, batch, rows),
        _one("heads", mask, heads, spoken),
        queries,
        keys,
        device,
        block_size,
    )


def _one(what: str, mask: Mask, said: int | None, spoken: int | None) -> int | None:
    """How many there are, by the caller and by the mask, which must not contradict each other."""
    if said is not None and spoken is not None and said != spoken:
        raise ValueError(f"{mask!r} speaks of {spoken} {what}, but there are {said}")
    return spoken if said is None else said


def _is_boolean(name: str, t: object, *, one: str) -> bool:
    """Whether a tensor is boolean; else it is floating point, or refused."""
    if isinstance(t, Tensor) and (t.dtype == torch.bool or t.is_floating_point()):
        return t.dtype == torch.bool
    kind = f"a {t.dtype} tensor" if isinstance(t, Tensor) else type(t).__name__
    raise TypeError(
        f"{name} wants a boolean tensor, or a floating-point one of 0 and -inf; got {kind}. "
        f"Where 1 means what True means there: {one}"
    )


def _blocked(name: str, t: Tensor) -> Tensor:
    """A mask of nn.MultiheadAttention as booleans, True = may not."""
    one = "mask.from_multihead(t == 1), whose True means may NOT attend"
    return t if _is_boolean(name, t, one=one) else ~_zeros(name, t)


def _zeros(name: str, t: Tensor) -> Bool[Tensor, "..."]:
    """Where a float mask lets attend. It is ADDED to the scores: 0 changes nothing, minus infinity blocks."""
    if t.isnan().any():
        raise ValueError(f"{name}: NaN is neither 0 (may attend) nor -inf (may not)")
    zero = t == 0
    # Hugging Face blocks with the smallest number of the dtype in place of -inf. Masks of theirs are added to one
    # another and to biases, which leaves a number near it or -inf, so anything beyond half of it blocks.
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


def _added(name: str, may: Tensor, dtype: torch.dtype, low: float | None) -> Tensor:
    """0 where True and the low number where False; without one, the smallest number of the dtype."""
    if not dtype.is_floating_point:
        raise TypeError(f"{name}(dtype={dtype}): a mask that is added to the scores has a floating-point dtype")
    low = torch.finfo(dtype).min if low is None else low
    return torch.zeros(may.shape, dtype=dtype, device=may.device).masked_fill_(~may, low)


def _listed(number: Tensor, indices: Tensor, blocks: int) -> Bool[Tensor, "batch heads rows blocks"]:
    """The blocks that a BlockMask lists, in each row the first so many of its indices, as booleans."""
    counts = torch.arange(indices.shape[-1], device=indices.device) < number[..., None]
    listed = torch.zeros(*indices.shape[:-1], blocks + 1, dtype=torch.bool, device=indices.device)
    # What stands beyond the number goes to one column too many, which is then cut off.
    return listed.scatter(-1, torch.where(counts, indices, blocks).long(), True)[..., :blocks]
