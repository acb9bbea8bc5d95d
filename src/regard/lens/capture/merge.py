"""The map of several calls of a module: their queries, masks and sampled outputs, one below the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.attention import mask as masks
from regard.attention.bias import PositionBias
from regard.lens.capture.call import CapturedCall, MaskAndBias, MaskParser
from regard.lens.maps.inputs import OutputSample
from regard.lens.maps.map import AttentionMap


@dataclass
class CallStep:
    """A call of a sequence, without its keys, and what later calls showed of it."""

    call: CapturedCall
    first_key: int
    """The index of its first key among all keys."""
    num_rows: int
    """How many of its first queries belong to the text; the keys of the others were dropped."""
    order: Tensor | None = None
    """For each batch row of the last call, which batch row it was here; None if no row changed its place."""

    def move(self, order: Tensor) -> None:
        """Note that the batch rows changed places after the former call."""
        self.order = order if self.order is None else self.order[order]

    def rows(self, t: Tensor) -> Tensor:
        """(batch, heads, queries, ...): the batch rows in order and the queries that belong to the text."""
        t = t[(None,) * (4 - t.ndim)] if t.ndim < 4 else t
        t = t if t.shape[2] == 1 else t[:, :, : self.num_rows]
        return t if self.order is None or len(t) == 1 else t[self.order]

    def sample(self, first_row: int) -> OutputSample | None:
        """The sampled rows of the output that belong to the text, which begins at a row of the map."""
        sample = self.call.sample
        if sample is None:
            return None
        order = torch.arange(self.call.shape[0], device=sample.batch.device) if self.order is None else self.order
        now, at = ((order[:, None] == sample.batch) & (sample.query < self.num_rows)).nonzero(as_tuple=True)
        return OutputSample(now, sample.query[at] + first_row, sample.output[at])


def merge_steps(
    steps: Sequence[CallStep],
    key_value_parts: Sequence[tuple[Tensor, Tensor]],
    parse: MaskParser,
    ensure_unchanged: Callable[[], None] | None,
    *,
    cross: bool,
    shares_buffer: bool,
    num_earlier_keys: int,
) -> AttentionMap:
    """The map of several calls.

    Args:
        steps: the calls in order.
        key_value_parts: all keys and values, in parts.
        parse: reads an ``attn_mask``.
        ensure_unchanged: see `regard.lens.maps.inputs.AttentionInputs`.
        cross: whether this is cross-attention.
        shares_buffer: whether several calls read one tensor of keys, which may be longer than what was written.
        num_earlier_keys: the keys in the cache before the first query.
    """
    first = steps[0].call
    k, v = (torch.cat(parts, 2) if len(parts) > 1 else parts[0] for parts in zip(*key_value_parts, strict=True))
    q = torch.cat([step.rows(step.call.q) for step in steps], 2)
    queries, keys = q.shape[2], k.shape[2]
    mask, bias, uniform_rows = _merge_masks(steps, keys, parse, cross=cross)
    sample = _merge_samples(steps)
    if not cross and mask is not None and mask != masks.causal():
        allowed = mask.dense(queries, keys)
        unwritten = allowed & _unwritten_keys(steps, num_earlier_keys, keys, allowed.device)
        if bool(unwritten.any()):
            # A row of padding whose keys are all blocked by a large number has equal weights on them, written or not.
            allowed = allowed & ~unwritten
            sample = sample if sample is None else _without_rows(sample, unwritten.any(-1))
            mask = masks.allowed(allowed)
        if shares_buffer:
            # The buffer of a static cache has its full length: keys that no query may attend to are not written yet.
            used = int(allowed.flatten(0, -2).any(0).nonzero().max()) + 1
            mask, k, v = masks.allowed(allowed[..., :used]), k[:, :, :used], v[:, :, :used]
            bias = bias[..., :used] if isinstance(bias, Tensor) else bias
    lse = [None if step.call.lse is None else step.rows(step.call.lse[..., None])[..., 0] for step in steps]
    return AttentionMap(
        q if uniform_rows is None else q.masked_fill(uniform_rows, 0),
        k,
        v,
        mask,
        scale=first.scale,
        bias=bias,
        softcap=first.softcap,
        sinks=first.sinks,
        lse=torch.cat([t for t in lse if t is not None], 2)
        if uniform_rows is None and all(t is not None for t in lse)
        else None,
        sample=sample,
        kernel=first.kernel,
        ensure_unchanged=ensure_unchanged,
    )


def _merge_masks(steps: Sequence[CallStep], keys: int, parse: MaskParser, *, cross: bool) -> MaskAndBias:
    """The masks and biases of all calls."""
    calls = [step.call for step in steps]
    if is_causal(steps, cross=cross) and not any(isinstance(call.bias, Tensor) for call in calls):
        position_bias = calls[0].bias
        return MaskAndBias(masks.causal(), position_bias if isinstance(position_bias, PositionBias) else None)
    allowed_parts, bias_parts, uniform_parts = [], [], []
    has_bias = any(isinstance(call.bias, Tensor) or call.has_float_mask for call in calls)
    for step in steps:
        parsed = step.call.mask_and_bias(parse)
        rows, columns = step.call.shape[2:]
        padding = (step.first_key, keys - step.first_key - columns)
        dense = torch.ones(rows, columns, dtype=torch.bool) if parsed.mask is None else parsed.mask.dense(rows, columns)
        allowed_parts.append(pad(step.rows(dense), padding))
        if has_bias:
            added = parsed.bias if isinstance(parsed.bias, Tensor) else step.call.q.new_zeros(())
            bias_parts.append(pad(step.rows(added.expand(*added.shape[:-2], rows, columns)), padding))
        uniform = parsed.uniform_rows
        uniform = torch.zeros(rows, 1, dtype=torch.bool) if uniform is None else uniform
        uniform_parts.append(step.rows(uniform.expand(*uniform.shape[:-2], rows, 1)))
    allowed, uniform_rows, bias = _concat_rows(allowed_parts), _concat_rows(uniform_parts), calls[0].bias
    if has_bias:
        added = _concat_rows(bias_parts)
        bias = added if bool(added.any()) else None
    mask = None if bool(allowed.all()) else masks.allowed(allowed)
    return MaskAndBias(mask, bias, uniform_rows if bool(uniform_rows.any()) else None)


def _unwritten_keys(steps: Sequence[CallStep], num_earlier_keys: int, keys: int, device: torch.device) -> Tensor:
    """(queries, keys), True for keys that were not in the cache yet when the query's call ran."""
    num_rows = torch.tensor([step.num_rows for step in steps], device=device)
    written = num_earlier_keys + num_rows.cumsum(0).repeat_interleave(num_rows)
    return torch.arange(keys, device=device) >= written[:, None]


def _without_rows(sample: OutputSample, rows: Tensor) -> OutputSample:
    """The sample without these rows, (batch or 1, heads or 1, queries)."""
    by_text = rows.any(1)
    kept = ~by_text[sample.batch % len(by_text), sample.query]
    return OutputSample(sample.batch[kept], sample.query[kept], sample.output[kept])


def is_causal(steps: Sequence[CallStep], *, cross: bool) -> bool:
    """Whether the queries of every call attend to all keys up to their own."""
    filled = 0
    for step in steps:
        call, (queries, keys) = step.call, step.call.shape[2:]
        if cross or step.first_key or keys != filled + queries or call.attn_mask is not None:
            return False
        filled += step.num_rows
        single = queries == 1 and call.mask is None and not call.is_causal
        prompt = call.is_causal and queries == keys and call.mask is None
        if not (single or prompt or call.mask == masks.causal()):
            return False
    return True


def _merge_samples(steps: Sequence[CallStep]) -> OutputSample | None:
    parts, row = [], 0
    for step in steps:
        parts.append(step.sample(row))
        row += step.num_rows
    present = [part for part in parts if part is not None]
    if not present:
        return None
    batch, query, output = (torch.cat(t) for t in zip(*((p.batch, p.query, p.output) for p in present), strict=True))
    return OutputSample(batch, query, output)


def _concat_rows(parts: list[Tensor]) -> Tensor:
    """(batch, heads, queries, keys) of several calls, joined along the queries; batch and heads broadcast."""
    parts = [part[(None,) * (4 - part.ndim)] for part in parts]
    batch, heads = (max(part.shape[axis] for part in parts) for axis in (0, 1))
    return torch.cat([part.expand(batch, heads, -1, -1) for part in parts], 2)
