"""A map in the form that questions are computed in: the dtype that is precise enough, and what is known of its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch
from torch import Tensor

from regard.attention.kernels import chunked, flash
from regard.attention.kernels.block import ScoreBlock
from regard.attention.kernels.call import AttentionCall
from regard.attention.kernels.schedule import Schedule
from regard.attention.mask import allowed
from regard.attention.plan import MIN_SCALE, choose

if TYPE_CHECKING:
    from regard.lens.maps.map import AttentionMap

__all__ = [
    "FLOAT64_MAX_WEIGHTS",
    "FLOAT64_SCORE_BOUND",
    "PreparedAttention",
    "attended_rows",
    "fused",
    "no_grad_no_autocast",
    "prepare",
    "to_call",
]

P = ParamSpec("P")
R = TypeVar("R")

FLOAT64_MAX_WEIGHTS = 2**22
"""Up to so many weights, everything is computed in float64: it takes no time that anybody notices."""

FLOAT64_SCORE_BOUND = 1000.0
"""Scores that may be as large as this are computed in float64: float32 rounds them by 1e-5 and more."""


PADDING_BIAS = -1e12
"""A row whose bias is below that for every key is a padded one, of a model that adds the lowest number there is."""


def no_grad_no_autocast(method: Callable[P, R]) -> Callable[P, R]:
    """Without gradients, and in the dtypes that are written here whatever autocast wants."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return method(*args, **kwargs)

    return call


@dataclass(frozen=True)
class PreparedAttention:
    """The attention that a question is about, without sinks and dropout, and beside it what they change.

    A number that is the same for every key of a row changes no weight. So the mean key is taken off every key, where
    no soft-cap stands in the way: keys of real models share a large part, which would cost digits.
    """

    call: AttentionCall
    """q and k, in the dtype to compute in. The values are up to the question; k stands in their place."""
    schedule: Schedule
    sinks: Tensor | None
    shift: Tensor | None
    """(batch, heads, queries): what was taken off the scores of each row."""
    empty: Tensor | None
    """(batch, heads, queries): rows that may attend to nothing; None if there is none."""
    bias_dominates: bool = False
    """Whether the scores of some rows are lost beside their bias."""

    @property
    def fused(self) -> bool:
        """Whether the fused kernel can make these scores."""
        return fused(self.call)

    def attend(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Weights @ v and the lse of every row, as if there were no sinks; v is (batch, kv_heads, keys, width)."""
        output, lse = flash.run(replace(self.call, v=v), self.schedule)
        return output, self.without_empty(lse, -torch.inf)

    def output(self, v: Tensor) -> Tensor:
        """Weights @ v, by the engine that can; as if there were no sinks."""
        return self.attend(v)[0] if self.fused else chunked.run(replace(self.call, v=v), self.schedule)

    def without_empty(self, t: Tensor, fill: float) -> Tensor:
        """A number for the rows that may attend to nothing."""
        return t if self.empty is None else t.masked_fill(self.empty, fill)

    def norm(self, lse: Tensor) -> Tensor:
        """What exp(score - norm) needs to be a weight, from the lse of the call's own scores; inf in empty rows."""
        if self.sinks is None:
            return self.without_empty(lse, torch.inf)
        return self.without_empty(torch.logaddexp(lse, self._sinks(lse)), torch.inf)

    def share(self, lse: Tensor) -> Tensor | None:
        """The sum of each row's weights, from the lse of the call's own scores; None where that is 1."""
        if self.sinks is None and self.empty is None:
            return None
        one = torch.ones_like(lse) if self.sinks is None else torch.sigmoid(lse - self._sinks(lse))
        return self.without_empty(one, 0.0)

    def _sinks(self, lse: Tensor) -> Tensor:
        assert self.sinks is not None
        sinks = self.sinks.to(lse.dtype)[:, None]
        return sinks if self.shift is None else sinks - self.shift.to(lse.dtype)


def fused(call: AttentionCall) -> bool:
    """Whether the fused kernel can make the scores of a call."""
    return call.q.device.type == "cpu" and call.softcap is None and call.scale >= MIN_SCALE


def to_call(m: AttentionMap, dtype: torch.dtype) -> tuple[AttentionCall, Tensor | None]:
    """The map's attention in a dtype, without sinks and dropout; the sinks.

    -inf in a bias blocks, so it becomes part of the mask; a bias of which nothing is left is none.
    """
    q, k = m.q.to(dtype), m.k.to(dtype)
    bias, mask = m.bias, m.mask
    if isinstance(bias, Tensor):
        bias = bias.to(dtype)
        lowest, highest = (float(end) for end in bias.aminmax()) if bias.numel() else (0.0, 0.0)
        if highest == torch.inf or lowest != lowest:
            raise ValueError(f"the bias of shape {tuple(bias.shape)} holds NaN or inf: nobody can say its weights")
        if lowest == -torch.inf:
            open_ = bias != -torch.inf
            at_least_two = open_[(None,) * max(0, 2 - open_.ndim)]
            mask = allowed(at_least_two) if mask is None else mask & allowed(at_least_two)
            bias = bias.masked_fill(~open_, 0.0)
            lowest, highest = (float(end) for end in bias.aminmax())
        if lowest == highest == 0.0:
            bias = None
    sinks = None if m.sinks is None else m.sinks.to(dtype)
    return AttentionCall.from_inputs(q, k, k, mask, scale=m.scale, bias=bias, softcap=m.softcap), sinks


def prepare(m: AttentionMap) -> PreparedAttention:
    """Get a map ready for a question.

    Raises:
        ValueError: NaN or infinity in q, k or the bias.
    """
    mean = _mean(m.k) if m.softcap is None else None
    # Norms are what bounds a score, and NaN and infinity show in them.
    sized = torch.promote_types(m.dtype, torch.float32)
    keys = m.k if mean is None else m.k - mean.to(m.dtype)
    largest = [float(torch.linalg.vector_norm(t, dim=-1, dtype=sized).amax()) for t in (m.q, keys)]
    del keys
    for name, t, size in zip("qk", (m.q, m.k), largest, strict=True):
        if not size < torch.inf and not bool(t.isfinite().all()):
            raise ValueError(f"{name} holds NaN or infinity: nobody can say its weights. m[b, h, i] shows single rows")
    steep = not largest[0] * largest[1] * abs(m.scale) < FLOAT64_SCORE_BOUND
    rounds = torch.get_float32_matmul_precision() != "highest"
    wide = m.q.dtype == torch.float64 or steep or rounds or m.shape.numel() <= FLOAT64_MAX_WEIGHTS
    call, sinks = to_call(m, torch.float64 if wide else torch.float32)
    shift = None
    if mean is not None:
        mean = mean.to(call.k.dtype)
        shift = _by_group(call.q, mean)[..., 0] * call.scale
        k = call.k - mean
        call = replace(call, k=k, v=k)
    bias_dominates = False
    if isinstance(call.bias, Tensor) and call.bias.numel():
        highest = call.bias.amax(-1)
        rows_of_it = highest < PADDING_BIAS
        bias_dominates = bool(rows_of_it.any())
        if bias_dominates:
            # In sums with such numbers nothing is left of q . k, nor of the logarithm of how many keys there are.
            off = highest.where(rows_of_it, 0.0)
            q = call.q.masked_fill(rows_of_it.expand(call.q.shape[:-1])[..., None], 0.0)
            call = replace(call, q=q, bias=call.bias - off[..., None])
            shift = off.expand(q.shape[:-1]) if shift is None else shift.masked_fill(rows_of_it, 0.0) + off
    schedule = choose(call).schedule
    if "empty" not in m.answer_cache:
        m.answer_cache["empty"] = _empty(call, schedule)
    return PreparedAttention(call, schedule, sinks, shift, m.answer_cache["empty"], bias_dominates)


def _mean(k: Tensor) -> Tensor:
    wide = torch.promote_types(k.dtype, torch.float32)
    return k.mean(-2, keepdim=True, dtype=wide)


def _by_group(q: Tensor, k: Tensor) -> Tensor:
    """Q kT, (batch, heads, queries, keys), where each head of k serves several of q that stand side by side."""
    batch, heads, queries, width = q.shape
    together = q.reshape(batch, k.shape[1], -1, width) @ k.transpose(-1, -2)
    return together.reshape(batch, heads, queries, k.shape[2])


def _empty(call: AttentionCall, schedule: Schedule) -> Tensor | None:
    """The rows that may attend to nothing."""
    if call.mask is None:
        return None
    seen = torch.zeros(call.q.shape[:-1], dtype=torch.bool, device=call.q.device)
    for block in schedule(call):
        block.take_queries(seen).copy_(attended_rows(block))
    return None if bool(seen.all()) else ~seen


def attended_rows(block: ScoreBlock) -> Tensor:
    """Whether there is a key in the block that a row of it may attend to; broadcasts to (batch, heads, rows)."""
    if block.allowed is None:
        return torch.ones(1, 1, 1, dtype=torch.bool)
    if not block.causal:
        return block.allowed.any(-1)
    # A schedule sets the kernel's flag beside masks of single keys only: row n needs one among the first n + 1.
    upto = block.allowed[..., 0, :].cumsum(-1) > 0
    last = torch.arange(block.height, device=upto.device).clamp(max=block.columns - 1)
    return upto[..., last]
