"""What every mask can do, and how masks combine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from numbers import Integral
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from regard._shapes import Bool, Int

__all__ = ["POLARITY_HINT", "And", "Combined", "Mask", "Not", "Or", "Predicate", "Tile", "TileBounds", "TileGrid"]

POLARITY_HINT = (
    "Say what True means: mask.allowed(t) where True = may attend (as F.scaled_dot_product_attention reads it), "
    "mask.blocked(t) where True = may not (as nn.MultiheadAttention reads it)"
)

Predicate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch row, head, query, key) -> may attend, all of them index tensors that broadcast."""


@dataclass(frozen=True)
class Tile:
    """Some rows and columns of the queries x keys square; the end of each pair is left out, as in a slice."""

    queries: int
    keys: int
    rows: tuple[int, int]
    columns: tuple[int, int]
    device: torch.device | str | None = None

    @classmethod
    def full(cls, queries: int, keys: int, device: torch.device | str | None = None) -> Tile:
        """Every query and every key."""
        return cls(queries, keys, (0, queries), (0, keys), device)

    def query_offset(self, offset: int | None) -> int:
        """Position among the keys of query 0: the queries are the last positions, unless an offset says otherwise."""
        return self.keys - self.queries if offset is None else offset

    def query_positions(self, offset: int | None = None) -> Int[Tensor, "rows 1"]:
        """Positions of the queries."""
        first = self.query_offset(offset)
        return torch.arange(self.rows[0] + first, self.rows[1] + first, device=self.device)[:, None]

    def key_positions(self) -> Int[Tensor, "1 columns"]:
        """Positions of the keys."""
        return torch.arange(*self.columns, device=self.device)[None, :]


@dataclass(frozen=True)
class TileBounds:
    """What is known of each tile of a grid without looking inside, ``(..., tiles of rows, tiles of columns)``."""

    any_allowed: Tensor
    """False: nobody in the tile may attend to anything. True: somebody may, as far as is known."""
    all_allowed: Tensor
    """True: everybody in the tile may attend to everything. False: that is not known."""

    @classmethod
    def full(cls) -> TileBounds:
        """Everybody may attend to everything."""
        return cls(torch.ones(1, 1, dtype=torch.bool, device="cpu"), torch.ones(1, 1, dtype=torch.bool, device="cpu"))

    @classmethod
    def unknown(cls) -> TileBounds:
        """Nothing but looking inside helps."""
        return cls(torch.ones(1, 1, dtype=torch.bool, device="cpu"), torch.zeros(1, 1, dtype=torch.bool, device="cpu"))


@dataclass(frozen=True)
class TileGrid:
    """The tiles of the queries x keys square, by their first and last query and key."""

    queries: int
    keys: int
    tile_rows: int
    tile_columns: int

    @cached_property
    def first_queries(self) -> Int[Tensor, "tiles 1"]:
        """First query of each tile."""
        return torch.arange(0, self.queries, self.tile_rows, device="cpu")[:, None]

    @cached_property
    def last_queries(self) -> Int[Tensor, "tiles 1"]:
        """Last query of each tile."""
        return (self.first_queries + self.tile_rows - 1).clamp(max=self.queries - 1)

    @cached_property
    def first_keys(self) -> Int[Tensor, " tiles"]:
        """First key of each tile."""
        return torch.arange(0, self.keys, self.tile_columns, device="cpu")

    @cached_property
    def last_keys(self) -> Int[Tensor, " tiles"]:
        """Last key of each tile."""
        return (self.first_keys + self.tile_columns - 1).clamp(max=self.keys - 1)


class Mask(ABC):
    """Who may attend to whom; made by the functions of `regard.mask`, combined with ``&``, ``|`` and ``~``."""

    batch_size: int | None = None
    """How many batch rows the mask speaks of, if it speaks of each by itself."""

    shape: tuple[int | None, int | None] = (None, None)
    """How many queries and keys the mask is made for, where it is made for some."""

    min_keys: int = 0
    """How many keys there must be at least."""

    # What a kind of mask must say.

    @abstractmethod
    def evaluate(self, tile: Tile) -> Bool[Tensor, "*batch_heads #rows #columns"]:
        """Who may attend to whom in this area; an axis along which the mask is the same everywhere has size 1."""

    @abstractmethod
    def predicate(self, queries: int, keys: int, device: torch.device | str | None = None) -> Predicate:
        """The mask as a function of indices, as `torch.nn.attention.flex_attention` wants it."""

    def bounds(self, grid: TileGrid) -> TileBounds:
        """What is known of each tile without evaluating the mask for every pair."""
        return TileBounds.unknown()

    def validate(self, queries: int, keys: int) -> None:  # noqa: B027  # most kinds fit any number
        """Refuse a number of queries or keys that the mask is not made for.

        Raises:
            ValueError: the mask is made for another number of queries or keys.
        """

    # What follows from that.

    def dense(
        self, queries: int, keys: int, *, device: torch.device | str | None = None
    ) -> Bool[Tensor, "*batch_heads queries keys"]:
        """The mask as a boolean tensor, True = may attend.

        Args:
            queries: number of queries.
            keys: number of keys.
            device: where the result lives; by default where the mask's own tensors live.

        Returns:
            Boolean tensor ``(..., queries, keys)``, its leading dimensions ready to broadcast against
            ``(batch, heads)``. It may be an expanded view: clone it before writing to it.

        Raises:
            ValueError: the mask is made for another number of queries or keys.
        """
        small = self.broadcastable(queries, keys, device=device)
        return small.expand(*small.shape[:-2], queries, keys)

    def broadcastable(
        self, queries: int, keys: int, *, device: torch.device | str | None = None
    ) -> Bool[Tensor, "*batch_heads #queries #keys"]:
        """Like `dense`, in less memory: an axis along which the mask is the same everywhere has size 1."""
        if queries < 0 or keys < 0:
            raise ValueError(f"{self!r}: there cannot be {queries} queries and {keys} keys")
        self.validate(queries, keys)
        return self.evaluate(Tile.full(queries, keys, device))

    def batch_heads(self, queries: int, keys: int) -> tuple[int | None, int | None]:
        """How many batch rows and how many heads the mask speaks of one by one; None where it is the same for all.

        Raises:
            ValueError: parts of the mask contradict each other; it has more axes than these two before its queries.
        """
        self.validate(queries, keys)
        corner = self.evaluate(Tile(queries, keys, (0, min(1, queries)), (0, min(1, keys))))
        *more, batch, heads = (1, 1, *corner.shape[:-2])
        if any(size != 1 for size in more):
            raise ValueError(f"{self!r} has the axes {tuple(corner.shape[:-2])} before its queries, not (batch, heads)")
        return self.batch_size if batch == 1 else batch, None if heads == 1 else heads

    def show(self, queries: int, keys: int, *, batch: int = 0, head: int = 0) -> str:
        """The mask as a picture for the terminal: ``print(m.show(8, 8))``.

        Above 64 queries or keys, one cell stands for several of them and shows whether nobody, some or all of them
        may attend. No tensor of queries x keys is made for that.

        Args:
            queries: number of queries.
            keys: number of keys.
            batch: which batch row, for a mask that speaks of each.
            head: which head, likewise.

        Raises:
            IndexError: the mask does not speak of that batch row or head.
            ValueError: the mask is made for another number of queries or keys.
        """
        from regard.attention.mask.show import draw

        return draw(self, queries, keys, batch, head)

    def __getitem__(self, index: Any) -> Bool[Tensor, "..."]:
        """``m[i, j]``: may query i attend to key j? Slices give a part of the dense mask.

        A mask that is made for a number of tokens is indexed at that size. Any other is indexed as if there were
        as many queries as keys, and enough of them. Axes before these two are the batch and the heads, where
        the mask has them: ``m[b, 0, i, j]``; ``m[i, j]`` answers for all of those at once.

        Raises:
            IndexError: the index lies outside the mask, or counts from the end of one that has none.
        """
        if not isinstance(index, tuple) or len(index) < 2:
            raise IndexError(f"{self!r}[{index!r}]: index a mask by query and key, m[i, j]")
        queries, keys = self.shape
        if queries is None and keys is None:
            queries = keys = max(self.min_keys, _needed(self, index[-2]), _needed(self, index[-1]))
        queries, keys = keys if queries is None else queries, queries if keys is None else keys
        assert queries is not None
        assert keys is not None
        # The last two are the query and the key, however many axes the mask has.
        whole = index if any(part is ... for part in index) else (..., *index)
        try:
            return self.dense(queries, keys)[whole]
        except IndexError as error:
            raise IndexError(f"{self!r} of {queries} queries and {keys} keys, at {index}: {error}") from error

    # To what others call a mask.

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
            dtype: None for a boolean tensor; a floating-point dtype for one that is added to the scores, 0 = may attend
                and -inf = may not.
            device: where the result lives; by default where the mask's own tensors live.

        Returns:
            ``(..., queries, keys)``, as `dense`.
        """
        from regard.attention.mask import interop

        return interop.to_sdpa(self, queries, keys, dtype=dtype, device=device)

    def to_multihead(
        self,
        queries: int,
        keys: int,
        *,
        batch: int | None = None,
        num_heads: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """An ``attn_mask`` for ``nn.MultiheadAttention``: True = may NOT attend, the opposite of a mask here.

        A query with nothing to attend to gets a zero output from regard, and NaN from that module.

        Args:
            queries: number of queries.
            keys: number of keys.
            batch: number of batch rows, needed by a mask that speaks of heads but not of batch rows.
            num_heads: number of heads, needed by a mask that speaks of batch rows.
            dtype: None for a boolean tensor; a floating-point dtype for one that is added to the scores, 0 = may attend
                and -inf = may not.
            device: where the result lives; by default where the mask's own tensors live.

        Returns:
            ``(queries, keys)``, or ``(batch * num_heads, queries, keys)`` from a mask that speaks of batch rows or
            heads, the heads of one batch row side by side. It holds padding too: ``key_padding_mask`` stays None.

        Raises:
            ValueError: the mask speaks of batch rows or heads, and how many there are was not said or differs.
        """
        from regard.attention.mask import interop

        return interop.to_multihead(self, queries, keys, batch=batch, num_heads=num_heads, dtype=dtype, device=device)

    def to_huggingface(
        self, queries: int, keys: int, *, dtype: torch.dtype, device: torch.device | str | None = None
    ) -> Tensor:
        """A four-axis ``attention_mask`` for models of ``transformers``: 0 = may attend, finfo(dtype).min = may not.

        It is added to the scores, and those models take it as it is: causality and padding must be in it. A query
        with nothing to attend to gets a zero output from regard, and the mean of all values from them.

        Args:
            queries: number of queries.
            keys: number of keys.
            dtype: the model's own dtype.
            device: where the result lives; by default where the mask's own tensors live.

        Returns:
            ``(batch, heads, queries, keys)``; batch and heads are 1 where the mask does not speak of them.
        """
        from regard.attention.mask import interop

        return interop.to_huggingface(self, queries, keys, dtype=dtype, device=device)

    def to_flex(
        self,
        queries: int,
        keys: int,
        *,
        batch: int | None = None,
        heads: int | None = None,
        device: torch.device | str,
        block_size: int | tuple[int, int] = 128,
    ) -> BlockMask:
        """A ``BlockMask`` for ``flex_attention``, whose ``mask_mod`` returns True = may attend.

        ``create_block_mask`` evaluates every pair at once to find its blocks: queries x keys bytes and more.

        Args:
            queries: number of queries.
            keys: number of keys.
            batch: number of batch rows; by default as many as the mask speaks of, or one that stands for all.
            heads: number of heads; likewise.
            device: where q, k and v live.
            block_size: queries and keys to a block.

        Raises:
            ValueError: the mask speaks of another number of batch rows or heads; there are no queries or no keys.
        """
        from regard.attention.mask import interop

        return interop.to_flex(self, queries, keys, batch=batch, heads=heads, device=device, block_size=block_size)

    def __and__(self, other: Mask) -> Mask:
        return And(*_agreeing(self, "&", other))

    def __or__(self, other: Mask) -> Mask:
        return Or(*_agreeing(self, "|", other))

    def __rand__(self, other: object) -> Mask:
        raise TypeError(f"{type(other).__name__} & {self!r}: both sides must be masks. {POLARITY_HINT}")

    def __ror__(self, other: object) -> Mask:
        raise TypeError(f"{type(other).__name__} | {self!r}: both sides must be masks. {POLARITY_HINT}")

    def __invert__(self) -> Mask:
        return Not(self)

    def __bool__(self) -> bool:
        # Python turns ``a and b`` into b, dropping a in silence.
        raise TypeError(f"{self!r} is neither true nor false: combine masks with & | ~, not with and, or, not")

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(_same(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))  # type: ignore[arg-type]

    __hash__ = None  # type: ignore[assignment]  # equal by value, and values hold tensors


@dataclass(frozen=True, eq=False, repr=False)
class Combined(Mask):
    """Two masks and what joins them."""

    left: Mask
    right: Mask
    sign = "?"

    @staticmethod
    def join(left: Tensor, right: Tensor) -> Tensor:
        """The two results as one."""
        raise NotImplementedError

    def evaluate(self, tile: Tile) -> Bool[Tensor, "*batch_heads #rows #columns"]:
        left, right = self.left.evaluate(tile), self.right.evaluate(tile)
        # Asked for no device, a mask answers where its tensors live, and one without any on the CPU.
        if left.device != right.device:
            left, right = (
                t.to(other.device) if t.device.type == "cpu" else t for t, other in ((left, right), (right, left))
            )
        try:
            return self.join(left, right)
        except RuntimeError as error:
            raise ValueError(f"{self!r}: {tuple(left.shape)} and {tuple(right.shape)} do not combine") from error

    def predicate(self, queries: int, keys: int, device: torch.device | str | None = None) -> Predicate:
        left, right = (side.predicate(queries, keys, device) for side in (self.left, self.right))
        return lambda b, h, i, j: self.join(left(b, h, i, j), right(b, h, i, j))

    def bounds(self, grid: TileGrid) -> TileBounds:
        left, right = self.left.bounds(grid), self.right.bounds(grid)
        return TileBounds(
            self.join(left.any_allowed, right.any_allowed), self.join(left.all_allowed, right.all_allowed)
        )

    def validate(self, queries: int, keys: int) -> None:
        self.left.validate(queries, keys)
        self.right.validate(queries, keys)

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        return self.right.batch_size if self.left.batch_size is None else self.left.batch_size

    @property
    def shape(self) -> tuple[int | None, int | None]:  # type: ignore[override]
        (rows, columns), (more_rows, more_columns) = self.left.shape, self.right.shape
        return rows if rows is not None else more_rows, columns if columns is not None else more_columns

    @property
    def min_keys(self) -> int:  # type: ignore[override]
        return max(self.left.min_keys, self.right.min_keys)

    def __repr__(self) -> str:
        return f"{self._side(self.left)} {self.sign} {self._side(self.right, right=True)}"

    def _side(self, side: Mask, *, right: bool = False) -> str:
        other = isinstance(side, Combined) and (right or side.sign != self.sign)
        return f"({side!r})" if other else repr(side)


@dataclass(frozen=True, eq=False, repr=False)
class And(Combined):
    """Allowed by both."""

    sign = "&"

    @staticmethod
    def join(left: Tensor, right: Tensor) -> Tensor:
        return left & right


@dataclass(frozen=True, eq=False, repr=False)
class Or(Combined):
    """Allowed by either."""

    sign = "|"

    @staticmethod
    def join(left: Tensor, right: Tensor) -> Tensor:
        return left | right


@dataclass(frozen=True, eq=False, repr=False)
class Not(Mask):
    """Allowed where the other is not."""

    other: Mask

    def evaluate(self, tile: Tile) -> Bool[Tensor, "*batch_heads #rows #columns"]:
        return ~self.other.evaluate(tile)

    def predicate(self, queries: int, keys: int, device: torch.device | str | None = None) -> Predicate:
        other = self.other.predicate(queries, keys, device)
        return lambda b, h, i, j: ~other(b, h, i, j)

    def bounds(self, grid: TileGrid) -> TileBounds:
        other = self.other.bounds(grid)
        return replace(other, any_allowed=~other.all_allowed, all_allowed=~other.any_allowed)

    def validate(self, queries: int, keys: int) -> None:
        self.other.validate(queries, keys)

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        return self.other.batch_size

    @property
    def shape(self) -> tuple[int | None, int | None]:  # type: ignore[override]
        return self.other.shape

    @property
    def min_keys(self) -> int:  # type: ignore[override]
        return self.other.min_keys

    def __invert__(self) -> Mask:
        return self.other

    def __repr__(self) -> str:
        return f"~({self.other!r})" if isinstance(self.other, Combined) else f"~{self.other!r}"


def _agreeing(left: Mask, sign: str, right: object) -> tuple[Mask, Mask]:
    if not isinstance(right, Mask):
        raise TypeError(f"{left!r} {sign} {type(right).__name__}: both sides must be masks. {POLARITY_HINT}")
    if left.batch_size is not None and right.batch_size is not None and left.batch_size != right.batch_size:
        raise ValueError(
            f"{left!r} {sign} {right!r}: the left has {left.batch_size} batch rows, the right has {right.batch_size}"
        )
    for what, ours, theirs in zip(("queries", "keys"), left.shape, right.shape, strict=True):
        if ours is not None and theirs is not None and ours != theirs:
            raise ValueError(f"{left!r} {sign} {right!r}: the left is for {ours} {what}, the right for {theirs}")
    return left, right


def _needed(mask: Mask, index: Any) -> int:
    """How many tokens there must be for this index to mean something."""
    if isinstance(index, slice):
        ends = (index.start or 0, index.stop)
        if all(isinstance(end, Integral) and int(end) >= 0 for end in ends):
            return int(index.stop)
    elif not isinstance(index, bool | None | EllipsisType):
        try:
            asked = torch.as_tensor(index)
        except (TypeError, ValueError, RuntimeError) as error:
            raise IndexError(f"{mask!r} is indexed by whole numbers and slices, not by {index!r}") from error
        whole = not (asked.is_floating_point() or asked.is_complex() or asked.dtype == torch.bool)
        if asked.numel() == 0 or (whole and int(asked.min()) >= 0):
            return int(asked.max()) + 1 if asked.numel() else 0
    raise IndexError(
        f"{mask!r} is not made for a number of tokens: index it from the front, up to an end; got {index!r}"
    )


def _same(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and bool((a.cpu() == b.cpu()).all())
    return a == b
