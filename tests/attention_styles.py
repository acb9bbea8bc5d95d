"""Ways to write attention, and the table that `regard check` makes of a call."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.check.roles.influence import influence_of, record_invocation
from regard.check.roles.instances import AttentionInstance, attentions_of, tagged_run
from regard.check.roles.table import AttentionTable, table_of
from regard.check.target import Invocation, Stream

__all__ = ["STYLES", "Style", "attentions", "heads_call", "tables", "tokens_call"]


@dataclass(frozen=True)
class Style:
    """A way to write attention of queries, keys, values and who may attend (queries, keys)."""

    attend: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    tokens_axis: int
    """2 for (batch, heads, tokens, width), 1 for (batch, tokens, heads, width)."""

    def call(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Invocation:
        """A call of it.

        Args:
            q: (batch, heads, tokens, width); so are k and v.
            k: see q.
            v: see q.
            allowed: (queries, keys), built into what is called.
        """
        given = [each if self.tokens_axis == 2 else each.transpose(1, 2).contiguous() for each in (q, k, v)]
        return heads_call(lambda q, k, v: self.attend(q, k, v, allowed), *given, tokens_axis=self.tokens_axis)


def heads_call(function: Any, q: Tensor, k: Tensor, v: Tensor, *, tokens_axis: int = 2) -> Invocation:
    """A call of a function of queries, keys and values with heads."""
    streams = [Stream(name, name, 0, (tokens_axis,), 3 - tokens_axis) for name in "qkv"]
    return Invocation(function, {"q": q, "k": k, "v": v}, ["q", "k", "v"], streams)


def tokens_call(function: Any, x: Tensor, **others: Any) -> Invocation:
    """A call of a function or module of x, (batch, tokens, width), and what else it takes."""
    return Invocation(function, {"x": x, **others}, ["x"], [Stream("x", "x", 0, (1,))])


def attentions(invocation: Invocation) -> list[AttentionInstance]:
    """The attentions that are found in a call."""
    base = record_invocation(invocation, lines=True)
    assert not base.error, base.error
    samples = influence_of(invocation, base, keep=lambda source: source.kind == "sample")
    return attentions_of(tagged_run(samples, [each.argument for each in invocation.streams]))


def tables(invocation: Invocation) -> list[AttentionTable]:
    """The table of each attention that is found in a call."""
    found = attentions(invocation)
    frozen = {each.operation.index: each.output.data for instance in found for each in instance.sums}
    if not found:
        return []
    influence = influence_of(invocation, found[0].run.trace, frozen=frozen)
    return [table_of(each, influence, [stream.argument for stream in invocation.streams]) for each in found]


def shared(heads: int, tensor: Tensor, axis: int = 1) -> Tensor:
    """Keys or values, each head as often as query heads share it."""
    return tensor.repeat_interleave(heads // tensor.shape[axis], dim=axis)


def with_matmul(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    scores = q @ shared(q.shape[1], k).transpose(-2, -1) / math.sqrt(q.shape[-1])
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ shared(q.shape[1], v)


def with_einsum(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    k, v = shared(q.shape[2], k, 2), shared(q.shape[2], v, 2)
    scores = torch.einsum("bihd,bjhd->hbij", q, k) * q.shape[-1] ** -0.5
    weights = torch.where(allowed, scores, -torch.inf).softmax(-1)
    return torch.einsum("hbij,bjhd->bihd", weights, v)


def with_groups(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    groups = q.unflatten(1, (k.shape[1], -1))
    scores = torch.einsum("bghid,bgjd->bghij", groups, k) / q.shape[-1] ** 0.5
    weights = F.softmax(scores + torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf), dim=-1)
    return (weights @ v[:, :, None]).flatten(1, 2)


def with_baddbmm(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    heads = q.shape[1]
    flat = [each.flatten(0, 1) for each in (q, shared(heads, k), shared(heads, v))]
    half = torch.zeros(len(flat[0]), *allowed.shape).masked_fill(~allowed, -torch.inf)
    scores = torch.baddbmm(half, flat[0], flat[1].mT, beta=2.0, alpha=q.shape[-1] ** -0.5)
    return torch.bmm(scores.softmax(2), flat[2]).unflatten(0, (-1, heads))


def with_mul_and_sum(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    k, v = shared(q.shape[1], k), shared(q.shape[1], v)
    scores = (q[:, :, :, None] * k[:, :, None]).sum(-1).div(math.sqrt(k.shape[-1]))
    scores[..., ~allowed] = -torch.inf
    return (torch.softmax(scores, 3)[..., None] * v[:, :, None]).sum(dim=3)


def with_loops(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    group = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            scores = q[b, h].mm(k[b, h // group].t()) / math.sqrt(q.shape[-1])
            scores.masked_fill_(~allowed, -torch.inf)
            out[b, h] = scores.softmax(dim=1).mm(v[b, h // group])
    return out


def with_rows(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    k, v = shared(q.shape[2], k, 2), shared(q.shape[2], v, 2)
    rows = []
    for i in range(q.shape[1]):
        scores = (k.transpose(1, 2) @ q[:, i, :, :, None])[..., 0] / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(~allowed[i], -torch.inf).softmax(-1)
        rows.append((weights[:, :, None] @ v.transpose(1, 2))[:, :, 0])
    return torch.stack(rows, dim=1)


def with_keys_first(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    scores = shared(q.shape[1], k) @ q.mT / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(~allowed.T, -torch.inf).softmax(-2)
    return (shared(q.shape[1], v).mT @ weights).mT


def with_exponentials(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    scores = torch.einsum("bhid,bhjd->bijh", q, shared(q.shape[1], k)) / math.sqrt(q.shape[-1])
    weights = torch.exp(scores - scores.amax(2, keepdim=True)) * allowed[:, :, None]
    weights = weights / weights.sum(2, keepdim=True)
    return torch.einsum("bijh,bhjd->bhid", weights, shared(q.shape[1], v))


def with_kernel(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, enable_gqa=True)


STYLES = {
    each.attend.__name__: each
    for each in (
        Style(with_matmul, 2),
        Style(with_einsum, 1),
        Style(with_groups, 2),
        Style(with_baddbmm, 2),
        Style(with_mul_and_sum, 2),
        Style(with_loops, 2),
        Style(with_rows, 1),
        Style(with_keys_first, 2),
        Style(with_exponentials, 2),
        Style(with_kernel, 2),
    )
}
