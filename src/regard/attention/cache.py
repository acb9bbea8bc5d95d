"""Keys and values of tokens that were read before, so that no token is projected twice.

One cache belongs to one attention. It appends what is new and returns everything that the new tokens may need, oldest
first, so that the masks' convention holds: the queries are the last positions. Cached equals uncached is the
contract, whatever the kind and however the tokens are cut into calls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from regard._shapes import Float, Int

__all__ = ["Cache", "CrossAttentionCache", "Dynamic", "Sliding", "Static"]

ROOM = 64
"""A buffer that grows has room for at least so many tokens more."""


class Cache(ABC):
    """The keys and values of one self-attention.

    While gradients are recorded, tokens are joined to a new tensor each time. Otherwise they are written into a
    buffer with room to spare, and what is returned is a view of it: valid until the next `append` or `reorder`.
    """

    length: int | None = None
    """How many tokens there is room for in all; None for any number."""

    def __init__(self) -> None:
        self.num_tokens = 0
        """How many tokens were appended so far."""
        self._accepted: object = None
        """The shapes and dtypes of the last keys and values that were checked."""
        self._k: Tensor | None = None
        self._v: Tensor | None = None
        self._start = 0
        self._stop = 0
        self._ours = False
        """Whether it is a buffer made here, which may be written to, and not a tensor of the caller's or of a graph."""

    @property
    def num_cached(self) -> int:
        """How many of the tokens seen are still there; the next `append` returns at most these and its own."""
        return self._stop - self._start

    def kv_length(self, tokens: int) -> int:
        """How many keys the next `append` of so many tokens returns."""
        return self.num_cached + tokens

    def append(
        self, k: Float[Tensor, "*batch kv_heads tokens d_key"], v: Float[Tensor, "*batch kv_heads tokens d_value"]
    ) -> tuple[Float[Tensor, "*batch kv_heads keys d_key"], Float[Tensor, "*batch kv_heads keys d_value"]]:
        """Keep new keys and values, and return them behind those that are held.

        Raises:
            ValueError: another batch, other heads or widths than those held; more tokens than a `Static` has room for.
        """
        given = k.shape[:-2], k.shape[-1], v.shape[:-2], v.shape[-1], k.dtype, v.dtype
        if given != self._accepted or k.shape[-2] != v.shape[-2]:
            self._refuse_others(k, v)
            self._accepted = given
        new = k.shape[-2]
        if self.length is not None and self.num_tokens + new > self.length:
            raise ValueError(
                f"Static(length={self.length}) has room for {self.length - self.num_tokens} tokens more; got {new}. "
                "Make it longer, or take Dynamic"
            )
        self.num_tokens += new
        if torch.is_grad_enabled():
            return self._joined(k, v)
        return self._written(k, v)

    def _refuse_others(self, k: Tensor, v: Tensor) -> None:
        """Refuse keys and values that do not fit one another, or those that are held."""
        if k.ndim < 3 or k.shape[:-1] != v.shape[:-1]:
            raise ValueError(
                "keys and values are (..., kv_heads, tokens, width), a value for each key; "
                f"got k {tuple(k.shape)} and v {tuple(v.shape)}"
            )
        if self._k is not None and self._v is not None:
            for new, old in ((k, self._k), (v, self._v)):
                if new.shape[:-2] != old.shape[:-2] or new.shape[-1] != old.shape[-1] or new.dtype != old.dtype:
                    raise ValueError(
                        f"{type(self).__name__} holds {tuple(old.shape[:-2])} heads of width {old.shape[-1]} in "
                        f"{old.dtype}; got {tuple(new.shape)}, {new.dtype}. A cache is for one batch of sequences: "
                        "make a new one, or reorder it"
                    )

    def reorder(self, rows: Int[Tensor, " rows"], *, common_prefix: int = 0) -> None:
        """Make row i what row ``rows[i]`` was: beams that fork, rows that repeat, rows that are dropped.

        Args:
            rows: for each row that follows, the row it continues.
            common_prefix: the first so many tokens seen are the same in row i and row ``rows[i]``, and need not move.

        Raises:
            ValueError: a cache of one sequence without a batch axis.
            IndexError: a row that there is not.
        """
        if self._k is None or self._v is None:
            return
        if self._k.ndim < 4:
            raise ValueError(f"{type(self).__name__} holds one sequence; only the rows of a batch can be reordered")
        self._k, self._v = [self._taken(t, rows, common_prefix) for t in (self._k, self._v)]
        self._ours = not torch.is_grad_enabled()
        self._accepted = None  # there may be another number of rows now

    def _taken(self, t: Tensor, rows: Tensor, common_prefix: int) -> Tensor:
        if torch.is_grad_enabled():
            return t.index_select(0, rows)
        live = t[..., self._start : self._stop, :]
        if len(rows) == len(t) and self._writable(t):
            # Most beams stay where they are, and those that fork have most of their text in common.
            other = t[..., max(self._start, self._stop - (self.num_tokens - common_prefix)) : self._stop, :]
            moved = (rows != torch.arange(len(t), device=rows.device)).nonzero()[:, 0]
            other.index_copy_(0, moved, other.index_select(0, rows[moved]))
            return t
        taken = live.new_empty(len(rows), *t.shape[1:])
        taken[..., self._start : self._stop, :] = live.index_select(0, rows)
        return taken

    @abstractmethod
    def _room(self, tokens: int) -> int:
        """How many tokens a new buffer has room for, where so many are needed."""

    def _kept(self) -> int | None:
        """How many of the last tokens are enough to keep; None for all."""
        return None

    def _joined(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self._k is not None and self._v is not None:
            k = torch.cat([self._k[..., self._start : self._stop, :], k], dim=-2)
            v = torch.cat([self._v[..., self._start : self._stop, :], v], dim=-2)
        self._k, self._v, self._ours = k, v, False
        self._start, self._stop = 0, k.shape[-2]
        self._start = self._first_kept()
        return k, v

    def _written(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        new = k.shape[-2]
        if self._k is None or self._v is None or self._stop + new > self._k.shape[-2] or not self._writable(self._k):
            self._move(k, v)
        assert self._k is not None
        assert self._v is not None
        start, held = self._start, self._stop - self._start + new
        # narrow is a slice at half its price, which counts where one token is written at a time.
        self._k.narrow(-2, self._stop, new).copy_(k)
        self._v.narrow(-2, self._stop, new).copy_(v)
        self._stop += new
        self._start = self._first_kept()
        return self._k.narrow(-2, start, held), self._v.narrow(-2, start, held)

    def _move(self, k: Tensor, v: Tensor) -> None:
        """What is held, to the front of a buffer that has room for the new tokens too."""
        new, held = k.shape[-2], self.num_cached
        room = self._room(held + new)
        moved = []
        for old, like in ((self._k, k), (self._v, v)):
            # The buffer is taken again where it is large enough: only what is held moves.
            fits = old is not None and room <= old.shape[-2] and self._writable(old)
            live = None if old is None else old[..., self._start : self._stop, :]
            buffer = old if fits and old is not None else like.new_empty(*like.shape[:-2], room, like.shape[-1])
            if live is not None:
                buffer[..., :held, :] = live.clone() if fits else live
            moved.append(buffer)
        self._k, self._v = moved
        self._start, self._stop, self._ours = 0, held, True

    def _writable(self, t: Tensor) -> bool:
        """A buffer that was made under inference_mode cannot be written to outside of it."""
        return self._ours and (torch.is_inference_mode_enabled() or not t.is_inference())

    def _first_kept(self) -> int:
        kept = self._kept()
        return self._start if kept is None else max(self._start, self._stop - kept)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_tokens={self.num_tokens}, num_cached={self.num_cached})"


class Dynamic(Cache):
    """Every token, in a buffer that doubles when it is full."""

    def _room(self, tokens: int) -> int:
        return tokens + ROOM if self._k is None else max(2 * tokens, tokens + ROOM)


class Static(Cache):
    """Every token, in a buffer that is made once and never moves.

    Args:
        length: how many tokens it has room for.

    Raises:
        ValueError: a length below 1.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        if length < 1:
            raise ValueError(f"Static(length={length}): room for at least 1 token")
        self.length = length

    def _room(self, tokens: int) -> int:
        assert self.length is not None
        return self.length


class Sliding(Cache):
    """The last tokens that a window reaches; memory does not grow with the text.

    It is a ring whose keys always lie in order: the buffer has a quarter more room than the window, and when its end
    is reached, what is still needed moves to the front. So views of it are what any kernel and any mask can take.

    A call of many tokens returns what their first query needs: the window - 1 tokens before it, and all the new ones,
    however many (litgpt#2182: a prompt longer than the window).

    Args:
        window: as in ``mask.window(window)``: how many positions up to the query's own, which counts.

    Raises:
        ValueError: a window below 1.
    """

    def __init__(self, window: int) -> None:
        super().__init__()
        if window < 1:
            raise ValueError(f"Sliding(window={window}): the window counts the token itself, so it is at least 1")
        self.window = window

    def _room(self, tokens: int) -> int:
        return self.window + max(ROOM, self.window // 4)

    def _kept(self) -> int:
        return self.window - 1

    def _written(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.num_cached + k.shape[-2] <= self._room(1):
            return super()._written(k, v)
        # More than the ring has room for: all of it for this call, its end for the next ones.
        k, v = self._joined(k, v)
        room, kept = self._room(1), min(self.window - 1, k.shape[-2])
        ring = [t.new_empty(*t.shape[:-2], room, t.shape[-1]) for t in (k, v)]
        for into, t in zip(ring, (k, v), strict=True):
            into[..., :kept, :] = t[..., t.shape[-2] - kept :, :]
        self._k, self._v = ring
        self._start, self._stop, self._ours = 0, kept, True
        return k, v


class CrossAttentionCache:
    """The keys and values of a cross-attention: computed once per source, and read in every step.

    Several rows of queries may share a source, as the beams of one sentence do: rows ``n * i`` to ``n * i + n - 1``
    then belong to source i.
    """

    def __init__(self) -> None:
        self.k: Float[Tensor, "*batch kv_heads keys d_key"] | None = None
        self.v: Float[Tensor, "*batch kv_heads keys d_value"] | None = None

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Make source i what source ``rows[i]`` was."""
        if self.k is not None and self.v is not None:
            self.k, self.v = self.k.index_select(0, rows), self.v.index_select(0, rows)

    def __repr__(self) -> str:
        return f"CrossAttentionCache({'empty' if self.k is None else tuple(self.k.shape)})"
