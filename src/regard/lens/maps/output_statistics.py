"""The statistics of a map that need its values: the output, and what it owes to each key."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard._shapes import Float
from regard.lens.maps import attribution, edges
from regard.lens.maps.attribution import Attribution
from regard.lens.maps.groups import GroupOutputs, group_outputs
from regard.lens.maps.inputs import AttentionInputs
from regard.lens.maps.moments import parse_groups
from regard.lens.maps.prepared import no_grad_no_autocast, prepare


class OutputStatistics(AttentionInputs):
    """An attention call that answers questions about weights @ v; `AttentionMap` adds those about the weights."""

    @no_grad_no_autocast
    def output(self) -> Float[Tensor, "batch heads queries d_value"]:
        """Weights @ v of every head, with the sinks' share and without dropout; 0 where there is nothing to attend to.

        Raises:
            ValueError: the map has no v, or it holds NaN or infinity.
        """
        self.ensure_unchanged()
        v = self.finite_v("output")
        if 0 in self.shape:
            return self.zeros(*self.shape[:3], v.shape[-1])
        prepared = prepare(self)
        return attribution.output(self, prepared, v.to(prepared.call.q.dtype)).to(self.answer_dtype)

    @no_grad_no_autocast
    def attribution(self, grad: Float[Tensor, "batch heads queries d_value"]) -> Attribution:
        """What a metric owes to each query and each key, to first order: (output, values, scores).

        Exact sums over all pairs of a query and a key, by two calls of the fused kernel: `regard.lens.maps.attribution`
        has the identities. Heads that share keys and values have their own numbers.

        Args:
            grad: d metric / d output of this attention, before the heads are joined and projected.

        Raises:
            TypeError: grad is not a floating-point tensor.
            ValueError: grad of another shape; the map has no v; NaN or infinity.

        Example:
            >>> q, k, v, grad = torch.randn(4, 1, 2, 6, 8)
            >>> a = AttentionMap(q, k, v).attribution(grad)
            >>> torch.allclose(a.output.sum(-1), a.values.sum(-1), atol=1e-5)
            True
        """
        self.ensure_unchanged()
        return attribution.attribution(self, grad)

    @no_grad_no_autocast
    def edge_attribution(
        self, grad: Float[Tensor, "batch heads queries d_value"], queries: Sequence[int] | Tensor
    ) -> Float[Tensor, "batch heads rows keys"]:
        """The first-order change of a metric if one key is blocked for one query, for every key of some queries.

        w / (1 - w) * (dO_i . O_i - dO_i . v_j) = dO_i . (O'_i - O_i): the change of the output is exact, and only the
        metric is linear. Below 0: the edge helps the metric. Where w is near 1, O'_i is that of `without_key`, a large
        change, for which a first order is a rough guess; where no key is left, O'_i is 0.

        Args:
            grad: as in `attribution`, for all queries.
            queries: the queries; -1 is the last one.

        Raises:
            TypeError: queries that are no whole numbers; grad is not a floating-point tensor.
            IndexError: no such query.
            ValueError: as `attribution` does.
        """
        self.ensure_unchanged()
        return edges.edge_attribution(self, grad, queries)

    @no_grad_no_autocast
    def without_key(
        self, queries: Sequence[int] | Tensor, keys: Sequence[int] | Tensor
    ) -> Float[Tensor, "batch heads rows d_value"]:
        """The output of some queries, each without one key, exact: as if the key were blocked for this query.

        (O - w v) / (1 - w), or the sum over the other keys, where w is the largest weight of its row. Sinks have their
        share still; 0 where no key is left.

        Args:
            queries: the queries; -1 is the last one, and a query may occur several times.
            keys: for each of these queries the key that is blocked.

        Raises:
            TypeError: queries or keys that are no whole numbers.
            IndexError: no such query or key.
            ValueError: not as many keys as queries; the map has no v, or it holds NaN or infinity.

        Example:
            >>> m = AttentionMap(*torch.randn(3, 1, 2, 6, 8))
            >>> m.without_key([5] * 6, range(6)).shape  # the last query, without each key in turn
            torch.Size([1, 2, 6, 8])
        """
        self.ensure_unchanged()
        return edges.without_key(self, queries, keys)

    @no_grad_no_autocast
    def group_outputs(self, groups: Sequence[int] | Sequence[Sequence[int]] | Tensor) -> GroupOutputs:
        """The attention to each group of keys alone: (output, lse), with the log-sum-exp by which they merge exactly.

        ``m.group_outputs(groups).merge(m.sinks)`` is `output` if each key is in one group; ``.contributions(m.sinks)``
        has the part of each group in it. It takes as long as one `output` for each group.

        Args:
            groups: as in `mass`.

        Raises:
            TypeError: as `mass` does.
            ValueError: as `mass` does; the map has no v, or it holds NaN or infinity.
        """
        self.ensure_unchanged()
        v = self.finite_v("group_outputs")
        key_groups, count = parse_groups(groups, self.shape[0], self.shape[3])
        if 0 in self.shape:
            lse = self.zeros(*self.shape[:3], count) - torch.inf
            return GroupOutputs(self.zeros(*lse.shape, v.shape[-1]), lse)
        prepared = prepare(self)
        parts = group_outputs(prepared, v.to(prepared.call.q.dtype), key_groups.to(self.device), count)
        return GroupOutputs(*(t.to(self.answer_dtype) for t in parts))
