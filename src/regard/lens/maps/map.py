"""The exact attention of one layer, as a promise: any part of it is computed when somebody asks.

Kept are queries, keys and what is done to their scores. A weight is exp(score - lse of its row), and most questions
about all weights are attention with other values (`regard.lens.maps`), so that no queries x keys matrix is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard.attention.bias import PositionBias
from regard.attention.mask import Mask
from regard.attention.validation import validate
from regard.lens.maps import moments, streaming
from regard.lens.maps.indexing import index_weights, lse_matches, max_error
from regard.lens.maps.moments import Distance, parse_groups
from regard.lens.maps.prepared import PreparedAttention, no_grad_no_autocast, prepare
from regard.lens.maps.received import received
from regard.lens.maps.streaming import TopWeights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["AttentionMap", "Distance", "OutputSample", "TopWeights"]

Tokens = list[str] | list[list[str]]


@dataclass(frozen=True)
class OutputSample:
    """Rows of the attention output that the model itself computed: what a map proves itself against."""

    batch: Int[Tensor, " n"]
    query: Int[Tensor, " n"]
    output: Tensor
    """weights @ v of these rows; or whatever `finish` makes of that."""
    factor: Float[Tensor, "n heads keys"] | None = None
    """What dropout multiplied the weights of these rows by."""
    finish: Callable[[Tensor], Tensor] | None = None
    """(n, heads, d_value) -> like `output`, where only that is known."""


class AttentionMap:
    """Attention weights (batch, heads, queries, keys) that are computed when they are asked for.

    ``m[b, h, i]`` and any other index answer as the dense tensor would, by the definition in float64. The questions
    are exact too, and their memory grows with the tokens, not with their square. They honour scale, bias, soft-cap,
    mask, grouped heads and sinks; dropout falls on weights afterwards, so the weights are those before it.

    A query with nothing to attend to has zero weights. With sinks a row sums to less than 1. NaN and infinity in q or
    k show in the rows that are indexed, as in `regard.steps`; questions about the whole map refuse them.

    Args:
        q: queries ``(batch, heads, queries, d_key)``, kept by reference, as k and v are.
        k: keys ``(batch, kv_heads, keys, d_key)``.
        v: values ``(batch, kv_heads, keys, d_value)``, which `error` needs and nothing else.
        mask: who may attend, from `regard.mask`.
        scale: as in `regard.attend`, and so are bias, softcap, sinks and dropout.
        bias: see `regard.attend`.
        softcap: see `regard.attend`.
        sinks: see `regard.attend`.
        dropout: what fell on the weights after all that, for the reader.
        lse: ``(batch, heads, queries)``, the logarithm of each row's sum of exponentials, without sinks, where the
            kernel that computed the attention gave it. Some rows of it are checked before it is used.
        sample: rows of the model's own output, for `error`.
        kernel: what computed the attention, for the reader.
        ensure_unchanged: called before anything is computed from q, k and v; raises if they are not what they were.

    Raises:
        TypeError: as `regard.attend` does.
        ValueError: as `regard.attend` does; other than four axes.
    """

    tokens: tuple[Tokens, Tokens] | None = None
    """What stands at the queries and at the keys, once `label` has said it."""

    def __init__(
        self,
        q: Float[Tensor, "batch heads queries d_key"],
        k: Float[Tensor, "batch kv_heads keys d_key"],
        v: Float[Tensor, "batch kv_heads keys d_value"] | None = None,
        mask: Mask | None = None,
        *,
        scale: float | int | None = None,
        bias: Float[Tensor, "..."] | PositionBias | None = None,
        softcap: float | int | None = None,
        sinks: Float[Tensor, "..."] | None = None,
        dropout: float | int = 0.0,
        lse: Float[Tensor, "batch heads queries"] | None = None,
        sample: OutputSample | None = None,
        kernel: str = "",
        ensure_unchanged: Callable[[], None] | None = None,
    ) -> None:
        validate(
            q, k, k if v is None else v, mask, scale=scale, bias=bias, softcap=softcap, sinks=sinks, dropout=dropout
        )
        if q.ndim != 4:
            raise ValueError(
                f"a map wants q (batch, heads, queries, d_key); got {tuple(q.shape)}: unsqueeze what is not there"
            )
        if lse is not None and lse.shape != q.shape[:-1]:
            raise ValueError(f"lse must be {tuple(q.shape[:-1])}, one number per row; got {tuple(lse.shape)}")
        self.q, self.k, self.v = q.detach(), k.detach(), None if v is None else v.detach()
        self.mask = mask
        self.scale = q.shape[-1] ** -0.5 if scale is None else scale
        self.bias = bias.detach() if isinstance(bias, Tensor) else bias
        self.softcap = softcap
        self.sinks = None if sinks is None else sinks.detach()
        self.dropout = dropout
        self.kernel = kernel
        self.sample = sample
        self.answer_cache: dict[str, Any] = {}
        """What questions found out and others need again: rows that are empty, the lse, the error."""
        self.kernel_lse = None if lse is None else lse.detach()
        self._ensure_unchanged = ensure_unchanged

    @property
    def shape(self) -> torch.Size:
        """(batch, heads, queries, keys)."""
        return torch.Size((*self.q.shape[:3], self.k.shape[2]))

    @property
    def score_options(self) -> dict[str, Any]:
        """What is done to the scores beside the mask, as keyword arguments: for another map that does the same."""
        return {"scale": self.scale, "bias": self.bias, "softcap": self.softcap, "sinks": self.sinks}

    @property
    def dtype(self) -> torch.dtype:
        """Of q and k."""
        return self.q.dtype

    @property
    def device(self) -> torch.device:
        """Where q and k are."""
        return self.q.device

    @property
    @no_grad_no_autocast
    def lse(self) -> Float[Tensor, "batch heads queries"]:
        """The logarithm of each row's sum of exponentials, without sinks; -inf where there is nothing to attend to."""
        self.ensure_unchanged()
        prepared = prepare(self)
        own = self._own_lse(prepared)
        return (own if prepared.shift is None else own + prepared.shift).to(self._answers)

    # Parts.

    @no_grad_no_autocast
    def __getitem__(self, index: Any) -> Float[Tensor, "..."]:
        """``m[b, h, i]``, ``m[0, :, 5:9, -1]``, ``m[0, 0, [1, 4]]``: as the dense tensor would answer.

        Raises:
            IndexError: as the dense tensor would; batch rows, heads, queries and keys count from 0.
        """
        self.ensure_unchanged()
        return index_weights(self, index)

    @no_grad_no_autocast
    def dense(self, budget: int | None = 2**30) -> Float[Tensor, "batch heads queries keys"]:
        """Every weight, in float32 (float64 where q is).

        Args:
            budget: how many bytes it may take, 1 GiB if not said; None for any number.

        Raises:
            ValueError: it would take more.
        """
        self.ensure_unchanged()
        size = self.shape.numel() * self._answers.itemsize
        if budget is not None and size > budget:
            raise ValueError(
                f"the dense map of shape {tuple(self.shape)} takes {size:,} bytes, above the budget of {budget:,}: ask "
                f"for a part, such as m[0, 0, :64], for m.pooled(512, 512), or for m.dense(budget={size})"
            )
        return index_weights(self, ...)

    # Questions.

    @no_grad_no_autocast
    def entropy(self) -> Float[Tensor, "batch heads queries"]:
        """-sum of weight * log(weight) of each row, in nats: 0 looks at one key, log(n) evenly at n."""
        self.ensure_unchanged()
        if 0 in self.shape:
            return self._nothing(*self.shape[:3])
        prepared = prepare(self)
        entropies, lse = moments.entropy(prepared)
        self._know(prepared, lse)
        return entropies.to(self._answers)

    @no_grad_no_autocast
    def received(self, rows: Float[Tensor, "batch queries"] | None = None) -> Float[Tensor, "batch heads keys"]:
        """The sum of the weights on each key over all queries.

        Args:
            rows: 0 or more for each query: what its weights count in the sum; 1 each if not given.

        Raises:
            ValueError: rows of another shape, below 0 or not finite.
        """
        self.ensure_unchanged()
        if rows is not None:
            wanted = (self.shape[0], self.shape[2])
            if tuple(rows.shape) != wanted or not bool(((rows >= 0) & rows.isfinite()).all()):
                raise ValueError(f"rows must be {wanted} finite numbers (batch, queries), none below 0; got {rows!r}")
        if 0 in self.shape:
            return self._nothing(*self.shape[:2], self.shape[3])
        prepared = prepare(self)
        return received(prepared, self._norm(prepared), rows).to(self._answers)

    @no_grad_no_autocast
    def mass(
        self, groups: Sequence[int] | Sequence[Sequence[int]] | Tensor
    ) -> Float[Tensor, "batch heads queries groups"]:
        """The sum of each row's weights on each group of keys.

        Args:
            groups: the group of each key, from 0 on, as ``(keys,)`` or ``(batch, keys)``; or a bool tensor
                ``(groups, keys)``, in which groups may overlap.

        Raises:
            TypeError: something else.
            ValueError: groups that do not cover the keys.
        """
        self.ensure_unchanged()
        asked_for, count = parse_groups(groups, self.shape[0], self.shape[3])
        if 0 in self.shape:
            return self._nothing(*self.shape[:3], count)
        return moments.mass(prepare(self), asked_for.to(self.device), count).to(self._answers)

    @no_grad_no_autocast
    def distance(self) -> Distance:
        """How far each query looks: (mean, spread), each (batch, heads, queries).

        The mean of query position - key position under the row's weights, above 0 where it looks back, and the
        standard deviation of the key position. With fewer queries than keys the queries are the last positions. With
        sinks, the keys alone are counted. Both are 0 where there is nothing to attend to.
        """
        self.ensure_unchanged()
        if 0 in self.shape:
            return Distance(*(self._nothing(*self.shape[:3]) for _ in range(2)))
        return Distance(*(t.to(self._answers) for t in moments.distance(prepare(self))))

    @no_grad_no_autocast
    def top(self, k: int) -> TopWeights:
        """The k largest weights of each row and their keys, falling: (weights, keys), (batch, heads, queries, k).

        Where a query may attend to fewer keys, the rest has weight 0 and key -1.

        Raises:
            ValueError: k below 1, or above the number of keys.
        """
        self.ensure_unchanged()
        if not 1 <= k <= self.shape[3]:
            raise ValueError(f"top({k}): k is from 1 to the number of keys, {self.shape[3]}")
        if 0 in self.shape:
            return TopWeights(self._nothing(*self.shape[:3], k), self._nothing(*self.shape[:3], k).long())
        prepared = prepare(self)
        found = streaming.top(prepared, k, self._norm(prepared))
        return TopWeights(found.weights.to(self._answers), found.keys)

    @no_grad_no_autocast
    def pooled(self, rows: int, columns: int) -> Float[Tensor, "batch heads rows columns"]:
        """The map as a picture: cut into cells as even as they can be.

        Each cell is the sum of the weights in it, divided by the number of its queries: a row of the picture sums
        to what a query's weights sum to on average, 1 without sinks.

        Raises:
            ValueError: more rows than queries, or more columns than keys.
        """
        self.ensure_unchanged()
        for name, n, most in (("rows", rows, self.shape[2]), ("columns", columns, self.shape[3])):
            if not 1 <= n <= most:
                raise ValueError(f"pooled({rows}, {columns}): {name} are from 1 to {most}, for a map {self.shape[2:]}")
        if 0 in self.shape:
            return self._nothing(*self.shape[:2], rows, columns)
        prepared = prepare(self)
        return streaming.pooled(prepared, rows, columns, self._norm(prepared)).to(self._answers)

    # The proof.

    @property
    @no_grad_no_autocast
    def error(self) -> float:
        """The largest |weights @ v - the model's own output| over the sampled rows, by the largest |output|.

        Rows that may attend to nothing are left out. NaN if nothing can be compared: no sample, no v.
        """
        if self.sample is None or self.v is None or not len(self.sample.batch):
            return math.nan
        self.ensure_unchanged()
        if "error" not in self.answer_cache:
            self.answer_cache["error"] = max_error(self, self.sample, self.v)
        return float(self.answer_cache["error"])

    @property
    def verified(self) -> bool:
        """Whether the error is at most 1e-3, or 2e-2 for a model in half precision; not without a proof."""
        return self.error <= (2e-2 if self.dtype.itemsize == 2 else 1e-3)

    # To look at.

    def plot(self, *, batch: int = 0, head: int = 0, title: str | None = None) -> Figure:
        """The map of one head as a matplotlib figure for papers: ``m.plot(head=3).savefig("head.pdf")``.

        Queries from top to bottom, keys from left to right, with their tokens where these can be read; weights in per
        cent; grey where there is none at all. Beyond 512 tokens it shows `pooled` cells.

        Args:
            batch: which batch row.
            head: which head.
            title: what stands above; by default the head, and its entropy on average over the queries.

        Raises:
            ImportError: matplotlib is not installed.
            IndexError: no such batch row or head.
            ValueError: the map is empty; NaN or infinity in a map that is pooled.
        """
        from regard.views.figures.maps import plot_map

        return plot_map(self, batch=batch, head=head, title=title)

    # Names.

    def label(self, queries: Tokens, keys: Tokens | None = None) -> None:
        """Say what stands at the queries and the keys.

        Args:
            queries: one text per query; for more than one batch row, a list of such lists.
            keys: the same for the keys; the queries' by default.

        Raises:
            ValueError: lists of another length than the map.
        """
        keys = queries if keys is None else keys
        for name, tokens, size in (("queries", queries, self.shape[2]), ("keys", keys, self.shape[3])):
            nested = bool(tokens) and not isinstance(tokens[0], str)
            lists = tokens if nested else [tokens]
            if len(lists) != self.shape[0]:
                raise ValueError(
                    f"label({name}=) holds {len(lists)} lists of tokens; the map has {self.shape[0]} batch rows"
                )
            for row, one in enumerate(lists):
                if len(one) != size:
                    raise ValueError(f"label({name}=): {len(one)} tokens of batch row {row}; the map has {size} {name}")
        self.tokens = (queries, keys)

    def __repr__(self) -> str:
        batch, heads, queries, keys = self.shape
        says = [f"batch {batch}, {heads} heads, {queries:,} queries x {keys:,} keys"]
        says.append("everybody attends to everything" if self.mask is None else repr(self.mask))
        if self.kernel:
            says.append(f"kernel {self.kernel}")
        error = self.error
        if math.isnan(error):
            says.append("unverified: nothing to compare it with")
        else:
            says.append(
                f"error {error:.1e}{'' if self.verified else ', unverified: it is not what the model computed'}"
            )
        return f"AttentionMap({'; '.join(says)})"

    # Inside.

    @property
    def _answers(self) -> torch.dtype:
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def ensure_unchanged(self) -> None:
        """Raise if the tensors are not what they were when the model ran."""
        if self._ensure_unchanged is not None:
            self._ensure_unchanged()

    def _nothing(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self._answers, device=self.device)

    def _norm(self, prepared: PreparedAttention) -> Tensor:
        return prepared.norm(self._own_lse(prepared))

    def _own_lse(self, prepared: PreparedAttention) -> Tensor:
        """The lse of what a question computes with, where a row may have a number taken off each of its scores."""
        if "lse" not in self.answer_cache:
            given, bias_dominates = self.kernel_lse, prepared.bias_dominates
            usable = given is not None and given.dtype == prepared.call.q.dtype and not bias_dominates
            if usable and given is not None and lse_matches(self, given, prepared.empty):
                self._know(prepared, given if prepared.shift is None else given - prepared.shift)
            else:
                self._know(prepared, moments.log_sum_exp(prepared))
        return self.answer_cache["lse"].to(prepared.call.q.dtype)  # type: ignore[no-any-return]

    def _know(self, prepared: PreparedAttention, lse: Tensor) -> None:
        self.answer_cache["lse"] = prepared.without_empty(lse, -torch.inf)
