"""The call of an eager attention in the model's own code: its map is made from the weights that the model computed."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attention import mask as masks
from regard.attention.mask import Mask
from regard.lens.capture.call import CapturedCall, sample_output
from regard.lens.capture.eager_pattern import EagerAttention

HEADS_ATTRIBUTES = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads", "num_attn_heads")
"""What modules and configurations call the number of query heads."""

EAGER_KERNEL = "eager, weights kept"

MAX_EXCESS, MAX_HALF_EXCESS = 1e-3, 3e-2
"""By how much the rounded weights of a row may sum to more or less than 1: in float32 and in half precision."""


class _Product(NamedTuple):
    """Weights times values, with the same number of leading axes; an axis of v has size 1 where v is shared."""

    weights: Tensor
    """(..., queries, keys)."""
    v: Tensor
    """(..., keys, width)."""
    output: Tensor
    """(..., queries, width)."""


def eager_weights_call(eager: EagerAttention, module: nn.Module) -> CapturedCall:
    """The call of an attention whose weights were multiplied by values in the model's own code.

    The map holds the logarithm of every weight as its bias, beside queries of zeros: softmax(log w) is w. A weight of 0
    counts as blocked. Where a row sums to less than 1, as where the column of a sink was cut off, a sink of score 0
    takes the rest.

    Args:
        eager: an attention that is complete.
        module: the module that computed it, which may know the number of heads.

    Raises:
        NotImplementedError: the product does not sum over keys as attention does, or its weights are no probabilities.
    """
    if eager.weights is not None and eager.used_weights.numel() < eager.weights.numel():
        num_cut = eager.weights.shape[-1] - eager.used_weights.shape[-1]
        if num_cut != 1:
            raise NotImplementedError(f"{num_cut} columns of its weights were cut off, and one is a sink's")
    num_heads = _num_heads(module)
    clean = _undo_dropout(eager)
    weights, v, output = _to_four_axes(_parse_product(clean), clean.shapes, num_heads)
    dtype = torch.promote_types(weights.dtype, torch.float32)
    sums = weights.sum(-1, keepdim=True, dtype=dtype)
    tolerance = MAX_HALF_EXCESS if output.dtype.itemsize == 2 else MAX_EXCESS
    if not bool((weights >= 0).all() & (sums <= 1 + tolerance).all()):
        raise NotImplementedError("it multiplies values by numbers that are no probabilities over the keys")
    blocked = weights == 0
    log_weights = weights.to(dtype).masked_fill(blocked, 1.0).log_()  # masked first: the gradient of log 0 is NaN
    sinks = None
    if bool(((sums > 0) & (sums < 1 - tolerance)).any()):
        log_weights -= (1 - sums).clamp_min(torch.finfo(dtype).tiny).log_()
        sinks = log_weights.new_zeros(weights.shape[1])
    sample, dropout = sample_output(output), 0.0
    if clean is not eager:
        dropped = _to_four_axes(_parse_product(eager), eager.shapes, num_heads).weights
        at = sample.batch, slice(None), sample.query
        factor = (dropped[at] / weights[at]).detach().nan_to_num(1.0)
        sample, dropout = replace(sample, dropout_factor=factor), round(1 - 1 / max(1.0, float(factor.max())), 6)
    v = v.to(dtype)
    return CapturedCall(
        log_weights.new_zeros(()).expand(*weights.shape[:3], v.shape[-1]),
        v,  # The score of every pair is 0, whatever the keys are; as keys, values tell which calls share a cache.
        v,
        EAGER_KERNEL,
        scale=1.0,
        mask=_mask(blocked),
        bias=log_weights,
        sinks=sinks,
        dropout=dropout,
        sample=sample,
        from_weights=True,
    )


def eager_output_places(eager: EagerAttention, module: nn.Module) -> Tensor:
    """For each number of the output (batch, heads, queries, width), its place in the product's own output, flattened.

    Args:
        eager: as in `eager_weights_call`.
        module: see `eager_weights_call`.
    """
    assert eager.output is not None
    places = torch.arange(eager.output.numel(), device=eager.output.device).view(eager.output.shape)
    product = _parse_product(replace(eager, output=places))
    return _to_four_axes(product, eager.shapes, _num_heads(module)).output


def _mask(blocked: Tensor) -> Mask | None:
    if not bool(blocked.any()):
        return None
    causal = masks.causal().dense(*blocked.shape[-2:], device=blocked.device)
    return masks.causal() if bool((blocked == ~causal).all()) else masks.allowed(~blocked)


def _num_heads(module: nn.Module) -> int | None:
    for holder in (module, getattr(module, "config", None)):
        for name in HEADS_ATTRIBUTES:
            if isinstance(number := getattr(holder, name, None), int):
                return number
    return None


def _undo_dropout(eager: EagerAttention) -> EagerAttention:
    """The attention with the weights before dropout, if they differ from those after it by one factor only."""
    before, after = eager.dropout_input, eager.used_weights
    if before is None or before.numel() != after.numel():
        return eager
    before = before.reshape(after.shape)
    if torch.equal(before, after):
        return eager  # no dropout in evaluation; the weights that multiplied values have the graph of the model
    ratio = (after / before).detach()[(after != 0) & (before != 0)]
    if bool(((after != 0) & (before == 0)).any()) or (len(ratio) and float(ratio.max()) > float(ratio.min()) * 1.05):
        return eager
    factors = (before, eager.v) if eager.weights_index == 0 else (eager.v, before)
    return replace(eager, factors=factors)


def _parse_product(eager: EagerAttention) -> _Product:
    weights, v, output = eager.used_weights, eager.v, eager.output
    assert output is not None
    if eager.product == "einsum":
        return _parse_einsum(eager, weights, v, output)
    if eager.weights_index == 1:
        if min(weights.ndim, v.ndim) < 2:
            raise NotImplementedError("its weights stand right of its values, and one of them is a vector")
        weights, v, output = weights.mT, v.mT, output.mT
    if v.ndim == 1:
        v, output = v[:, None], output.unsqueeze(-1)
    if weights.ndim == 1:
        weights, output = weights[None], output.unsqueeze(-2)
    lead = output.shape[:-2]
    v = v[(None,) * (len(lead) + 2 - v.ndim)]
    return _Product(weights.expand(*lead, *weights.shape[-2:]), v, output)


def _parse_einsum(eager: EagerAttention, weights: Tensor, v: Tensor, output: Tensor) -> _Product:
    inputs, _, result = eager.equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != 2:
        raise NotImplementedError("its einsum has no equation of two factors")
    ellipsis = max(t.ndim - len(term.replace("...", "")) for t, term in zip(eager.factors, terms, strict=True))
    names = "0123456789"[:ellipsis]

    def expand(term: str, ndim: int) -> str:
        count = ndim - len(term.replace("...", ""))
        return term.replace("...", names[len(names) - count :])

    w_axes, v_axes = (expand(terms[i], eager.factors[i].ndim) for i in (eager.weights_index, 1 - eager.weights_index))
    if "->" not in eager.equation:
        letters = sorted(a for a in {*w_axes, *v_axes} if not a.isdigit() and (w_axes + v_axes).count(a) == 1)
        result = "..." + "".join(letters)
    o_axes = expand(result, output.ndim) if "..." in result else result
    keys = [a for a in w_axes if a in v_axes and a not in o_axes]
    own = [a for a in w_axes if a in o_axes and a not in v_axes]
    width = [a for a in v_axes if a in o_axes and a not in w_axes]
    lead = [a for a in w_axes if a in o_axes and a != (own or [""])[-1]]
    used = {*keys, *own, *width, *lead}
    if len(keys) != 1 or len(set(w_axes)) < len(w_axes) or used != {*w_axes, *v_axes}:
        raise NotImplementedError(f"its einsum {eager.equation!r} does not sum over one axis of keys")

    def arrange(t: Tensor, axes: str, last: list[str]) -> Tensor:
        present = [a for a in (*lead, *last) if a in axes]
        t = t.permute([axes.index(a) for a in present])
        return t[tuple(slice(None) if a in present else None for a in (*lead, *last))]

    query = own[-1:] or ["query"]
    v, output = arrange(v, v_axes, [*keys, *width]), arrange(output, o_axes, [*query, *width])
    if len(width) != 1:
        v, output = (t.flatten(len(lead) + 1) if width else t.unsqueeze(-1) for t in (v, output))
    return _Product(arrange(weights, w_axes, [*query, *keys]), v, output)


def _to_four_axes(product: _Product, shapes: list[tuple[int, ...]], num_heads: int | None) -> _Product:
    """(batch, heads, queries, keys), from the shapes that the weights had on their way and the number of heads."""
    weights, v, output = product
    lead, (queries, keys) = weights.shape[:-2], weights.shape[-2:]
    if len(lead) == 1:
        for shape in shapes:
            if len(shape) >= 4 and shape[-2:] == (queries, keys) and prod(shape[:-2]) == lead[0]:
                return _to_four_axes(_split_lead(product, shape[:-2]), [], num_heads)
        for shape in shapes:
            # The queries of all heads of one text, which share its keys.
            is_split = len(shape) == 4 and shape[::3] == (lead[0], keys) and shape[1] * shape[2] == queries
            if is_split and num_heads in shape[1:3] and 1 < num_heads < queries:
                return _split_queries(product, shape[1:3], heads_first=shape[1] == num_heads)
        heads = num_heads if num_heads and lead[0] % num_heads == 0 and v.shape[0] == lead[0] else 1
        return _split_lead(product, (lead[0] // heads, heads))
    if len(lead) < 2:
        return _split_lead(product, (1, 1))
    if len(lead) > 2:
        # An axis along which values are shared is that of the heads in a group; a group may have one head only.
        is_group = v.shape[-3] == 1 and (lead[-1] > 1 or lead[-2] == num_heads)
        if is_group:
            weights, output = (t.flatten(-4, -3) for t in (weights, output))
            v = v.squeeze(-3)
        v = v.expand(*weights.shape[:-3], *v.shape[-3:])
        weights, v, output = (t.flatten(0, -4) if t.ndim > 4 else t for t in (weights, v, output))
    if weights.shape[1] % v.shape[1]:
        v = v.expand(-1, weights.shape[1], -1, -1)
    return _Product(weights, v.expand(len(weights), -1, -1, -1), output)


def _split_lead(product: _Product, lead: tuple[int, ...]) -> _Product:
    weights, v, output = product
    v = v if v.shape[:-2].numel() == prod(lead) else v.expand(*weights.shape[:-2], -1, -1)
    return _Product(*(t.reshape(*lead, *t.shape[-2:]) for t in (weights, v, output)))


def _split_queries(product: _Product, sizes: tuple[int, ...], *, heads_first: bool) -> _Product:
    weights, output = (t.reshape(len(t), *sizes, t.shape[-1]) for t in (product.weights, product.output))
    if not heads_first:
        weights, output = weights.transpose(1, 2), output.transpose(1, 2)
    return _Product(weights, product.v[:, None].expand(len(weights), -1, -1, -1), output)
