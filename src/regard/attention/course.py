"""The classes of the five source documents, as thin layers over `regard.steps`.

Names of classes, constructors, calls and attributes are those of the documents, so that their examples run as written
and print the same numbers. That is why `MultiHeadAttention` has the name of the module of regard: it is reached as
``regard.course.MultiHeadAttention``. Each class also has ``.steps(...)``, which is called like the class and returns
every intermediate result: `regard.Steps`.

A ``mask`` here has the polarity of the documents: a boolean tensor, **True = blocked**.

Errors of the documents are corrected in every class below:

- ``row_dim`` and ``col_dim`` must name the last two axes of the encodings. The documents' defaults, 0 and 1, fit
  (tokens, d_model); on a batch they fail, or give wrong numbers where batch, tokens and width are equal. Here they are
  refused, and the message names the way out: ``row_dim=-2, col_dim=-1``.
- a blocked score becomes -inf, not -1e9. A query with every key blocked gets zeros, not the mean of all values,
  and float16, which has no -1e9, works.
- the scale is computed in double precision, so float64 input stays float64 throughout.
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


def __dir__() -> list[str]:
    return sorted(__all__)


_Call = TypeVar("_Call", bound=Callable[..., Any])


def _accept_names(**names: str) -> Callable[[_Call], _Call]:
    """Accept keyword arguments under the names of another document too."""

    def decorate(call: _Call) -> _Call:
        @wraps(call)
        def renamed(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **{names.get(name, name): value for name, value in kwargs.items()})

        return cast("_Call", renamed)

    return decorate


_accept_encoding_names = _accept_names(
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

    def _steps(self, x_q: Tensor, x_k: Tensor, x_v: Tensor, mask: Tensor | None = None) -> Steps:
        if (self.row_dim, self.col_dim) not in {(-2, -1), (x_q.ndim - 2, x_q.ndim - 1)}:
            raise ValueError(
                f"row_dim={self.row_dim}, col_dim={self.col_dim} do not name the tokens and features of encodings of "
                f"shape {tuple(x_q.shape)}, which are its last two axes; row_dim=-2, col_dim=-1 fit any shape"
            )
        return _single_head_steps(self.W_q(x_q), self.W_k(x_k), self.W_v(x_v), mask)


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
        """Every intermediate result of the same call."""
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
        """Every intermediate result of the same call."""
        return self._steps(token_encodings, token_encodings, token_encodings, mask)


class Attention(_Projections):
    """Attention with separate encodings for queries, keys and values (documents 000 and 004).

    Document 004 names the encodings ``q_encodings_matrix`` and so on; both names work.

    Args:
        d_model: width of the encodings, and of queries, keys and values.
        row_dim: the axis of tokens.
        col_dim: the axis of features.
    """

    @_accept_encoding_names
    def forward(
        self,
        encodings_for_q: Float[Tensor, "*batch queries d_model"],
        encodings_for_k: Float[Tensor, "*batch keys d_model"],
        encodings_for_v: Float[Tensor, "*batch keys d_model"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "*batch queries d_model"]:
        """The attention output; ``mask`` True = blocked, broadcastable to ``(..., queries, keys)``."""
        return self._steps(encodings_for_q, encodings_for_k, encodings_for_v, mask).output

    @_accept_encoding_names
    def steps(
        self,
        encodings_for_q: Float[Tensor, "*batch queries d_model"],
        encodings_for_k: Float[Tensor, "*batch keys d_model"],
        encodings_for_v: Float[Tensor, "*batch keys d_model"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Steps:
        """Every intermediate result of the same call."""
        return self._steps(encodings_for_q, encodings_for_k, encodings_for_v, mask)


class MultiHeadedAttention(nn.Module):
    """Several `Attention` heads side by side, their outputs joined on the features (document 004).

    No output projection, so the result is num_heads * d_model wide; `regard.MultiHeadAttention` has one.

    Corrected: the mask reaches every head (E-36). In document 004 the heads always get ``mask=None``.

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

    @_accept_encoding_names
    def forward(
        self,
        encodings_for_q: Float[Tensor, "*batch queries d_model"],
        encodings_for_k: Float[Tensor, "*batch keys d_model"],
        encodings_for_v: Float[Tensor, "*batch keys d_model"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "*batch queries heads_x_d_model"]:
        """The joined outputs; ``mask`` True = blocked, the same for every head."""
        return torch.cat([head(encodings_for_q, encodings_for_k, encodings_for_v, mask) for head in self.heads], dim=-1)

    @_accept_encoding_names
    def steps(
        self,
        encodings_for_q: Float[Tensor, "*batch queries d_model"],
        encodings_for_k: Float[Tensor, "*batch keys d_model"],
        encodings_for_v: Float[Tensor, "*batch keys d_model"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Steps:
        """Every intermediate result of the same call, head by head, as `regard.MultiHeadAttention.steps` gives them."""
        heads = cast("Iterable[Attention]", self.heads)
        return _join_heads([head.steps(encodings_for_q, encodings_for_k, encodings_for_v, mask) for head in heads])


class MultiHeadSelfAttention(nn.Module):
    """Multi-head self-attention with an output projection (document 003, where it is named MultiHeadAttention).

    ``course.MultiHeadAttention(embed_dim, num_heads)`` makes one of these.

    Corrected: each head has its own width, embed_dim // num_heads (E-30); the class of the document reads a global
    variable, and fails or scales wrongly without the right one. It takes a mask (E-31), True = blocked.

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
        """Every intermediate result of the same call, head by head, as `regard.MultiHeadAttention.steps` gives them."""
        by_head = _join_heads([head.steps(x, mask) for head in cast("Iterable[AttentionHead]", self.heads)])
        return replace(by_head, projected=self.output_linear(by_head.heads))


class MultiHeadAttention(MultiHeadedAttention):
    """Several heads joined, without an output projection (document 000).

    Two documents gave a class this name. ``(d_model, row_dim, col_dim, num_heads)`` are the arguments of document 000,
    and ``(embed_dim, num_heads)`` those of document 003, `MultiHeadSelfAttention`. ``MultiHeadAttention(32, 4)`` can
    only be that of 003, since row_dim and col_dim come together. ``MultiHeadAttention(2, num_heads=8)`` fits both and
    is that of 000; for that of 003, name embed_dim.

    Corrected: it takes a mask, True = blocked. Document 000 mentions a mask but has no argument for it.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        is_document_003 = "embed_dim" in kwargs or (len(args) == 2 and args[1] > 0 and not kwargs)
        if is_document_003 and cls is MultiHeadAttention:
            return MultiHeadSelfAttention(*args, **kwargs)
        return super().__new__(cls)


class AttentionHead(nn.Module):
    """One head that projects to its own width (document 003).

    Corrected: the scale is 1 / sqrt(head_size) of this head and uses no global variable (E-30). It takes a mask (E-31),
    True = blocked; the text of the document says 1 = keep, so pass ``mask == 0``.

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
        """Every intermediate result of the same call."""
        return _single_head_steps(self.query(x), self.key(x), self.value(x), mask)


def _single_head_steps(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Steps:
    """`regard.steps` of one head: the documents have no axis of heads, so it is added and removed again."""
    if mask is not None and mask.ndim > 2:
        mask = mask.unsqueeze(-3)
    blocked = None if mask is None else masks.blocked(mask)
    with_axis = steps(q.unsqueeze(-3), k.unsqueeze(-3), v.unsqueeze(-3), blocked)
    by_name = {name: value.squeeze(-3) for name, value in vars(with_axis).items() if value is not None}
    return Steps(**by_name, q=q, k=k, v=v)


def _join_heads(heads: list[Steps]) -> Steps:
    """The steps of several heads as one, with the axis of heads where `regard.steps` has it."""
    names = [name for name, value in vars(heads[0]).items() if value is not None]
    stacked = {name: torch.stack([getattr(head, name) for head in heads], dim=-3) for name in names}
    return Steps(**stacked, heads=torch.cat([head.output for head in heads], dim=-1))
