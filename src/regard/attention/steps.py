"""The definition of attention, one named step at a time.

Everything faster is tested against this definition in float64. It makes every queries x keys matrix; `regard.attend`
gives the same output without them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard._shapes import Bool, Float
from regard.attention.bias import PositionBias
from regard.attention.mask import Mask
from regard.attention.validation import resolve_mask, validate
from regard.notebook import html_table

STEP_TEXTS = {
    "scores": "q kT",
    "scaled": "scores * scale",
    "capped": "softcap * tanh(scaled / softcap)",
    "biased": "capped + bias",
    "masked": "biased, -inf where a query may not attend",
    "weights": "softmax of masked over the keys",
    "output": "weights @ v",
    "q": "queries by head",
    "k": "keys by head",
    "v": "values by head",
    "heads": "the outputs of all heads side by side",
    "projected": "heads after the output projection",
}


@dataclass(frozen=True, eq=False)
class Steps:
    """Every intermediate result of one attention, in the order of computation.

    Without a soft-cap, bias or mask, its step is the tensor of the step before it.
    """

    scores: Float[Tensor, "*batch_heads queries keys"]
    """q kT, before anything else."""
    scaled: Float[Tensor, "*batch_heads queries keys"]
    """scores * scale."""
    capped: Float[Tensor, "*batch_heads queries keys"]
    """softcap * tanh(scaled / softcap)."""
    biased: Float[Tensor, "*batch_heads queries keys"]
    """capped + bias."""
    masked: Float[Tensor, "*batch_heads queries keys"]
    """biased, with -inf where a query may not attend."""
    weights: Float[Tensor, "*batch_heads queries keys"]
    """softmax over the keys: each row sums to 1, or to less with sinks, or to 0 where every key is blocked."""
    output: Float[Tensor, "*batch_heads queries d_value"]
    """weights @ v, head by head."""

    q: Float[Tensor, "*batch_heads queries d_key"] | None = None
    """Queries by head; from a module only."""
    k: Float[Tensor, "*batch_kv_heads keys d_key"] | None = None
    """Keys by head; from a module only."""
    v: Float[Tensor, "*batch_kv_heads keys d_value"] | None = None
    """Values by head; from a module only."""
    heads: Float[Tensor, "*batch queries heads_x_d_value"] | None = None
    """Concat(head_1, ..., head_h): the outputs of all heads side by side; from a module only."""
    projected: Float[Tensor, "*batch queries d_model"] | None = None
    """heads after the output projection W^O: what the module returns; from a module only."""

    def __repr__(self) -> str:
        shapes = ((name, value) for name, value in vars(self).items() if value is not None)
        return f"Steps({', '.join(f'{name} {tuple(value.shape)}' for name, value in shapes)})"

    def _repr_html_(self) -> str:
        """The steps in their order, for notebooks: what each is, its shape and its numbers from the least on."""
        rows, before = [], None
        for name, value in vars(self).items():
            if value is not None:
                numbers = "as above" if value is before else _range(value)
                rows.append((name, STEP_TEXTS[name], " x ".join(map(str, value.shape)), numbers))
                before = value
        return html_table("Steps", rows, ("step", "is", "shape", "least to largest"))


def steps(
    q: Float[Tensor, "*batch_heads queries d_key"],
    k: Float[Tensor, "*batch_kv_heads keys d_key"],
    v: Float[Tensor, "*batch_kv_heads keys d_value"],
    mask: Mask | None = None,
    *,
    scale: float | int | None = None,
    bias: Float[Tensor, "..."] | PositionBias | None = None,
    softcap: float | int | None = None,
    sinks: Float[Tensor, "..."] | None = None,
) -> Steps:
    """Attention(Q, K, V) = softmax(Q KT / sqrt(d_k)) V, step by step.

    "Attention Is All You Need", section 3.2.1, equation 1. Soft-cap as in Gemma 2 (Gemma Team 2024, section 2);
    sinks as in gpt-oss: one learned score per head that takes part in the softmax and carries no value.

    In float16 the unscaled scores of large q and k can exceed its largest number, 65504; use a wider dtype for them.

    Args:
        q: queries ``(..., heads, queries, d_key)``; the heads axis and all before it may be absent.
        k: keys ``(..., kv_heads, keys, d_key)``. With fewer key heads than query heads, each key head
            serves heads / kv_heads neighbouring query heads (grouped-query attention).
        v: values ``(..., kv_heads, keys, d_value)``.
        mask: who may attend, from `regard.mask`; None blocks nothing.
        scale: what the scores are multiplied by; 1 / sqrt(d_key) by default.
        bias: added to the scaled scores; a tensor that broadcasts to ``(..., heads, queries, keys)``, or a function of
            positions such as `regard.positions.ALiBi`.
        softcap: above 0; if given, scaled scores become softcap * tanh(scaled / softcap).
        sinks: one score per head, ``(heads,)``.

    Returns:
        `Steps`. A query with nothing to attend to has zero weights, zero output and zero gradient.

    Raises:
        TypeError: a bare tensor as mask; dtypes that differ.
        ValueError: shapes that do not fit.
    """
    validate(q, k, v, mask, scale=scale, bias=bias, softcap=softcap, sinks=sinks)
    if isinstance(bias, PositionBias):
        bias = bias.dense(q.shape[-2], k.shape[-2], device=q.device).to(q.dtype)
        bias = bias if q.ndim > 2 else bias[0]
    return compute_steps(
        q,
        k,
        v,
        None if mask is None else resolve_mask(mask, q, k),
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        bias=bias,
        softcap=softcap,
        sinks=sinks,
    )


def compute_steps(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Bool[Tensor, "..."] | None,
    *,
    scale: float | int,
    bias: Tensor | None = None,
    softcap: float | int | None = None,
    sinks: Tensor | None = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> Steps:
    """The definition on checked tensors, for `steps` and for the kernel that computes some rows at a time.

    Args:
        q: as in `steps`; so are k, v, bias, softcap and sinks.
        k: see `steps`.
        v: see `steps`.
        allowed: True = may attend, broadcastable to the scores; None blocks nothing.
        scale: what the scores are multiplied by.
        bias: see `steps`.
        softcap: see `steps`.
        sinks: see `steps`.
        dropout: applied to the weights before they are multiplied with the values.
    """
    scores = grouped_matmul(q, k.transpose(-2, -1))
    scaled = scores * scale
    capped = scaled if softcap is None else softcap * torch.tanh(scaled / softcap)
    biased = capped if bias is None else capped + bias
    masked = biased if allowed is None else biased.masked_fill(~allowed, -torch.inf)
    weights = _softmax(masked, sinks)
    output = grouped_matmul(weights if dropout is None else dropout(weights), v)
    return Steps(scores, scaled, capped, biased, masked, weights, output)


def grouped_matmul(left: Tensor, right: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The product left @ right, where each head of right may serve several neighbouring heads of left.

    The rows of these heads are joined, so that nothing of right is copied.

    Args:
        left: ``(..., heads, rows, width)``; without the axes before rows, one head.
        right: ``(..., kv_heads, width, columns)``.
        out: a contiguous tensor of as many numbers as the result, which is written into it.
    """
    *batch, rows, width = left.shape
    joined = left
    if batch and batch[-1] != right.shape[-3]:
        joined = left.reshape(*batch[:-1], right.shape[-3], batch[-1] // right.shape[-3] * rows, width)
    if out is not None:
        out = out.view(*joined.shape[:-1], right.shape[-1])
    product = torch.matmul(joined, right, out=out)
    return product if joined is left else product.reshape(*batch, rows, right.shape[-1])


def _softmax(masked: Tensor, sinks: Tensor | None) -> Tensor:
    # Softmax of a row of -inf is 0/0. Such a row enters as zeros and leaves as zeros, which also keeps NaN out of the
    # gradient (pytorch#41508, #103963).
    empty = (masked == -torch.inf).all(dim=-1, keepdim=True)
    masked = masked.masked_fill(empty, 0.0)
    if sinks is not None:
        sink = sinks[..., None, None].expand(*masked.shape[:-1], 1)
        weights = torch.cat([masked, sink], dim=-1).softmax(dim=-1)[..., :-1]
    else:
        weights = masked.softmax(dim=-1)
    return weights.masked_fill(empty, 0.0)


def _range(t: Tensor) -> str:
    """The least and the largest number of a tensor."""
    if not t.numel():
        return ""
    least, largest = (float(each) for each in t.detach().aminmax())
    return f"{least:.4g} to {largest:.4g}"
