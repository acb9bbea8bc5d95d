"""Masks: who MAY attend to whom.

A mask is a small value with one meaning, True = may attend, over absolute positions. It holds no
queries x keys tensor; `Mask.dense` makes one when somebody asks. Masks combine with ``&``: a key must be
allowed by both.

A bare boolean tensor says nothing about its polarity: ``nn.MultiheadAttention`` reads True as blocked,
``F.scaled_dot_product_attention`` reads True as allowed. So bare tensors are refused everywhere, and
`allowed` and `blocked` are the two ways to say which is meant.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from regard._shapes import Bool

__all__ = ["Mask", "allowed", "blocked", "causal", "padding"]


class Mask(ABC):
    """Who may attend to whom; made by the functions of this module, combined with ``&``."""

    rows: int | None = None
    """How many batch rows the mask speaks of, if it speaks of each by itself."""

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

    @abstractmethod
    def broadcastable(
        self, queries: int, keys: int, *, device: torch.device | str | None = None
    ) -> Bool[Tensor, "*batch_heads #queries #keys"]:
        """Like `dense`, in less memory: an axis along which the mask is the same everywhere has size 1."""

    def __and__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask):
            raise TypeError(f"{self!r} & {type(other).__name__}: both sides must be masks. {TWO_WAYS}")
        if self.rows is not None and other.rows is not None and self.rows != other.rows:
            raise ValueError(
                f"{self!r} & {other!r}: the left speaks of {self.rows} batch rows, the right of {other.rows}"
            )
        return _Both(self, other)

    def __rand__(self, other: object) -> Mask:
        raise TypeError(f"{type(other).__name__} & {self!r}: both sides must be masks. {TWO_WAYS}")

    def __or__(self, other: object) -> Mask:
        raise NotImplementedError(f"{self!r} | {other!r}: {_ONLY_AND}")

    def __invert__(self) -> Mask:
        raise NotImplementedError(f"~{self!r}: {_ONLY_AND}")

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(_same(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))  # type: ignore[arg-type]

    __hash__ = None  # type: ignore[assignment]  # equal by value, and values hold tensors


TWO_WAYS = (
    "Say what True means: mask.allowed(t) where True = may attend (as F.scaled_dot_product_attention reads it), "
    "mask.blocked(t) where True = may not (as nn.MultiheadAttention reads it)"
)

_ONLY_AND = (
    "masks combine with & only, so far. For anything else hand over the tensor: "
    "mask.allowed(a.dense(queries, keys) | ~b.dense(queries, keys))"
)


def causal(offset: int | None = None) -> Mask:
    """Each query sees the keys up to and including its own position (paper, section 3.2.3).

    Args:
        offset: position of the first query among the keys. By default the queries are the LAST positions
            (offset = keys - queries), which is what a cache needs; 0 aligns them at the first.
    """
    if offset is not None and (isinstance(offset, bool) or not isinstance(offset, int)):
        raise TypeError(f"causal(offset={offset!r}): the offset is a whole number of positions")
    return Causal(offset)


def padding(lengths: Sequence[int] | Tensor) -> Mask:
    """Only the first ``lengths[b]`` keys of batch row b are real; the rest is padding nobody may attend to.

    For padding on the left, say which keys are real: ``mask.allowed(real[:, None, None, :])``.

    Args:
        lengths: one whole number per batch row, as a list or an integer tensor ``(batch,)``.
    """
    if isinstance(lengths, Tensor):
        counts = lengths
    else:
        counts = torch.tensor(lengths, dtype=None if len(lengths) else torch.long)
    if counts.is_floating_point() or counts.is_complex() or counts.dtype == torch.bool:
        raise TypeError(
            f"padding(lengths) counts the real keys of each batch row; got a {counts.dtype} tensor of shape "
            f"{tuple(counts.shape)}. For a tensor that marks the real keys: mask.allowed(real[:, None, None, :])"
        )
    if counts.ndim != 1:
        raise ValueError(
            f"padding(lengths) wants one length per batch row, shape (batch,); got shape {tuple(counts.shape)}. "
            "For a 0/1 tensor that marks the real keys: mask.allowed((real == 1)[:, None, None, :])"
        )
    if counts.numel() and int(counts.min()) < 0:
        raise ValueError(f"padding({counts.tolist()}): a length cannot be negative")
    return Padding(counts, longest=int(counts.max()) if counts.numel() else 0)


def allowed(t: Bool[Tensor, "*batch_heads queries keys"]) -> Mask:
    """The mask that a boolean tensor holds, True = may attend.

    Args:
        t: ``(..., queries, keys)``, broadcastable to ``(batch, heads, queries, keys)``; an axis of size 1
            stands for every query or key. One mask per batch row needs its axis of heads: ``t[:, None]``. The tensor
            is not copied.
    """
    return Allowed(_boolean("allowed", t))


def blocked(t: Bool[Tensor, "*batch_heads queries keys"]) -> Mask:
    """The mask that a boolean tensor holds, True = may NOT attend; the opposite of `allowed`."""
    return Blocked(_boolean("blocked", t))


@dataclass(frozen=True, eq=False, repr=False)
class Causal(Mask):
    """See `causal`."""

    offset: int | None

    def first(self, queries: int, keys: int) -> int:
        """The position among the keys of the first query."""
        return keys - queries if self.offset is None else self.offset

    def broadcastable(
        self, queries: int, keys: int, *, device: torch.device | str | None = None
    ) -> Bool[Tensor, "*batch_heads #queries #keys"]:
        query = torch.arange(queries, device=device)[:, None] + self.first(queries, keys)
        return query >= torch.arange(keys, device=device)

    def __repr__(self) -> str:
        return "causal()" if self.offset is None else f"causal(offset={self.offset})"


@dataclass(frozen=True, eq=False, repr=False)
class Padding(Mask):
    """See `padding`."""

    lengths: Tensor
    longest: int
    """The largest length, read once: reading it from a GPU's tensor makes the GPU wait."""

    def broadcastable(
        self, queries: int, keys: int, *, device: torch.device | str | None = None
    ) -> Bool[Tensor, "*batch_heads #queries #keys"]:
        if self.longest > keys:
            raise ValueError(f"{self!r} speaks of {self.longest} keys, but there are {keys}")
        lengths = self.lengths.to(device or self.lengths.device)
        real = torch.arange(keys, device=lengths.device) < lengths[:, None]
        return real[:, None, None, :]

    @property
    def rows(self) -> int:  # type: ignore[override]
        return len(self.lengths)

    def __repr__(self) -> str:
        return f"padding({self.lengths.tolist()})"


@dataclass(frozen=True, eq=False, repr=False)
class Allowed(Mask):
    """See `allowed`."""

    tensor: Tensor

    def broadcastable(
        self, queries: int, keys: int, *, device: torch.device | str | None = None
    ) -> Bool[Tensor, "*batch_heads #queries #keys"]:
        rows, columns = self.tensor.shape[-2:]
        if rows not in (1, queries) or columns not in (1, keys):
            raise ValueError(f"{self!r} does not fit {queries} queries and {keys} keys")
        return self.tensor.to(device or self.tensor.device)

    def __repr__(self) -> str:
        return f"allowed(<bool {tuple(self.tensor.shape)}>)"


@dataclass(frozen=True, eq=False, repr=False)
class Blocked(Allowed):
    """See `blocked`."""

    def broadcastable(
        self, queries: int, keys: int, *, device: torch.device | str | None = None
    ) -> Bool[Tensor, "*batch_heads #queries #keys"]:
        return ~super().broadcastable(queries, keys, device=device)

    def __repr__(self) -> str:
        return f"blocked(<bool {tuple(self.tensor.shape)}>)"


@dataclass(frozen=True, eq=False, repr=False)
class _Both(Mask):
    """Allowed by the left mask and by the right one."""

    left: Mask
    right: Mask

    def broadcastable(
        self, queries: int, keys: int, *, device: torch.device | str | None = None
    ) -> Bool[Tensor, "*batch_heads #queries #keys"]:
        left = self.left.broadcastable(queries, keys, device=device)
        right = self.right.broadcastable(queries, keys, device=device)
        try:
            return left & right
        except RuntimeError as error:
            raise ValueError(f"{self!r}: {tuple(left.shape)} and {tuple(right.shape)} do not combine") from error

    @property
    def rows(self) -> int | None:  # type: ignore[override]
        return self.right.rows if self.left.rows is None else self.left.rows

    def __repr__(self) -> str:
        return f"{self.left!r} & {self.right!r}"


def _boolean(name: str, t: Tensor) -> Tensor:
    if not isinstance(t, Tensor) or t.dtype != torch.bool:
        kind = t.dtype if isinstance(t, Tensor) else type(t).__name__
        raise TypeError(
            f"mask.{name}(t) wants a boolean tensor; got {kind}. A tensor of 0 and 1 becomes one by "
            f"comparing: mask.{name}(t == 1). An additive mask of 0 and -inf is a bias: attend(..., bias=t)"
        )
    if t.ndim < 2:
        raise ValueError(
            f"mask.{name}(t) wants the shape (..., queries, keys); got {tuple(t.shape)}. "
            f"For one row that holds for every query: mask.{name}(t[None, :])"
        )
    return t


def _same(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and bool((a.cpu() == b.cpu()).all())
    return a == b


def __getattr__(name: str) -> object:
    raise AttributeError(
        f"regard.mask has no {name!r}, so far; it has causal, padding, allowed, blocked, and & of them"
    )
