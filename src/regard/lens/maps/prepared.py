"""A map's inputs in the form that statistics compute with: in a dtype that is precise enough, with the empty rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from regard.attention.kernels import chunked, flash
from regard.attention.kernels.call import AttentionCall
from regard.attention.kernels.schedule import Schedule
from regard.attention.kernels.score_block import ScoreBlock
from regard.attention.mask import allowed
from regard.attention.plan import MIN_SCALE, choose
from regard.attention.steps import grouped_matmul
from regard.lens.maps.inputs import AttentionInputs

P = ParamSpec("P")
R = TypeVar("R")

FLOAT64_SCORE_BOUND = 1000.0
"""If scores may reach this bound, they are computed in float64: float32 rounds them by 1e-5 and more."""

PADDING_BIAS = -1e12
"""A row whose bias is below this for every key is padding, of a model that adds the lowest number of its dtype."""

CANCELLATION_SCORE_BOUND = 1e9
"""If scores may reach this bound, an entropy as the difference of two sums of scores has lost its digits in float64."""


def no_grad_no_autocast(method: Callable[P, R]) -> Callable[P, R]:
    """Run without gradients and without autocast, so that the dtypes written in the method are used."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return method(*args, **kwargs)

    return call


@dataclass(frozen=True)
class PreparedAttention:
    """An attention call without sinks and dropout, and separately the sinks and the empty rows.

    A number that is the same for every key of a row changes no weight. So the mean key is subtracted from every key,
    unless there is a soft-cap: keys of real models share a large part, which would cost digits.
    """

    call: AttentionCall
    """q and k in the dtype to compute in. Each statistic sets its own values; until then they are k."""
    schedule: Schedule
    sinks: Tensor | None
    score_shift: Tensor | None
    """(batch, heads, queries): the number that was subtracted from the scores of each row."""
    empty_rows: Tensor | None
    """(batch, heads, queries): rows that may attend to nothing; None if there is none."""
    bias_dominates: bool = False
    """Whether the bias of some rows is so large that rounding removes their scores."""
    huge_scores: bool = False
    """Whether scores may reach `CANCELLATION_SCORE_BOUND`."""
    scores_at_once: int = AttentionInputs.scores_at_once
    """See `AttentionInputs`."""

    @property
    def fused(self) -> bool:
        """Whether the fused kernel supports these scores."""
        return self.call.q.device.type == "cpu" and self.call.softcap is None and self.call.scale >= MIN_SCALE

    def attend(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Weights @ v and the lse of every row, without sinks; v is (batch, kv_heads, keys, width)."""
        output, lse = flash.run(replace(self.call, v=v), self.schedule)
        return output, self.fill_empty(lse, -torch.inf)

    def output(self, v: Tensor) -> Tensor:
        """Weights @ v without sinks, by a kernel that supports these scores."""
        return self.attend(v)[0] if self.fused else chunked.run(replace(self.call, v=v), self.schedule)

    def fill_empty(self, t: Tensor, value: float) -> Tensor:
        """Set the rows that may attend to nothing to a value."""
        return t if self.empty_rows is None else t.masked_fill(self.empty_rows, value)

    def log_denominator(self, lse: Tensor) -> Tensor:
        """The number in exp(score - number) = weight, from the lse of the call's scores; inf in empty rows."""
        if self.sinks is None:
            return self.fill_empty(lse, torch.inf)
        return self.fill_empty(torch.logaddexp(lse, self.sink_scores(lse)), torch.inf)

    def row_sums(self, lse: Tensor) -> Tensor | None:
        """The sum of each row's weights, from the lse of the call's scores; None if all are 1."""
        if self.sinks is None and self.empty_rows is None:
            return None
        sums = torch.ones_like(lse) if self.sinks is None else torch.sigmoid(lse - self.sink_scores(lse))
        return self.fill_empty(sums, 0.0)

    def sink_scores(self, lse: Tensor) -> Tensor:
        """The sink of each row, less what was subtracted from its scores; in the dtype of the lse."""
        assert self.sinks is not None
        sinks = self.sinks.to(lse.dtype)[:, None]
        return sinks if self.score_shift is None else sinks - self.score_shift.to(lse.dtype)


def to_call(inputs: AttentionInputs, dtype: torch.dtype) -> tuple[AttentionCall, Tensor | None]:
    """The attention call in a dtype, without sinks and dropout; and the sinks.

    -inf in a bias blocks a pair, so it becomes part of the mask. A bias of zeros is dropped.
    """
    q, k = inputs.q.to(dtype), inputs.k.to(dtype)
    bias, mask = inputs.bias, inputs.mask
    if isinstance(bias, Tensor):
        bias = bias.to(dtype)
        lowest, highest = (float(end) for end in bias.aminmax()) if bias.numel() else (0.0, 0.0)
        if highest == torch.inf or lowest != lowest:
            raise ValueError(f"the bias of shape {tuple(bias.shape)} holds NaN or inf, so the weights are not defined")
        if lowest == -torch.inf:
            finite = bias != -torch.inf
            finite_mask = allowed(finite[(None,) * max(0, 2 - finite.ndim)])
            mask = finite_mask if mask is None else mask & finite_mask
            bias = bias.masked_fill(~finite, 0.0)
            lowest, highest = (float(end) for end in bias.aminmax())
        if lowest == highest == 0.0:
            bias = None
    sinks = None if inputs.sinks is None else inputs.sinks.to(dtype)
    return AttentionCall.from_inputs(q, k, k, mask, scale=inputs.scale, bias=bias, softcap=inputs.softcap), sinks


def prepare(inputs: AttentionInputs) -> PreparedAttention:
    """Prepare the inputs for a statistic.

    Raises:
        ValueError: NaN or infinity in q, k or the bias; scores that can overflow.
    """
    mean = _mean_key(inputs.k) if inputs.softcap is None else None
    # The product of the largest norms bounds every score, and NaN and infinity appear in it.
    norm_dtype = torch.promote_types(inputs.dtype, torch.float32)
    keys = inputs.k if mean is None else inputs.k - mean.to(inputs.dtype)
    largest = [_largest_norm(t, norm_dtype) for t in (inputs.q, keys)]
    del keys
    for name, t, norm in zip("qk", (inputs.q, inputs.k), largest, strict=True):
        if not norm < torch.inf and not bool(t.isfinite().all()):
            raise ValueError(
                f"{name} holds NaN or infinity, so the weights are not defined. m[b, h, i] shows single rows"
            )
    if largest[0] * largest[1] * max(1.0, abs(inputs.scale)) >= torch.finfo(norm_dtype).max:
        raise ValueError(
            f"the largest norm of a query of this map is {largest[0]:.3g}, of a key {largest[1]:.3g}: a score can "
            f"leave the range of {norm_dtype}, and what a kernel makes of such a score differs by machine. m[b, h, i] "
            "shows single rows, by the definition in float64"
        )
    score_bound = largest[0] * largest[1] * abs(inputs.scale)
    large_scores = not score_bound < FLOAT64_SCORE_BOUND
    reduced_matmul = torch.get_float32_matmul_precision() != "highest"
    small_map = inputs.shape.numel() <= inputs.max_float64_weights
    wide = inputs.dtype == torch.float64 or large_scores or reduced_matmul or small_map
    call, sinks = to_call(inputs, torch.float64 if wide else torch.float32)
    shift = None
    if mean is not None:
        mean = mean.to(call.k.dtype)
        shift = grouped_matmul(call.q, mean.transpose(-1, -2))[..., 0] * call.scale
        k = call.k - mean
        call = replace(call, k=k, v=k)
    bias_dominates = False
    if isinstance(call.bias, Tensor) and call.bias.numel():
        highest = call.bias.amax(-1)
        padding = highest < PADDING_BIAS
        bias_dominates = bool(padding.any())
        if bias_dominates:
            # Rounding to such numbers removes q . k, and the logarithm of the number of keys from the lse.
            row_bias = highest.where(padding, 0.0)
            q = call.q.masked_fill(padding.expand(call.q.shape[:-1])[..., None], 0.0)
            call = replace(call, q=q, bias=call.bias - row_bias[..., None])
            shift = row_bias.expand(q.shape[:-1]) if shift is None else shift.masked_fill(padding, 0.0) + row_bias
    schedule = choose(call).schedule
    if "empty_rows" not in inputs.answer_cache:
        inputs.answer_cache["empty_rows"] = empty_rows(call, schedule)
    huge_scores = not score_bound < CANCELLATION_SCORE_BOUND
    empty = inputs.answer_cache["empty_rows"]
    at_once = inputs.scores_at_once * (1 if call.q.device.type == "cpu" else chunked.GPU_CHUNK_FACTOR)
    return PreparedAttention(call, schedule, sinks, shift, empty, bias_dominates, huge_scores, at_once)


def _largest_norm(t: Tensor, dtype: torch.dtype) -> float:
    """The largest norm of a row; in float64 where the squares leave the range of the dtype."""
    norms = (float(torch.linalg.vector_norm(t, dim=-1, dtype=d).amax()) for d in (dtype, torch.float64))
    norm = next(norms)
    return norm if norm < torch.inf else next(norms)


def apply_softcap_(scores: Tensor, softcap: float | int | None) -> Tensor:
    """Softcap * tanh(scores / softcap), in place; the scores themselves without a soft-cap."""
    return scores if softcap is None else scores.div_(softcap).tanh_().mul_(softcap)


def _mean_key(k: Tensor) -> Tensor:
    return k.mean(-2, keepdim=True, dtype=torch.promote_types(k.dtype, torch.float32))


def empty_rows(call: AttentionCall, schedule: Schedule) -> Tensor | None:
    """The rows that may attend to nothing."""
    if call.mask is None:
        return None
    attends = torch.zeros(call.q.shape[:-1], dtype=torch.bool, device=call.q.device)
    for block in schedule(call):
        block.put_queries(attends, _rows_with_keys(block))
    return None if bool(attends.all()) else ~attends


def _rows_with_keys(block: ScoreBlock) -> Tensor:
    """Whether each row of a block may attend to any of its keys; broadcasts to (batch, heads, rows)."""
    if block.allowed is None:
        return torch.ones(1, 1, 1, dtype=torch.bool)
    if not block.causal:
        return block.allowed.any(-1)
    # With the kernel's causal flag the mask is one row for all queries, and row n needs a key among the first n + 1.
    any_before = block.allowed[..., 0, :].cumsum(-1) > 0
    last = torch.arange(block.height, device=any_before.device).clamp(max=block.columns - 1)
    return any_before[..., last]
