"""Caches of keys and values, so that no token is projected twice.

A cache belongs to one attention. `append` stores new keys and values and returns all that the new queries may need,
oldest first: the queries are the last positions, as in every mask. With any cache, and in any number of calls, the
outputs equal those without a cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard.attention.hooks import hook_state

__all__ = ["Cache", "CrossAttentionCache", "Dynamic", "Sliding", "Static"]


def __dir__() -> list[str]:
    return sorted(__all__)


GROWTH = 64
"""A buffer that grows gets room for at least this many more tokens."""


class Cache(ABC):
    """The keys and values of one self-attention.

    While gradients are recorded, each `append` makes a new tensor. Otherwise it writes into a buffer that has room for
    more, and returns a view of the buffer, which is valid until the next `append` or `reorder`.
    """

    length: int | None = None
    """The largest number of tokens; None for any number."""

    def __init__(self) -> None:
        self.num_tokens = 0
        """How many tokens were appended so far."""
        self._validated_shapes: object = None
        """The shapes and dtypes of the last keys and values that were checked."""
        self._k: Tensor | None = None
        self._v: Tensor | None = None
        self._start = 0
        self._stop = 0
        self._owns_buffer = False
        """Whether k and v are a buffer of this cache, and not tensors of the caller or of a graph."""

    @property
    def num_cached(self) -> int:
        """How many of these tokens are stored; the next `append` returns at most these and its own."""
        return self._stop - self._start

    def kv_length(self, tokens: int) -> int:
        """How many keys the next `append` of this many tokens returns."""
        return self.num_cached + tokens

    def append(
        self, k: Float[Tensor, "*batch kv_heads tokens d_key"], v: Float[Tensor, "*batch kv_heads tokens d_value"]
    ) -> tuple[Float[Tensor, "*batch kv_heads keys d_key"], Float[Tensor, "*batch kv_heads keys d_value"]]:
        """Store new keys and values, and return them after the stored ones.

        Raises:
            ValueError: another batch, heads or widths than the stored ones; more tokens than a `Static` has room for.
        """
        shapes = k.shape[:-2], k.shape[-1], v.shape[:-2], v.shape[-1], k.dtype, v.dtype
        if shapes != self._validated_shapes or k.shape[-2] != v.shape[-2]:
            self._validate(k, v)
            self._validated_shapes = shapes
        new = k.shape[-2]
        if self.length is not None and self.num_tokens + new > self.length:
            raise ValueError(
                f"Static(length={self.length}) has room for {self.length - self.num_tokens} tokens more; got {new}. "
                "Make it longer, or use Dynamic"
            )
        self.num_tokens += new
        if torch.is_grad_enabled():
            return self._concatenate(k, v)
        return self._write(k, v)

    def _validate(self, k: Tensor, v: Tensor) -> None:
        """Refuse keys and values that do not fit one another or the stored ones."""
        if k.ndim < 3 or k.shape[:-1] != v.shape[:-1]:
            raise ValueError(
                "keys and values are (..., kv_heads, tokens, width), one value for each key; "
                f"got k {tuple(k.shape)} and v {tuple(v.shape)}"
            )
        if self._k is not None and self._v is not None:
            for new, stored in ((k, self._k), (v, self._v)):
                if (new.shape[:-2], new.shape[-1], new.dtype) != (stored.shape[:-2], stored.shape[-1], stored.dtype):
                    raise ValueError(
                        f"{type(self).__name__} holds {tuple(stored.shape[:-2])} heads of width {stored.shape[-1]} in "
                        f"{stored.dtype}; got {tuple(new.shape)}, {new.dtype}. A cache is for one batch of sequences: "
                        "make a new one, or reorder it"
                    )

    def reorder(self, rows: Int[Tensor, " rows"], *, common_prefix: int = 0) -> None:
        """Replace row i by row ``rows[i]``, for beams that fork and for rows that are repeated or dropped.

        Args:
            rows: for each new row, the old row that it continues.
            common_prefix: how many of the first tokens are equal in row i and row ``rows[i]``, and need not move.

        Raises:
            ValueError: a cache of one sequence without a batch axis.
            IndexError: a row that does not exist.
        """
        if self._k is None or self._v is None:
            return
        if self._k.ndim < 4:
            raise ValueError(f"{type(self).__name__} holds one sequence; only the rows of a batch can be reordered")
        self._k, self._v = [self._take_rows(t, rows, common_prefix) for t in (self._k, self._v)]
        self._owns_buffer = not torch.is_grad_enabled()
        self._validated_shapes = None  # the number of rows may differ now

    def _take_rows(self, t: Tensor, rows: Tensor, common_prefix: int) -> Tensor:
        if torch.is_grad_enabled():
            return t.index_select(0, rows)
        live = t[..., self._start : self._stop, :]
        if len(rows) == len(t) and self._writable(t) and not hook_state.hooks:  # a recording may hold the buffer
            # Most beams stay in their row, and beams that fork have most of their text in common.
            suffix = t[..., max(self._start, self._stop - (self.num_tokens - common_prefix)) : self._stop, :]
            moved = (rows != torch.arange(len(t), device=rows.device)).nonzero()[:, 0]
            suffix.index_copy_(0, moved, suffix.index_select(0, rows[moved]))
            return t
        taken = live.new_empty(len(rows), *t.shape[1:])
        taken[..., self._start : self._stop, :] = live.index_select(0, rows)
        return taken

    @abstractmethod
    def _buffer_size(self, tokens: int) -> int:
        """How many tokens a new buffer has room for if this many are needed."""

    def _num_needed(self) -> int | None:
        """How many of the last tokens later queries may need; None for all."""
        return None

    def _concatenate(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self._k is not None and self._v is not None:
            k = torch.cat([self._k[..., self._start : self._stop, :], k], dim=-2)
            v = torch.cat([self._v[..., self._start : self._stop, :], v], dim=-2)
        self._k, self._v, self._owns_buffer = k, v, False
        self._start, self._stop = 0, k.shape[-2]
        self._start = self._first_needed()
        return k, v

    def _write(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        new = k.shape[-2]
        if self._k is None or self._v is None or self._stop + new > self._k.shape[-2] or not self._writable(self._k):
            self._make_room(k, v)
        assert self._k is not None
        assert self._v is not None
        start, returned = self._start, self._stop - self._start + new
        # narrow takes half the time of a slice, which matters where one token is written at a time.
        self._k.narrow(-2, self._stop, new).copy_(k)
        self._v.narrow(-2, self._stop, new).copy_(v)
        self._stop += new
        self._start = self._first_needed()
        return self._k.narrow(-2, start, returned), self._v.narrow(-2, start, returned)

    def _make_room(self, k: Tensor, v: Tensor) -> None:
        """Move the stored tokens to the front of a buffer that has room for the new tokens too."""
        new, stored = k.shape[-2], self.num_cached
        size = self._buffer_size(stored + new)
        buffers = []
        for old, like in ((self._k, k), (self._v, v)):
            # A buffer that is large enough is used again, and only the stored tokens move.
            fits = old is not None and size <= old.shape[-2] and self._writable(old)
            live = None if old is None else old[..., self._start : self._stop, :]
            buffer = old if fits and old is not None else like.new_empty(*like.shape[:-2], size, like.shape[-1])
            if live is not None:
                buffer[..., :stored, :] = live.clone() if fits else live
            buffers.append(buffer)
        self._k, self._v = buffers
        self._start, self._stop, self._owns_buffer = 0, stored, True

    def _writable(self, t: Tensor) -> bool:
        """Whether the cache may write to a tensor: not to one of inference mode outside of it."""
        return self._owns_buffer and (torch.is_inference_mode_enabled() or not t.is_inference())

    def _first_needed(self) -> int:
        needed = self._num_needed()
        return self._start if needed is None else max(self._start, self._stop - needed)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_tokens={self.num_tokens}, num_cached={self.num_cached})"


class Dynamic(Cache):
    """Stores every token, in a buffer that doubles when it is full."""

    def _buffer_size(self, tokens: int) -> int:
        return tokens + GROWTH if self._k is None else max(2 * tokens, tokens + GROWTH)


class Static(Cache):
    """Stores every token, in a buffer that is made once and never moves.

    Args:
        length: the largest number of tokens.

    Raises:
        ValueError: a length below 1.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        if length < 1:
            raise ValueError(f"Static(length={length}): room for at least 1 token")
        self.length = length

    def _buffer_size(self, tokens: int) -> int:
        assert self.length is not None
        return self.length


class Sliding(Cache):
    """Stores the last tokens that a window may attend to; memory does not grow with the text.

    Its keys are always in order: the buffer has room for a quarter more than the window, and when it is full, the
    tokens that are still needed move to the front. So it returns views, which any kernel and any mask can take.

    A call of many tokens returns what their first query needs, the window - 1 tokens before it, and all new tokens,
    also more than the window (litgpt#2182).

    Args:
        window: as in ``mask.window(window)``: how many positions up to and including the query's own.

    Raises:
        ValueError: a window below 1.
    """

    def __init__(self, window: int) -> None:
        super().__init__()
        if window < 1:
            raise ValueError(f"Sliding(window={window}): the window counts the token itself, so it is at least 1")
        self.window = window

    def _buffer_size(self, tokens: int) -> int:
        return self.window + max(GROWTH, self.window // 4)

    def _num_needed(self) -> int:
        return self.window - 1

    def _write(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.num_cached + k.shape[-2] <= self._buffer_size(1):
            return super()._write(k, v)
        # More tokens than the buffer has room for: this call gets all of them, the buffer keeps the last ones.
        k, v = self._concatenate(k, v)
        size, needed = self._buffer_size(1), min(self.window - 1, k.shape[-2])
        buffers = [t.new_empty(*t.shape[:-2], size, t.shape[-1]) for t in (k, v)]
        for buffer, t in zip(buffers, (k, v), strict=True):
            buffer[..., :needed, :] = t[..., t.shape[-2] - needed :, :]
        self._k, self._v = buffers
        self._start, self._stop, self._owns_buffer = 0, needed, True
        return k, v


class CrossAttentionCache:
    """The keys and values of a cross-attention: computed once per source, and used in every step.

    Several rows of queries may share a source, as the beams of one sentence do: rows ``n * i`` to ``n * i + n - 1``
    then belong to source i.
    """

    def __init__(self) -> None:
        self.k: Float[Tensor, "*batch kv_heads keys d_key"] | None = None
        self.v: Float[Tensor, "*batch kv_heads keys d_value"] | None = None

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Replace source i by source ``rows[i]``."""
        if self.k is not None and self.v is not None:
            self.k, self.v = self.k.index_select(0, rows), self.v.index_select(0, rows)

    def __repr__(self) -> str:
        return f"CrossAttentionCache({'empty' if self.k is None else tuple(self.k.shape)})"
