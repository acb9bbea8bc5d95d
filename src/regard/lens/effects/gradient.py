"""First-order effects: one forward and one backward pass estimate the effect of every part.

If an attention's output O becomes O', the metric loses about dO . (O - O'), with dO its gradient by O. O' is known
exactly, for a replaced head as for blocked keys (`regard.lens.maps.edges`); only the rest of the model is taken as
linear. That is attribution patching (Nanda 2023; Syed et al. 2023, arXiv:2310.10348), on the model's own kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention import mask as masks
from regard.attention.mask import Mask
from regard.lens.effects.edits import OutputProbe
from regard.lens.effects.looked_at import map_of
from regard.lens.effects.metrics import TextContext
from regard.lens.effects.parts import BlockedParts, EdgeParts, HeadParts, Parts, TokenParts
from regard.lens.effects.subject import EffectSubject, TextArguments
from regard.lens.intervene import intervene
from regard.lens.maps.map import AttentionMap
from regard.lens.recording.entry import RecordingEntry

SATURATED = 0.9
"""A pair, or a group of keys, whose weight is above this: without it the row is another one altogether."""

MAX_EXACT_ROWS = 1024
"""Up to so many tokens, each pair of a hidden token is estimated by itself; beyond it, all its pairs by one sum."""


class NoGradientError(TypeError):
    """The metric cannot be differentiated."""


@dataclass(frozen=True)
class OutputGradient:
    """The output of an attention in one call, and the gradient of the metric by it; (1, heads, queries, d_value)."""

    output: Tensor
    gradient: Tensor


def output_gradients(
    subject: EffectSubject, text: TextArguments, context: TextContext, paths: Sequence[str]
) -> dict[str, list[OutputGradient]]:
    """The output of each attention, call by call, and its gradient, by one forward and one backward pass.

    Raises:
        NoGradientError: the metric is not a differentiable function of the model's output.
    """
    with torch.inference_mode(False), torch.enable_grad():
        with intervene(subject.model, verify=False) as edit:
            probes = {path: OutputProbe(path, None, None) for path in dict.fromkeys(paths)}
            for path, probe in probes.items():
                edit[path].add(probe)
            value = subject.metric(subject.run(text), context)
        if not value.requires_grad:
            raise NoGradientError(
                f"the metric {subject.metric.name} has no gradient: compute it with torch from the model's output, "
                'without .item() and .detach(), or take method="exact"'
            )
        zeros = [t for probe in probes.values() for t in probe.zeros]
        gradients = iter(torch.autograd.grad(value.sum(), zeros, allow_unused=True, materialize_grads=True))
    return {
        path: [OutputGradient(output.double(), next(gradients).double()) for output in probe.outputs]
        for path, probe in probes.items()
    }


def estimate(parts: Parts, gradients: dict[str, list[OutputGradient]]) -> tuple[Tensor, int]:
    """The estimated effect of each part, and how many blocked pairs have so much weight that it cannot be trusted."""
    if isinstance(parts, HeadParts):
        return _heads(parts, gradients), 0
    if isinstance(parts, TokenParts):
        return _tokens(parts, gradients)
    assert isinstance(parts, EdgeParts)
    return _edges(parts, gradients)


def _heads(parts: HeadParts, gradients: dict[str, list[OutputGradient]]) -> Tensor:
    """Sum over the queries of dO . (O - replacement)."""
    estimates = torch.full(parts.shape, torch.nan, dtype=torch.float64)
    for n, (entry, replacement) in enumerate(zip(parts.entries, parts.replacements, strict=True)):
        by_head = torch.zeros(entry.shape[1], dtype=torch.float64)
        for call in gradients[entry.path]:
            change = call.output if replacement is None else call.output - replacement.to(call.output)
            by_head += (call.gradient * change).sum((0, 2, 3)).cpu()
        if parts.whole:
            estimates[n] = by_head.sum()
        else:
            estimates[n, : len(by_head)] = by_head
    return estimates


def _tokens(parts: TokenParts, gradients: dict[str, list[OutputGradient]]) -> tuple[Tensor, int]:
    """The pairs of each key with every query but itself."""
    total, saturated = torch.zeros(parts.count, dtype=torch.float64), 0
    for entry in parts.entries:
        m, gradient = map_of(entry), gradients[entry.path][0].gradient
        own = range(m.shape[2]) if entry.kind != "cross" else range(0)
        if m.shape[2] <= MAX_EXACT_ROWS:
            pairs = -m.edge_attribution(gradient.to(m.q), range(m.shape[2]))[0].double().sum(0)
            pairs[own, own] = 0.0
            total += pairs.sum(0).cpu()
        else:
            total += _by_one_sum(m, gradient, has_own=entry.kind != "cross").cpu()
        weights, keys = m.top(1)
        queries = torch.arange(m.shape[2], device=keys.device)[:, None]
        another = torch.ones_like(keys, dtype=torch.bool) if entry.kind == "cross" else keys != queries
        saturated += int(((weights > SATURATED) & another).sum())
    estimates = torch.full((parts.count,), torch.nan, dtype=torch.float64)
    estimates[list(parts.positions)] = total[list(parts.positions)]
    return estimates, saturated


def _by_one_sum(m: AttentionMap, gradient: Tensor, *, has_own: bool) -> Tensor:
    """sum_i dS_ij without i = j: as if no weight were so large that the others of its row grow without it."""
    gradient = gradient.to(m.q)
    by_key = m.attribution(gradient).scores[0].double()
    if has_own:
        # The map in which every query sees itself only has its own score as the lse of a row.
        itself = AttentionMap(m.q, m.k, m.v, _and(m.mask, masks.window(1)), **m.score_options)
        lse = m.lse if m.sinks is None else torch.logaddexp(m.lse, m.sinks[:, None].to(m.lse))
        weights = (itself.lse - lse).exp().nan_to_num(0.0)[0].double()
        assert m.v is not None
        v = m.v[0].double().repeat_interleave(m.shape[1] // m.v.shape[1], 0)
        by_key -= weights * (gradient[0].double() * (v - m.output()[0].double())).sum(-1)
    return by_key.sum(0)


def _and(mask: Mask | None, other: Mask) -> Mask:
    return other if mask is None else mask & other


def _edges(parts: EdgeParts, gradients: dict[str, list[OutputGradient]]) -> tuple[Tensor, int]:
    estimates, saturated = torch.zeros(parts.shape, dtype=torch.float64), 0
    by_attention = [_groups(parts, entry, gradients[entry.path][0]) for entry in parts.entries]
    for w, window in enumerate(parts.windows):
        for n in window:
            estimates[w] += by_attention[n][0]
    saturated = sum(count for _, count in by_attention)
    return estimates, saturated


def _groups(parts: BlockedParts, entry: RecordingEntry, own: OutputGradient) -> tuple[Tensor, int]:
    """For each query and each group of keys the effect of all heads of an attention; how many weights are saturated.

    Without a group J of keys O' = (O - sum_J w_j v_j) / (1 - W), W = sum_J w_j. So dO . (O - O') is the sum of
    w_j (dO . v_j - D) over J, divided by 1 - W.
    """
    assert isinstance(parts, EdgeParts)
    m = map_of(entry)
    alone = -m.edge_attribution(own.gradient.to(m.q), list(parts.queries))[0].double()  # (heads, queries, keys)
    weights = torch.stack([m[0, :, query] for query in parts.queries], 1).double()
    effects = torch.zeros(parts.shape[1:], dtype=torch.float64)
    saturated = 0
    for g, group in enumerate(parts.groups):
        keys = list(group)
        total = weights[..., keys].sum(-1)
        saturated += int((total > SATURATED).sum())
        if len(keys) == 1:
            effects[:, g] = alone[..., keys[0]].sum(0).cpu()
            continue
        left = 1 - total
        shares = (alone[..., keys] * (1 - weights[..., keys])).sum(-1)
        at = torch.tensor(parts.queries, device=own.output.device)
        lost = (own.gradient[0, :, at] * own.output[0, :, at]).sum(-1)  # where no key is left, the output is 0
        by_head = torch.where(left > 1e-9, shares / left.clamp(min=1e-9), lost)
        effects[:, g] = by_head.sum(0).cpu()
    return effects, saturated
