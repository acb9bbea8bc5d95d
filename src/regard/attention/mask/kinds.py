"""The kinds of mask: for each a function that checks its arguments and a small class that holds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TypeGuard

import torch
from torch import Tensor

from regard._shapes import Bool, Int
from regard.attention.mask.base import Mask
from regard.attention.mask.geometry import Predicate, Tile, TileBounds, TileGrid, mask_value

MAX_POSITION = 2**60
"""Positions and offsets stay below this number, so that the sum of a few of them is still an int64."""

UNKNOWN_LENGTH = -1
"""Stands for the largest length while a graph is traced, where no number is known: `_refuse_longer` puts the check into
the graph."""


def causal(offset: int | None = None) -> Mask:
    """Each query sees the keys up to and including its own position (paper, section 3.2.3).

    Args:
        offset: position of the first query among the keys. By default the queries are the LAST positions
            (offset = keys - queries), which is what a cache needs; 0 aligns them at the first.
    """
    return Band(None, 0, None if offset is None else _checked_position("causal", "offset", offset))


def window(before: int, after: int = 0, *, offset: int | None = None) -> Mask:
    """Each query sees the keys near its own position only (sliding-window attention; Beltagy et al. 2020, section 3.1).

    Args:
        before: how many positions up to and including the query's own: ``window(256)`` sees the token itself and the
            255 before it.
        after: how many positions after the query's own: ``window(65, 64)`` sees 64 on each side.
        offset: position of the first query among the keys, as in `causal`.
    """
    before, after = _checked_position("window", "before", before), _checked_position("window", "after", after)
    if before < 1:
        raise ValueError(f"window({before}, {after}): before counts the token itself, so it is at least 1")
    if after < 0:
        raise ValueError(f"window({before}, {after}): after cannot be negative; 0 sees no later position")
    return Band(before, after, None if offset is None else _checked_position("window", "offset", offset))


def padding(lengths: Sequence[int] | Tensor) -> Mask:
    """Only the first ``lengths[b]`` keys of batch row b are real; no query may attend to the padding after them.

    For padding on the left, say which keys are real: ``mask.allowed(real[:, None, None, :])``.

    Args:
        lengths: one whole number per batch row, as a list or an integer tensor ``(batch,)``.
    """
    lengths = integers("padding", "lengths", lengths)
    if lengths.ndim != 1:
        raise ValueError(
            f"padding(lengths) wants one length per batch row, shape (batch,); got shape {tuple(lengths.shape)}. "
            "For a 0/1 tensor that marks the real keys: mask.allowed((real == 1)[:, None, None, :])"
        )
    return Padding(lengths, longest=_largest("padding", lengths))


def prefix(n: int | Sequence[int] | Tensor) -> Mask:
    """Every query sees the first n tokens, and the others as in `causal` (prefix language model).

    Raffel et al. 2020, section 3.2.1 and figure 4.

    Args:
        n: length of the prefix; one whole number, or one per batch row.
    """
    if _is_integer(n):
        length = _checked_position("prefix", "n", n)
        if length < 0:
            raise ValueError(f"prefix({length}): a length cannot be negative")
        return Prefix(torch.tensor([length]), length, per_row=False)
    lengths = integers("prefix", "n", n)
    if lengths.ndim != 1:
        raise ValueError(f"prefix(n) wants one whole number, or one per batch row; got shape {tuple(lengths.shape)}")
    return Prefix(lengths, _largest("prefix", lengths), per_row=True)


def first(n: int) -> Mask:
    """Every query sees the first n keys and no other: the attention sinks of a long text (Xiao et al. 2024, section 3).

    ``mask.causal() & (mask.window(256) | mask.first(4))`` sees the 4 first tokens beside a window. See `prefix` for a
    prefix language model, which is causal behind its prefix.

    Args:
        n: the number of keys; where there are fewer, every key.
    """
    count = _checked_position("first", "n", n)
    if count < 0:
        raise ValueError(f"first({count}): a number of keys cannot be negative")
    return First(count)


def where(fn: Callable[[Tensor, Tensor], Tensor], *, offset: int | None = None) -> Mask:
    """The mask that a function of two positions returns, such as ``lambda i, j: (i - j) % 4 == 0``.

    Args:
        fn: takes query positions ``(rows, 1)`` and key positions ``(1, columns)``, both int64, and returns a boolean
            tensor that broadcasts against them, True = may attend. It is called for tiles of the square, so it must
            depend on the positions alone. For a mask that differs by batch row and head it returns
            ``(batch, heads, rows, columns)``.
        offset: position of the first query among the keys, as in `causal`.
    """
    if not callable(fn):
        raise TypeError(f"where(fn) wants a function of query and key positions; got {type(fn).__name__}")
    return Where(fn, None if offset is None else _checked_position("where", "offset", offset))


def allowed(t: Bool[Tensor, "*batch_heads queries keys"]) -> Mask:
    """The mask that a boolean tensor holds, True = may attend.

    Args:
        t: ``(..., queries, keys)``, broadcastable to ``(batch, heads, queries, keys)``; an axis of size 1
            serves every query or key. One mask per batch row needs an axis of heads: ``t[:, None]``. The tensor is
            not copied.
    """
    return Allowed(_boolean("allowed", t))


def blocked(t: Bool[Tensor, "*batch_heads queries keys"]) -> Mask:
    """The mask that a boolean tensor holds, True = may NOT attend; the opposite of `allowed`."""
    return Blocked(_boolean("blocked", t))


@dataclass(frozen=True, eq=False, repr=False)
class Band(Mask):
    """See `window`; with ``before=None``, see `causal`."""

    before: int | None
    after: int
    offset: int | None

    def query_offset(self, queries: int, keys: int) -> int:
        """The position among the keys of the first query."""
        return keys - queries if self.offset is None else self.offset

    def evaluate(self, tile: Tile) -> Bool[Tensor, "*batch_heads #rows #columns"]:
        return self._allows(tile.query_positions(self.offset), tile.key_positions())

    def predicate(self, queries: int, keys: int, device: torch.device | str | None = None) -> Predicate:
        first = self.query_offset(queries, keys)
        return lambda b, h, i, j: self._allows(i + first, j)

    def bounds(self, grid: TileGrid) -> TileBounds:
        first = self.query_offset(grid.queries, grid.keys)
        nearest, farthest = grid.first_keys - (grid.last_queries + first), grid.last_keys - (grid.first_queries + first)
        any_allowed, all_allowed = nearest <= self.after, farthest <= self.after
        if self.before is not None:
            any_allowed, all_allowed = any_allowed & (farthest > -self.before), all_allowed & (nearest > -self.before)
        return TileBounds(any_allowed, all_allowed)

    def _allows(self, query: Tensor, key: Tensor) -> Tensor:
        not_after = key <= query + self.after
        return not_after if self.before is None else not_after & (key > query - self.before)

    def __repr__(self) -> str:
        offset = "" if self.offset is None else f"offset={self.offset}"
        if self.before is None:
            return f"causal({offset})"
        widths = f"{self.before}, {self.after}" if self.after else f"{self.before}"
        return f"window({widths}, {offset})" if offset else f"window({widths})"


@dataclass(frozen=True, eq=False, repr=False)
class Padding(Mask):
    """See `padding`."""

    lengths: Tensor
    longest: int
    """The largest length, read once: reading it from a GPU's tensor waits for the GPU."""

    def evaluate(self, tile: Tile) -> Bool[Tensor, "*batch_heads #rows #columns"]:
        lengths = self.lengths.to(tile.device or self.lengths.device)
        return torch.arange(*tile.columns, device=lengths.device) < lengths[:, None, None, None]

    def predicate(self, queries: int, keys: int, device: torch.device | str | None = None) -> Predicate:
        lengths = self.lengths.to(device or self.lengths.device)
        return lambda b, h, i, j: j < lengths[b]

    def bounds(self, grid: TileGrid) -> TileBounds:
        lengths = self.lengths.cpu()[:, None, None, None]
        return TileBounds(grid.first_keys < lengths, grid.last_keys < lengths)

    def validate(self, queries: int, keys: int) -> None:
        _refuse_longer(self, self.lengths, self.longest, keys)

    @property
    def batch_size(self) -> int:  # type: ignore[override]
        return len(self.lengths)

    @property
    def min_keys(self) -> int:  # type: ignore[override]
        return self.longest

    def __repr__(self) -> str:
        return f"padding({short(self.lengths)})"


@dataclass(frozen=True, eq=False, repr=False)
class Prefix(Mask):
    """See `prefix`."""

    lengths: Tensor
    longest: int
    per_row: bool
    """Whether there is one length per batch row, or one for all."""

    def evaluate(self, tile: Tile) -> Bool[Tensor, "*batch_heads #rows #columns"]:
        lengths = self.lengths.to(tile.device or self.lengths.device)
        key = torch.arange(*tile.columns, device=lengths.device)
        query = tile.query_positions().to(lengths.device)
        return (key <= query) | (key < (lengths[:, None, None, None] if self.per_row else lengths[0]))

    def predicate(self, queries: int, keys: int, device: torch.device | str | None = None) -> Predicate:
        lengths, first = self.lengths.to(device or self.lengths.device), keys - queries
        return lambda b, h, i, j: (j <= i + first) | (j < lengths[b if self.per_row else 0])

    def bounds(self, grid: TileGrid) -> TileBounds:
        lengths = self.lengths.cpu()[:, None, None, None] if self.per_row else self.lengths.cpu()
        first = grid.keys - grid.queries
        return TileBounds(
            (grid.first_keys <= grid.last_queries + first) | (grid.first_keys < lengths),
            (grid.last_keys <= grid.first_queries + first) | (grid.last_keys < lengths),
        )

    def validate(self, queries: int, keys: int) -> None:
        _refuse_longer(self, self.lengths, self.longest, keys)

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        return len(self.lengths) if self.per_row else None

    @property
    def min_keys(self) -> int:  # type: ignore[override]
        return self.longest

    def __repr__(self) -> str:
        return f"prefix({short(self.lengths) if self.per_row else int(self.lengths[0])})"


@dataclass(frozen=True, eq=False, repr=False)
class First(Mask):
    """See `first`."""

    count: int

    def evaluate(self, tile: Tile) -> Bool[Tensor, "*batch_heads #rows #columns"]:
        return tile.key_positions() < self.count

    def predicate(self, queries: int, keys: int, device: torch.device | str | None = None) -> Predicate:
        return lambda b, h, i, j: j < self.count

    def bounds(self, grid: TileGrid) -> TileBounds:
        return TileBounds((grid.first_keys < self.count)[None], (grid.last_keys < self.count)[None])

    def __repr__(self) -> str:
        return f"first({self.count})"


@dataclass(frozen=True, eq=False, repr=False)
class Where(Mask):
    """See `where`."""

    fn: Callable[[Tensor, Tensor], Tensor]
    offset: int | None

    def evaluate(self, tile: Tile) -> Bool[Tensor, "*batch_heads #rows #columns"]:
        query, key = tile.query_positions(self.offset), tile.key_positions()
        return self._checked(self.fn(query, key), (len(query), key.shape[-1]))

    def predicate(self, queries: int, keys: int, device: torch.device | str | None = None) -> Predicate:
        first = Tile.full(queries, keys).query_offset(self.offset)
        if self._takes_one_pair(first, device):
            return lambda b, h, i, j: self.fn(i + first, j)
        # For one pair the function returns several answers, of which compiled FlexAttention would silently take a wrong
        # one. So its answers for every pair become a tensor.
        t = self.evaluate(Tile.full(queries, keys, device))
        return lambda b, h, i, j: mask_value(t, (b, h, i, j))

    def _takes_one_pair(self, query: int, device: torch.device | str | None) -> bool:
        """Whether the function can be called for one pair without axes, as FlexAttention calls it."""
        try:
            t = self.fn(torch.tensor(query, device=device), torch.tensor(0, device=device))
        except Exception:  # any error of a function that was promised two axes
            return False
        return isinstance(t, Tensor) and t.dtype == torch.bool and t.ndim == 0

    def _checked(self, t: object, shape: tuple[int, int]) -> Tensor:
        name = self._name()
        if not isinstance(t, Tensor) or t.dtype != torch.bool:
            found = t.dtype if isinstance(t, Tensor) else type(t).__name__
            raise TypeError(
                f"where({name}) must return a boolean tensor, True = may attend, such as (i - j) % 4 == 0; "
                f"it returned {found}"
            )
        while t.ndim < 2:
            t = t[None]
        if t.shape[-2] not in (1, shape[0]) or t.shape[-1] not in (1, shape[1]):
            raise ValueError(
                f"where({name}) returned the shape {tuple(t.shape)} for {shape[0]} queries and {shape[1]} keys"
            )
        return t

    def _name(self) -> str:
        return getattr(self.fn, "__name__", type(self.fn).__name__)

    def __repr__(self) -> str:
        return f"where({self._name()}{'' if self.offset is None else f', offset={self.offset}'})"


@dataclass(frozen=True, eq=False, repr=False)
class Allowed(Mask):
    """See `allowed`."""

    tensor: Tensor

    def evaluate(self, tile: Tile) -> Bool[Tensor, "*batch_heads #rows #columns"]:
        rows, columns = self.tensor.shape[-2:]
        row_slice = slice(*tile.rows) if rows != 1 else slice(None)
        part = self.tensor[..., row_slice, slice(*tile.columns) if columns != 1 else slice(None)]
        return part.to(tile.device or part.device)

    def predicate(self, queries: int, keys: int, device: torch.device | str | None = None) -> Predicate:
        t = self.tensor.to(device or self.tensor.device)
        return lambda b, h, i, j: mask_value(t, (b, h, i, j))

    def validate(self, queries: int, keys: int) -> None:
        rows, columns = self.tensor.shape[-2:]
        if rows not in (1, queries) or columns not in (1, keys):
            raise ValueError(f"{self!r} does not fit {queries} queries and {keys} keys")

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        lead = self.tensor.shape[:-3]
        return lead[-1] if lead and lead[-1] != 1 else None

    @property
    def shape(self) -> tuple[int | None, int | None]:  # type: ignore[override]
        rows, columns = self.tensor.shape[-2:]
        return rows if rows != 1 else None, columns if columns != 1 else None

    def __repr__(self) -> str:
        return f"allowed(<bool {tuple(self.tensor.shape)}>)"


@dataclass(frozen=True, eq=False, repr=False)
class Blocked(Allowed):
    """See `blocked`."""

    def evaluate(self, tile: Tile) -> Bool[Tensor, "*batch_heads #rows #columns"]:
        return ~super().evaluate(tile)

    def predicate(self, queries: int, keys: int, device: torch.device | str | None = None) -> Predicate:
        is_blocked = super().predicate(queries, keys, device)
        return lambda b, h, i, j: ~is_blocked(b, h, i, j)

    def __repr__(self) -> str:
        return f"blocked(<bool {tuple(self.tensor.shape)}>)"


def _checked_position(name: str, argument: str, n: object) -> int:
    """One whole number of positions."""
    if not _is_integer(n):
        raise TypeError(f"{name}({argument}={n!r}) wants a whole number of positions; got {type(n).__name__}")
    if not -MAX_POSITION < n < MAX_POSITION:
        raise ValueError(f"{name}({argument}={n}) is beyond any position: sums of int64 positions would wrap around")
    return int(n)


def _is_integer(n: object) -> TypeGuard[int]:
    # Not operator.index: it takes a tensor of one number too, and waits for the GPU.
    return isinstance(n, int | Integral) and not isinstance(n, bool)


def integers(name: str, argument: str, value: object) -> Int[Tensor, "..."]:
    """A copy of an argument as int64; anything but whole numbers is refused."""
    try:
        values = value if isinstance(value, Tensor) else torch.tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        wants = "a list or a tensor of whole numbers, its rows equally long"
        raise TypeError(f"{name}({argument}) wants {wants}; got {value!r}") from error
    empty_list = not isinstance(value, Tensor) and not values.numel()  # an empty list has no dtype
    if not empty_list and (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool):
        hint = "For a tensor that marks the real keys: mask.allowed((real == 1)[:, None, None, :])"
        raise TypeError(
            f"{name}({argument}) wants whole numbers; got a {values.dtype} tensor of shape {tuple(values.shape)}"
            f"{f'. {hint}' if name == 'padding' else ''}"
        )
    # Narrower integers wrap around, and PyTorch cannot compare all unsigned ones. The copy keeps the checked values.
    return values.to(torch.int64, copy=True)


def _largest(name: str, lengths: Tensor) -> int:
    """The largest of the lengths; a negative length is refused."""
    if torch.compiler.is_compiling():
        return UNKNOWN_LENGTH
    if lengths.numel() and int(lengths.min()) < 0:
        raise ValueError(f"{name}({lengths.tolist()}): a length cannot be negative")
    return int(lengths.max()) if lengths.numel() else 0


def _refuse_longer(mask: Mask, lengths: Tensor, longest: int, keys: int) -> None:
    if longest == UNKNOWN_LENGTH:
        torch.ops.aten._assert_async.msg((lengths <= keys).all() & (lengths >= 0).all(), "a length beyond the keys")
    elif longest > keys:
        raise ValueError(f"{mask!r} is for {longest} keys, but there are {keys}")


def _boolean(name: str, t: Tensor) -> Tensor:
    if not isinstance(t, Tensor) or t.dtype != torch.bool:
        found = t.dtype if isinstance(t, Tensor) else type(t).__name__
        raise TypeError(
            f"mask.{name}(t) wants a boolean tensor; got {found}. A tensor of 0 and 1 becomes one by "
            f"comparing: mask.{name}(t == 1). An additive mask of 0 and -inf is a bias: attend(..., bias=t)"
        )
    if t.ndim < 2:
        raise ValueError(
            f"mask.{name}(t) wants the shape (..., queries, keys); got {tuple(t.shape)}. "
            f"For one row that serves every query: mask.{name}(t[None, :])"
        )
    return t


def short(t: Tensor) -> str:
    """The numbers of a mask for its repr, or its dtype and shape if there are many."""
    return str(t.tolist()) if t.numel() <= (16 if t.ndim < 2 else 8) else f"<{t.dtype} {tuple(t.shape)}>"
