"""The classes of the five source documents, as thin layers over `regard.steps`.

Constructors, calls and attributes are the documents' own, so that their examples run as written and give the
numbers they print. Each class also has ``.steps(...)``, called like the class itself, which keeps every
intermediate: `regard.Steps`.

A ``mask`` here keeps the course's polarity: a boolean tensor, **True = blocked**.

What the documents get wrong is right here, for every class below (numbers as in the project's list of errata):

- E-06: ``row_dim`` and ``col_dim`` must name the last two axes of what is attended over. The documents' defaults,
  0 and 1, fit (tokens, d_model); on a batch they fail, or are silently wrong where batch, tokens and width agree.
  Here they are refused with the way out: ``row_dim=-2, col_dim=-1``.
- E-08: a blocked score becomes -inf, not -1e9. A query with every key blocked gets zeros, not the mean of all values,
  and float16, which has no -1e9, works.
- E-08b: the scale is computed in double precision, so float64 input stays float64 throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from regard._shapes import Bool, Float
from regard.attention import mask as masks
from regard.attention.steps import Steps, steps

__all__ = [
    "Attention",
    "AttentionHead",
    "MaskedSelfAttention",
    "MultiHeadAttention",
    "MultiHeadSelfAttention",
    "MultiHeadedAttention",
    "SelfAttention",
]


_Call = TypeVar("_Call", bound=Callable[..., Any])


def _also_spelled(**spellings: str) -> Callable[[_Call], _Call]:
    """Let keyword arguments be given under the name that another document gives them."""

    def decorate(call: _Call) -> _Call:
        @wraps(call)
        def renamed(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **{spellings.get(name, name): value for name, value in kwargs.items()})

        return cast("_Call", renamed)

    return decorate


_ENCODINGS = _also_spelled(
    q_encodings_matrix="encodings_for_q",
    k_encodings_matrix="encodings_for_k",
    v_encodings_matrix="encodings_for_v",
)


class _Projections(nn.Module):
    """The three weight matrices that the single-head classes of 000, 001 and 004 share."""

    def __init__(self, d_model: int = 2, row_dim: int = 0, col_dim: int = 1) -> None:
        super().__init__()
        self.d_model = d_model
        self.row_dim = row_dim
        self.col_dim = col_dim
        # In this order: it fixes which random numbers each matrix gets.
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)

    def _steps(self, for_q: Tensor, for_k: Tensor, for_v: Tensor, mask: Tensor | None = None) -> Steps:
        if (self.row_dim, self.col_dim) not in {(-2, -1), (for_q.ndim - 2, for_q.ndim - 1)}:
            raise ValueError(
                f"row_dim={self.row_dim}, col_dim={self.col_dim} do not name the tokens and features of encodings of "
                f"shape {tuple(for_q.shape)}, which are its last two axes; row_dim=-2, col_dim=-1 fit any shape"
            )
        return _one_head(self.W_q(for_q), self.W_k(for_k), self.W_v(for_v), mask)


class SelfAttention(_Projections):
    """Self-attention without a mask (documents 000 and 001).

    Args:
        d_model: width of the encodings, and of queries, keys and values.
        row_dim: the axis of tokens.
        col_dim: the axis of features.
    """

    def forward(
        self, token_encodings: Float[Tensor, "*batch tokens d_model"]
    ) -> Float[Tensor, "*batch tokens d_model"]:
        """The attention output of every token over every token."""
        return self.steps(token_encodings).output

    def steps(self, token_encodings: Float[Tensor, "*batch tokens d_model"]) -> Steps:
        """Every intermediate of the same call."""
        return self._steps(token_encodings, token_encodings, token_encodings)


class MaskedSelfAttention(_Projections):
    """Self-attention with an optional mask, True = blocked (document 000).

    Args:
        d_model: width of the encodings, and of queries, keys and values.
        row_dim: the axis of tokens.
        col_dim: the axis of features.
    """

    def forward(
        self, token_encodings: Float[Tensor, "*batch tokens d_model"], mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "*batch tokens d_model"]:
        """The attention output; ``mask`` True = blocked, broadcastable to ``(..., tokens, tokens)``."""
        return self.steps(token_encodings, mask).output

    def steps(
        self, token_encodings: Float[Tensor, "*batch tokens d_model"], mask: Bool[Tensor, "..."] | None = None
    ) -> Steps:
        """Every intermediate of the same call."""
        return self._steps(token_encodings, token_encodings, token_encodings, mask)


class Attention(_Projections):
    """Attention with separate encodings for queries, keys and values (documents 000 and 004).

    Document 004 calls the encodings ``q_encodings_matrix`` and so on; both spellings work.

    Args:
        d_model: width of the encodings, and of queries, keys and values.
        row_dim: the axis of tokens.
        col_dim: the axis of features.
    """

    @_ENCODINGS
    def forward(
        self,
        encodings_for_q: Float[Tensor, "*batch queries d_model"],
        encodings_for_k: Float[Tensor, "*batch keys d_model"],
        encodings_for_v: Float[Tensor, "*batch keys d_model"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "*batch queries d_model"]:
        """The attention output; ``mask`` True = blocked, broadcastable to ``(..., queries, keys)``."""
        return self._steps(encodings_for_q, encodings_for_k, encodings_for_v, mask).output

    @_ENCODINGS
    def steps(
        self,
        encodings_for_q: Float[Tensor, "*batch queries d_model"],
        encodings_for_k: Float[Tensor, "*batch keys d_model"],
        encodings_for_v: Float[Tensor, "*batch keys d_model"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Steps:
        """Every intermediate of the same call."""
        return self._steps(encodings_for_q, encodings_for_k, encodings_for_v, mask)


class MultiHeadedAttention(nn.Module):
    """Several `Attention` heads side by side, their outputs joined on the features (document 004).

    No output projection, so the result is num_heads * d_model wide (E-10); `regard.MultiHeadAttention` has one.

    Corrected: the mask reaches every head (E-36). Document 004 accepts one and passes ``mask=None`` on.

    Args:
        d_model: width of the encodings and of every head.
        row_dim: the axis of tokens.
        col_dim: the axis of features.
        num_heads: how many heads.
    """

    def __init__(self, d_model: int = 2, row_dim: int = 0, col_dim: int = 1, num_heads: int = 1) -> None:
        super().__init__()
        self.d_model = d_model
        self.row_dim = row_dim
        self.col_dim = col_dim
        if num_heads < 1:
            raise ValueError(f"num_heads={num_heads} must be at least 1")
        self.heads = nn.ModuleList(Attention(d_model, row_dim, col_dim) for _ in range(num_heads))

    @_ENCODINGS
    def forward(
        self,
        encodings_for_q: Float[Tensor, "*batch queries d_model"],
        encodings_for_k: Float[Tensor, "*batch keys d_model"],
        encodings_for_v: Float[Tensor, "*batch keys d_model"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "*batch queries heads_x_d_model"]:
        """The joined outputs; ``mask`` True = blocked, the same for every head."""
        return torch.cat([head(encodings_for_q, encodings_for_k, encodings_for_v, mask) for head in self.heads], dim=-1)

    @_ENCODINGS
    def steps(
        self,
        encodings_for_q: Float[Tensor, "*batch queries d_model"],
        encodings_for_k: Float[Tensor, "*batch keys d_model"],
        encodings_for_v: Float[Tensor, "*batch keys d_model"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Steps:
        """Every intermediate of the same call, head by head, as `regard.MultiHeadAttention.steps` gives them."""
        heads = cast("Iterable[Attention]", self.heads)
        return _side_by_side([head.steps(encodings_for_q, encodings_for_k, encodings_for_v, mask) for head in heads])


class MultiHeadSelfAttention(nn.Module):
    """Multi-head self-attention with an output projection (document 003, where it is named MultiHeadAttention).

    ``course.MultiHeadAttention(embed_dim, num_heads)`` makes one of these.

    Corrected: each head is embed_dim // num_heads wide because it is told so (E-30); the document's class reads
    a global variable, and fails or scales wrongly without the right one. It takes a mask (E-31), True = blocked.

    Args:
        embed_dim: width of the input and of the result.
        num_heads: how many heads; divides embed_dim.
    """

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"embed_dim={embed_dim} must be divisible by num_heads={num_heads}")
        self.head_size = embed_dim // num_heads
        self.heads = nn.ModuleList(AttentionHead(embed_dim, self.head_size) for _ in range(num_heads))
        self.output_linear = nn.Linear(embed_dim, embed_dim)

    def forward(
        self, x: Float[Tensor, "*batch tokens embed_dim"], mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "*batch tokens embed_dim"]:
        """The projected outputs of all heads; ``mask`` True = blocked."""
        projected: Tensor = self.output_linear(torch.cat([head(x, mask) for head in self.heads], dim=-1))
        return projected

    def steps(self, x: Float[Tensor, "*batch tokens embed_dim"], mask: Bool[Tensor, "..."] | None = None) -> Steps:
        """Every intermediate of the same call, head by head, as `regard.MultiHeadAttention.steps` gives them."""
        by_head = _side_by_side([head.steps(x, mask) for head in cast("Iterable[AttentionHead]", self.heads)])
        return replace(by_head, projected=self.output_linear(by_head.heads))


class MultiHeadAttention(MultiHeadedAttention):
    """Several heads joined, without an output projection (document 000).

    Two documents gave their class this name. ``(d_model, row_dim, col_dim, num_heads)`` is 000's, and
    ``(embed_dim, num_heads)`` is 003's, `MultiHeadSelfAttention`. ``MultiHeadAttention(32, 4)`` can only be 003's,
    as 000's row_dim stands directly before its col_dim. ``MultiHeadAttention(2, num_heads=8)`` fits both and is 000's;
    name embed_dim for 003's.

    Corrected: it accepts a mask, True = blocked (E-13). Document 000 promises one and has no argument for it.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        of_003 = "embed_dim" in kwargs or (len(args) == 2 and args[1] > 0 and not kwargs)
        if of_003 and cls is MultiHeadAttention:
            return MultiHeadSelfAttention(*args, **kwargs)
        return super().__new__(cls)


class AttentionHead(nn.Module):
    """One head that projects to its own width (document 003).

    Corrected: the scale is 1 / sqrt(head_size) of this head, whatever global variables exist (E-30). It takes
    a mask (E-31), True = blocked; the document's own prose writes 1 = keep, so pass ``mask == 0``.

    Args:
        embed_dim: width of the input.
        head_size: width of queries, keys, values and of the result.
    """

    def __init__(self, embed_dim: int, head_size: int) -> None:
        super().__init__()
        self.head_size = head_size
        # In this order: it fixes which random numbers each matrix gets.
        self.query = nn.Linear(embed_dim, head_size, bias=False)
        self.key = nn.Linear(embed_dim, head_size, bias=False)
        self.value = nn.Linear(embed_dim, head_size, bias=False)

    def forward(
        self, x: Float[Tensor, "*batch tokens embed_dim"], mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "*batch tokens head_size"]:
        """The attention output; ``mask`` True = blocked."""
        return self.steps(x, mask).output

    def steps(self, x: Float[Tensor, "*batch tokens embed_dim"], mask: Bool[Tensor, "..."] | None = None) -> Steps:
        """Every intermediate of the same call."""
        return _one_head(self.query(x), self.key(x), self.value(x), mask)


def _one_head(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Steps:
    """`regard.steps` of one head: the course has no axis of heads, so one is put in and taken out again."""
    if mask is not None and mask.ndim > 2:
        mask = mask.unsqueeze(-3)
    who = None if mask is None else masks.blocked(mask)
    kept = steps(q.unsqueeze(-3), k.unsqueeze(-3), v.unsqueeze(-3), who)
    by_name = {name: value.squeeze(-3) for name, value in vars(kept).items() if value is not None}
    return Steps(**by_name, q=q, k=k, v=v)


def _side_by_side(heads: list[Steps]) -> Steps:
    """The steps of several heads as one, with the axis of heads where `regard.steps` has it."""
    names = [name for name, value in vars(heads[0]).items() if value is not None]
    stacked = {name: torch.stack([getattr(head, name) for head in heads], dim=-3) for name in names}
    return Steps(**stacked, heads=torch.cat([head.output for head in heads], dim=-1))
