"""`Mask`, the class of every mask, and the masks that ``&``, ``|`` and ``~`` make."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Bool
from regard.attention.mask.export import MaskExport
from regard.attention.mask.geometry import Predicate, Tile, TileBounds, TileGrid
from regard.attention.mask.show import draw
from regard.notebook import TextPicture

NOTEBOOK_TOKENS = 8
"""The queries and keys of the picture in a notebook of a mask for any number of them."""

POLARITY_HINT = (
    "Say what True means: mask.allowed(t) where True = may attend (as F.scaled_dot_product_attention reads it), "
    "mask.blocked(t) where True = may not (as nn.MultiheadAttention reads it)"
)


class Mask(MaskExport):
    """Who may attend to whom; made by the functions of `regard.mask`, combined with ``&``, ``|`` and ``~``."""

    def show(self, queries: int, keys: int, *, batch: int = 0, head: int = 0) -> TextPicture:
        """The mask as a picture for the terminal, ``print(m.show(8, 8))``, and in a notebook without ``print``.

        Above 64 queries or keys, a cell of the picture is a tile of several, and shows whether none, some or all of
        its pairs may attend. No tensor of queries x keys is made.

        Args:
            queries: number of queries.
            keys: number of keys.
            batch: the batch row, where the mask differs by batch row.
            head: the head, where the mask differs by head.

        Raises:
            IndexError: the mask has no such batch row or head.
            ValueError: the mask is made for another number of queries or keys.
        """
        return draw(self, queries, keys, batch, head)

    def _repr_html_(self) -> str | None:
        """The picture for notebooks: at the size that the mask is made for, else of a few tokens."""
        queries, keys = self.shape
        keys = max(NOTEBOOK_TOKENS, self.min_keys) if keys is None else keys
        try:
            return self.show(keys if queries is None else queries, keys)._repr_html_()
        except (IndexError, ValueError):
            return None  # a function of the user's that has no such tokens

    def __getitem__(self, index: Any) -> Bool[Tensor, "..."]:
        """``m[i, j]``: may query i attend to key j? Slices give a part of the dense mask.

        A mask that is made for a number of tokens is indexed at that size. Any other mask is indexed as if there were
        as many queries as keys, and enough of both for the index. Axes before these two are the batch and the heads,
        where the mask has them: ``m[b, 0, i, j]``; ``m[i, j]`` answers for all batch rows and heads at once.

        Raises:
            IndexError: the index lies outside the mask, or counts from the end of a mask without an end.
        """
        if not isinstance(index, tuple) or len(index) < 2:
            raise IndexError(f"{self!r}[{index!r}]: index a mask by query and key, m[i, j]")
        queries, keys = self.shape
        if queries is None and keys is None:
            queries = keys = max(self.min_keys, self._tokens_for(index[-2]), self._tokens_for(index[-1]))
        queries, keys = keys if queries is None else queries, queries if keys is None else keys
        assert queries is not None
        assert keys is not None
        # The last two are the query and the key, however many axes the mask has.
        full_index = index if any(part is ... for part in index) else (..., *index)
        try:
            return self.dense(queries, keys)[full_index]
        except IndexError as error:
            raise IndexError(f"{self!r} of {queries} queries and {keys} keys, at {index}: {error}") from error

    def _tokens_for(self, index: Any) -> int:
        """How many tokens there must be for an index to exist."""
        if isinstance(index, slice):
            ends = (index.start or 0, index.stop)
            if all(isinstance(end, Integral) and int(end) >= 0 for end in ends):
                return int(index.stop)
        elif not isinstance(index, bool | None | EllipsisType):
            try:
                t = torch.as_tensor(index)
            except (TypeError, ValueError, RuntimeError) as error:
                raise IndexError(f"{self!r} is indexed by whole numbers and slices, not by {index!r}") from error
            is_integer = not (t.is_floating_point() or t.is_complex() or t.dtype == torch.bool)
            if t.numel() == 0 or (is_integer and int(t.min()) >= 0):
                return int(t.max()) + 1 if t.numel() else 0
        raise IndexError(
            f"{self!r} is not made for a number of tokens: index it from the front, up to an end; got {index!r}"
        )

    def __and__(self, other: Mask) -> Mask:
        return And(*_checked_sides(self, "&", other))

    def __or__(self, other: Mask) -> Mask:
        return Or(*_checked_sides(self, "|", other))

    def __rand__(self, other: object) -> Mask:
        raise TypeError(f"{type(other).__name__} & {self!r}: both sides must be masks. {POLARITY_HINT}")

    def __ror__(self, other: object) -> Mask:
        raise TypeError(f"{type(other).__name__} | {self!r}: both sides must be masks. {POLARITY_HINT}")

    def __invert__(self) -> Mask:
        return Not(self)

    def __bool__(self) -> bool:
        # Python turns ``a and b`` into b and would drop a in silence.
        raise TypeError(f"{self!r} is neither true nor false: combine masks with & | ~, not with and, or, not")

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))  # type: ignore[arg-type]

    __hash__ = None  # type: ignore[assignment]  # equal by value, and values hold tensors


@dataclass(frozen=True, eq=False, repr=False)
class Combined(Mask):
    """Two masks and the operator that joins them."""

    left: Mask
    right: Mask
    sign = "?"

    @staticmethod
    def join(left: Tensor, right: Tensor) -> Tensor:
        """The two boolean tensors as one."""
        raise NotImplementedError

    def evaluate(self, tile: Tile) -> Bool[Tensor, "*batch_heads #rows #columns"]:
        left, right = self.left.evaluate(tile), self.right.evaluate(tile)
        # A tile without a device: each mask answers on the device of its tensors, or on the CPU if it has none.
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
        any_allowed = self.join(left.any_allowed, right.any_allowed)
        return TileBounds(any_allowed, self.join(left.all_allowed, right.all_allowed))

    def validate(self, queries: int, keys: int) -> None:
        self.left.validate(queries, keys)
        self.right.validate(queries, keys)

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        return self.right.batch_size if self.left.batch_size is None else self.left.batch_size

    @property
    def shape(self) -> tuple[int | None, int | None]:  # type: ignore[override]
        (queries, keys), (right_queries, right_keys) = self.left.shape, self.right.shape
        return queries if queries is not None else right_queries, keys if keys is not None else right_keys

    @property
    def min_keys(self) -> int:  # type: ignore[override]
        return max(self.left.min_keys, self.right.min_keys)

    def __repr__(self) -> str:
        return f"{self._side_repr(self.left)} {self.sign} {self._side_repr(self.right, right=True)}"

    def _side_repr(self, side: Mask, *, right: bool = False) -> str:
        needs_parentheses = isinstance(side, Combined) and (right or side.sign != self.sign)
        return f"({side!r})" if needs_parentheses else repr(side)


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
    """Allowed where the other mask does not allow."""

    other: Mask

    def evaluate(self, tile: Tile) -> Bool[Tensor, "*batch_heads #rows #columns"]:
        return ~self.other.evaluate(tile)

    def predicate(self, queries: int, keys: int, device: torch.device | str | None = None) -> Predicate:
        other = self.other.predicate(queries, keys, device)
        return lambda b, h, i, j: ~other(b, h, i, j)

    def bounds(self, grid: TileGrid) -> TileBounds:
        other = self.other.bounds(grid)
        return TileBounds(any_allowed=~other.all_allowed, all_allowed=~other.any_allowed)

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


def _checked_sides(left: Mask, sign: str, right: object) -> tuple[Mask, Mask]:
    """Both sides of an operator; masks for different sizes are refused."""
    if not isinstance(right, Mask):
        raise TypeError(f"{left!r} {sign} {type(right).__name__}: both sides must be masks. {POLARITY_HINT}")
    sizes = zip(
        ("batch rows", "queries", "keys"), (left.batch_size, *left.shape), (right.batch_size, *right.shape), strict=True
    )
    for axis, left_size, right_size in sizes:
        if left_size is not None and right_size is not None and left_size != right_size:
            raise ValueError(
                f"{left!r} {sign} {right!r}: the left is for {left_size} {axis}, the right for {right_size}"
            )
    return left, right


def _equal(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and bool((a.cpu() == b.cpu()).all())
    return a == b
