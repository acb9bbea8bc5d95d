"""The exact attention of one layer, computed on demand.

A map keeps queries, keys and what changes their scores. A weight is exp(score - lse of its row), and most statistics
of all weights are attention with other values (`regard.lens.maps`), so that no queries x keys matrix is made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from regard._shapes import Float
from regard.lens import display
from regard.lens.maps import attribution, moments, several, streaming
from regard.lens.maps.indexing import index_weights
from regard.lens.maps.lse import cache_lse, log_denominator, prepared_lse
from regard.lens.maps.moments import Distance, parse_groups
from regard.lens.maps.output_statistics import OutputStatistics
from regard.lens.maps.prepared import no_grad_no_autocast, prepare
from regard.lens.maps.received import received
from regard.lens.maps.select import select, without_padding
from regard.lens.maps.streaming import TopWeights
from regard.lens.maps.tokens import Tokens, check_tokens, is_single_text, text_tokens
from regard.lens.maps.verify import MAX_ERROR, MAX_HALF_ERROR, max_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class AttentionMap(OutputStatistics):
    """Attention weights (batch, heads, queries, keys) that are computed on demand.

    ``m[b, h, i]`` and any other index answer as the dense tensor would, by the definition in float64. The statistics
    are exact too, and their memory grows with the tokens, not with their square. They include scale, bias, soft-cap,
    mask, grouped heads and sinks. Dropout comes after the weights, so the weights are those before dropout.

    A query with nothing to attend to has zero weights. With sinks a row sums to less than 1. NaN and infinity in q or
    k appear in the rows that are indexed, as in `regard.steps`; statistics of the whole map refuse them.

    The arguments are those of `regard.lens.maps.inputs.AttentionInputs`: q, k, v, mask, and by keyword scale, bias,
    softcap, sinks, dropout, lse, sample, kernel, ensure_unchanged.
    """

    tokens: tuple[Tokens, Tokens] | None = None
    """The tokens at the queries and at the keys, after `label`."""

    @property
    @no_grad_no_autocast
    def lse(self) -> Float[Tensor, "batch heads queries"]:
        """The logarithm of each row's sum of exponentials, without sinks; -inf where there is nothing to attend to."""
        self.ensure_unchanged()
        prepared = prepare(self)
        lse = prepared_lse(self, prepared)
        return (lse if prepared.score_shift is None else lse + prepared.score_shift).to(self.answer_dtype)

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
            budget: the largest size in bytes, 1 GiB by default; None for any size.

        Raises:
            ValueError: the map is larger.
        """
        self.ensure_unchanged()
        size = self.shape.numel() * self.answer_dtype.itemsize
        if budget is not None and size > budget:
            raise ValueError(
                f"the dense map of shape {tuple(self.shape)} takes {size:,} bytes, above the budget of {budget:,}: ask "
                f"for a part, such as m[0, 0, :64], for m.pooled(512, 512), or for m.dense(budget={size})"
            )
        return index_weights(self, ...)

    def select(self, batch: int | None = None, heads: Sequence[int] | None = None) -> AttentionMap:
        """The map of one text of the batch, of some heads, or of both; it has four axes, as this one.

        It shares tensors with this map. With a batch row, these are checked for changes now, and not later.

        Args:
            batch: the batch row; all by default.
            heads: the heads, in the order that they have in the new map; all by default.

        Raises:
            IndexError: no such batch row or head.
            RuntimeError: the tensors were changed since the model ran.
        """
        part = select(self, batch, heads)
        if batch is not None and self.tokens is not None:
            part.label(*(t if is_single_text(t) else [text_tokens(t, batch)] for t in self.tokens))
        return part

    def without_padding(self, valid: Tensor) -> AttentionMap:
        """The map in which queries that are padding attend to nothing, so that they count in no statistic.

        A batch of texts of several lengths is filled up with padding. The model's mask hides it as keys; as queries it
        still has rows, which `received`, `pooled` and the types of the heads would count.

        Args:
            valid: ``(batch, queries)``, True or 1 for tokens, as the ``attention_mask`` of tokenizers.

        Raises:
            TypeError: not boolean, and not 0 and 1.
            ValueError: another shape.

        Example:
            >>> m = AttentionMap(torch.randn(2, 1, 3, 4), torch.randn(2, 1, 3, 4))
            >>> m.without_padding(torch.tensor([[1, 1, 1], [1, 1, 0]])).received()[1].sum()
            tensor(2.)
        """
        return without_padding(self, valid)

    # Statistics.

    @no_grad_no_autocast
    def entropy(self) -> Float[Tensor, "batch heads queries"]:
        """-sum of weight * log(weight) of each row, in nats: 0 for one key, log(n) for equal weights on n keys."""
        self.ensure_unchanged()
        if 0 in self.shape:
            return self.zeros(*self.shape[:3])
        if "entropy" not in self.answer_cache:
            prepared = prepare(self)
            entropies, lse = moments.entropy(prepared)
            cache_lse(self, prepared, lse)
            self.answer_cache["entropy"] = entropies.to(self.answer_dtype)
        return self.answer_cache["entropy"].clone()  # type: ignore[no-any-return]

    @no_grad_no_autocast
    def received(self, rows: Float[Tensor, "batch queries"] | None = None) -> Float[Tensor, "batch heads keys"]:
        """The sum of the weights on each key over all queries.

        Args:
            rows: a factor of 0 or more for the weights of each query; 1 by default.

        Raises:
            ValueError: rows of another shape, below 0 or not finite.
        """
        self.ensure_unchanged()
        if rows is not None:
            shape = (self.shape[0], self.shape[2])
            if tuple(rows.shape) != shape or not bool(((rows >= 0) & rows.isfinite()).all()):
                raise ValueError(f"rows must be {shape} finite numbers (batch, queries), none below 0; got {rows!r}")
        if 0 in self.shape:
            return self.zeros(*self.shape[:2], self.shape[3])
        if rows is None and "received" in self.answer_cache:
            return self.answer_cache["received"].clone()  # type: ignore[no-any-return]
        prepared = prepare(self)
        sums = received(prepared, log_denominator(self, prepared), rows).to(self.answer_dtype)
        if rows is None:
            self.answer_cache["received"] = sums.clone()
        return sums

    @no_grad_no_autocast
    def mass(
        self, groups: Sequence[int] | Sequence[Sequence[int]] | Tensor
    ) -> Float[Tensor, "batch heads queries groups"]:
        """The sum of each row's weights on each group of keys.

        Args:
            groups: the group of each key, from 0 on, as ``(keys,)`` or ``(batch, keys)``; or a bool tensor
                ``(groups, keys)``, in which groups may overlap and leave keys out.

        Raises:
            TypeError: something else.
            ValueError: groups of another shape than the keys.
        """
        self.ensure_unchanged()
        key_groups, count = parse_groups(groups, self.shape[0], self.shape[3])
        if 0 in self.shape:
            return self.zeros(*self.shape[:3], count)
        return moments.mass(prepare(self), key_groups.to(self.device), count).to(self.answer_dtype)

    @no_grad_no_autocast
    def distance(self) -> Distance:
        """The distance from each query to its keys: (mean, spread), each (batch, heads, queries).

        The mean of query position - key position under the row's weights, above 0 for keys before the query, and the
        standard deviation of the key position. With fewer queries than keys the queries are the last positions. With
        sinks, only the keys count. Both are 0 where there is nothing to attend to.
        """
        self.ensure_unchanged()
        if 0 in self.shape:
            return Distance(*(self.zeros(*self.shape[:3]) for _ in range(2)))
        return Distance(*(t.to(self.answer_dtype) for t in moments.distance(prepare(self))))

    @no_grad_no_autocast
    def top(self, k: int) -> TopWeights:
        """The k largest weights of each row and their keys, falling: (weights, keys), (batch, heads, queries, k).

        Where a query may attend to fewer keys, the rest has weight 0 and key -1.

        Raises:
            ValueError: k below 1, or above the number of keys.
        """
        self.ensure_unchanged()
        streaming.check_k(self.shape, k)
        if 0 in self.shape:
            return TopWeights(self.zeros(*self.shape[:3], k), self.zeros(*self.shape[:3], k).long())
        prepared = prepare(self)
        top = streaming.top(prepared, k, log_denominator(self, prepared))
        return TopWeights(top.weights.to(self.answer_dtype), top.keys)

    @no_grad_no_autocast
    def pooled(self, rows: int, columns: int) -> Float[Tensor, "batch heads rows columns"]:
        """The map as a small picture, whose cells are as even as possible.

        Each cell is the sum of its weights, divided by the number of its queries. So a row of the picture sums to the
        mean sum of a query's weights: 1 without sinks.

        Raises:
            ValueError: more rows than queries, or more columns than keys.
        """
        self.ensure_unchanged()
        streaming.check_cells(self.shape, rows, columns)
        if 0 in self.shape:
            return self.zeros(*self.shape[:2], rows, columns)
        prepared = prepare(self)
        return streaming.pooled(prepared, rows, columns, log_denominator(self, prepared)).to(self.answer_dtype)

    @no_grad_no_autocast
    def value_weighted(
        self,
        projection: Float[Tensor, "d_model heads_x_d_value"] | None = None,
        rows: Float[Tensor, "batch queries"] | None = None,
    ) -> Float[Tensor, "batch heads keys"]:
        """The sum over all queries of |w_ij v_j W_O^h|, the norm of what key j adds to the output of query i by head h.

        Kobayashi et al. 2020, "Attention is Not Only a Weight" (arXiv:2004.10102): |alpha f(x)| with
        f(x) = (x W^V + b^V) W^O. v holds b^V; the bias of the output projection belongs to no key. As no weight is
        below 0, this is `received` times |f(x)|. The norm of the sum over all heads is another number.

        Args:
            projection: W_O, as the weight of nn.Linear: its columns are the heads side by side. Without it |w_ij v_j|.
            rows: as in `received`.

        Raises:
            TypeError: projection is not a floating-point tensor.
            ValueError: projection of another shape; as `received` does; the map has no v, or it holds NaN or infinity.
        """
        self.ensure_unchanged()
        return attribution.value_norms(self, projection) * self.received(rows)

    @no_grad_no_autocast
    def ask(
        self,
        *questions: str,
        mass: Sequence[int] | Sequence[Sequence[int]] | Tensor | None = None,
        top: int | None = None,
        pooled: tuple[int, int] | None = None,
    ) -> dict[str, Any]:
        """Several statistics in one pass over the weights, by name: about twice as fast as one after the other.

        ``m.ask("entropy", "received", "distance", mass=groups, top=8, pooled=(64, 64))``

        Args:
            questions: "entropy", "received" and "distance", which need no argument.
            mass: the groups of `mass`.
            top: the k of `top`.
            pooled: the rows and columns of `pooled`.

        Returns:
            The answers that the methods of these names give, but for rounding.

        Raises:
            TypeError: as the methods do.
            ValueError: an unknown question, or none; as the methods do.

        Example:
            >>> answers = AttentionMap(*torch.randn(2, 1, 2, 6, 8)).ask("entropy", top=2)
            >>> answers["entropy"].shape, answers["top"].keys.shape
            (torch.Size([1, 2, 6]), torch.Size([1, 2, 6, 2]))
        """
        self.ensure_unchanged()
        asked = several.parse_questions(self, questions, mass, top, pooled)
        if 0 in self.shape:
            return {name: getattr(self, name)(*arguments) for name, arguments in asked.arguments.items()}
        return several.ask(self, asked)

    # The check against the model.

    @property
    @no_grad_no_autocast
    def error(self) -> float:
        """How far weights @ v is from the model's own output in the sampled rows, relative to the largest output.

        Rows that may attend to nothing do not count, nor those that a bias such as -1e9 hides from every key. NaN if
        nothing can be compared: no sample, no v.
        """
        if self.sample is None or self.v is None or not len(self.sample.batch):
            return math.nan
        self.ensure_unchanged()
        if "error" not in self.answer_cache:
            self.answer_cache["error"] = max_error(self, self.sample, self.v)
        return float(self.answer_cache["error"])

    @property
    def verified(self) -> bool:
        """Whether the error is at most 1e-3, or 2e-2 for a model in half precision; False if it is unknown."""
        dtypes = [self.dtype] if self.sample is None else [self.dtype, self.sample.output.dtype]
        return self.error <= (MAX_HALF_ERROR if min(dtype.itemsize for dtype in dtypes) == 2 else MAX_ERROR)

    # Display.

    def plot(self, *, batch: int = 0, head: int = 0, title: str | None = None) -> Figure:
        """The map of one head as a matplotlib figure for papers: ``m.plot(head=3).savefig("head.pdf")``.

        Queries from top to bottom, keys from left to right, with their tokens where these can be read; weights in per
        cent; grey where nobody may attend. Beyond 512 tokens it shows `pooled` cells. `regard.lens.display` draws it.

        Args:
            batch: the batch row.
            head: the head.
            title: the title; by default the head and the mean entropy of its queries.

        Raises:
            ImportError: matplotlib is not installed.
            IndexError: no such batch row or head.
            ValueError: the map is empty; NaN or infinity in a map that is pooled.
        """
        return display.plot_map(self, batch=batch, head=head, title=title)

    def label(self, queries: Tokens, keys: Tokens | None = None) -> None:
        """Set the tokens of the queries and the keys.

        Args:
            queries: one text per query; for more than one batch row, a list of such lists.
            keys: the same for the keys; the queries' by default.

        Raises:
            ValueError: lists of another length than the map.
        """
        self.tokens = check_tokens(self.shape, queries, keys)

    def _repr_html_(self) -> str | None:
        """One head as a picture, for notebooks; None if there is nothing to show."""
        return display.map_html(self)

    def __repr__(self) -> str:
        batch, heads, queries, keys = self.shape
        facts = [f"batch {batch}, {heads} heads, {queries:,} queries x {keys:,} keys"]
        facts.append("no mask" if self.mask is None else repr(self.mask))
        if self.kernel:
            facts.append(f"kernel {self.kernel}")
        error = self.error
        if math.isnan(error):
            facts.append("unverified: nothing to compare it with")
        else:
            doubt = "" if self.verified else ", unverified: it is not what the model computed"
            facts.append(f"error {error:.1e}{doubt}")
        return f"AttentionMap({'; '.join(facts)})"
