"""The output of attention, fast: the definition's result without its matrices."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard._shapes import Float
from regard.attention.bias import PositionBias
from regard.attention.hooks import disable_hooks, hook_state
from regard.attention.kernels import band, chunked, flash, flex, fused
from regard.attention.kernels.call import AttentionCall
from regard.attention.kernels.schedule import band_limits, conjuncts, full_block, tiles
from regard.attention.mask import Mask
from regard.attention.mask.kinds import Band
from regard.attention.plan import MIN_SCALE, choose, is_full_or_causal
from regard.attention.steps import compute_steps
from regard.attention.validation import validate


def attend(
    q: Float[Tensor, "*batch_heads queries d_key"],
    k: Float[Tensor, "*batch_kv_heads keys d_key"],
    v: Float[Tensor, "*batch_kv_heads keys d_value"],
    mask: Mask | None = None,
    *,
    scale: float | int | None = None,
    bias: Float[Tensor, "..."] | PositionBias | None = None,
    softcap: float | int | None = None,
    sinks: Float[Tensor, "..."] | None = None,
    dropout: float | int = 0.0,
) -> Float[Tensor, "*batch_heads queries d_value"]:
    """The output of `regard.steps`, by the kernel that suits the mask; `regard.plan` says which, and why.

    Time and memory follow the mask: a window costs what the window holds, packed documents what each of them holds,
    any mask the keys that each 256 queries may attend to. A mask or bias of every pair of a query and a key stands in
    memory only up to a million pairs (2**20), or where the caller hands one over.

    A query with nothing to attend to gets zeros. NaN or infinity in a query stays in its row, in a key in the rows
    that may attend to it; what stands in a blocked value must be finite, since 0 x NaN is NaN.

    Under `torch.compile` and `torch.export` no number can be looked at. There, full, causal, per-key and window masks
    keep their kernels, every other mask stands in the graph as a tensor, and NaN goes where PyTorch's kernel lets it.
    `regard.plan` speaks of calls outside a graph.

    Args:
        q: queries ``(..., heads, queries, d_key)``; the heads axis and all before it may be absent.
        k: keys ``(..., kv_heads, keys, d_key)``; kv_heads divides heads.
        v: values ``(..., kv_heads, keys, d_value)``.
        mask: who may attend, from `regard.mask`; None lets everyone.
        scale: what the scores are multiplied by; 1 / sqrt(d_key) by default.
        bias: added to the scaled scores; a tensor that broadcasts to ``(..., heads, queries, keys)``, or a function of
            positions such as `regard.positions.ALiBi`, of which no tensor of the whole square is made.
        softcap: above 0; if given, scaled scores become softcap * tanh(scaled / softcap).
        sinks: one score per head, ``(heads,)``, that takes part in the softmax and carries no value.
        dropout: share of the weights set to zero, the rest scaled up to make good; always applied when above 0.

    Raises:
        TypeError: a bare tensor as mask; dtypes that differ.
        ValueError: shapes or a mask that do not fit; a number out of its range. The message names them.
    """
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        q, k, v, bias, sinks = (_autocast(t) for t in (q, k, v, bias, sinks))
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return attend(
                q, k, v, mask, scale=scale, bias=bias, softcap=softcap, sinks=sinks, dropout=dropout
            )  # by one rule for every kernel, where PyTorch has one for some
    if hook_state.hooks and not torch.compiler.is_compiling():
        options: dict[str, Any] = {"scale": scale, "bias": bias, "softcap": softcap, "sinks": sinks, "dropout": dropout}
        with disable_hooks() as hooks:
            output = attend(q, k, v, mask, **options)
        for hook in hooks:
            hook(q, k, v, mask, **options, output=output)
        return output
    if (
        scale is None
        and bias is None
        and softcap is None
        and sinks is None
        and dropout == 0
        and not torch.compiler.is_compiling()
        and (mask is None or (type(mask) is Band and mask.before is None and not mask.after and mask.offset is None))
    ):
        plain = _plain(q, k, v, causal=mask is not None)
        if plain is not None:
            return plain

    validate(q, k, v, mask, scale=scale, bias=bias, softcap=softcap, sinks=sinks, dropout=dropout)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    call = AttentionCall.from_inputs(
        q, k, v, mask, scale=scale, bias=bias, softcap=softcap, sinks=sinks, dropout=dropout
    )
    output = _traced(call) if torch.compiler.is_compiling() else _computed(call)
    return output.reshape(*q.shape[:-1], v.shape[-1])


def _autocast(t: Any) -> Any:
    """A tensor in the dtype that autocast wants."""
    if not isinstance(t, Tensor) or t.dtype == torch.float64 or not t.is_floating_point():
        return t
    device = t.device.type
    return t.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else t


def _plain(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor | None:
    """The commonest call, straight to the kernel: on short sequences, checks take as long as the attention.

    None if it is not that call after all: another device, shapes that differ, or anything odd.
    """
    try:
        shape, dtype = q.shape, q.dtype
        if (
            len(shape) != 4
            or k.shape != v.shape
            or (k.shape != shape and not _fits(shape, k.shape, causal))
            or not dtype.is_floating_point
            or k.dtype != dtype
            or v.dtype != dtype
            or not (q.is_cpu and k.is_cpu and v.is_cpu)
            or 0 in shape
            or 0 in k.shape
            or not (q.stride(3) == k.stride(3) == v.stride(3) == 1)
        ):
            return None
    except AttributeError:
        return None  # not a tensor: `check` names it
    # The queries are the last positions: a single one attends to every key.
    output, lse = flash.forward(q, k, v, 0.0, causal and shape[2] > 1)
    return output if _is_sound(lse) else None


def _fits(q: torch.Size, k: torch.Size, causal: bool) -> bool:
    """Whether queries and keys of different shapes go together, with nothing for a mask to say."""
    batch, heads, queries, width = q
    return batch == k[0] and not (k[1] == 0 or heads % k[1]) and width == k[3] and (queries in (1, k[2]) or not causal)


def _computed(call: AttentionCall) -> Tensor:
    choice = choose(call)
    if choice.kernel == "chunked":
        return chunked.run(call, choice.schedule)
    if choice.kernel == "flex":
        return flex.run(call)
    if choice.kernel == "varlen":
        return flex.documents(call)
    if choice.kernel in ("fused", "dense") and call.sinks is None:
        (block,) = choice.schedule(call)
        if call.q.device.type != "cpu":
            return fused.run(call, block)
        output, lse = fused.run_on_cpu(call, block)
    else:
        output, lse = flash.run(call, choice.schedule)
    if _is_sound(lse):
        return output
    # Rows with nothing to attend to, a sum of exactly 1, or numbers that are not finite. The last go by the definition:
    # the CPU decides whether the kernel gives NaN or zeros for a row whose scores are NaN or infinite.
    damaged = ~_is_sound_row(lse) & ~_has_finite_scores(call)
    if not bool(damaged.any()):
        return output
    return torch.where(damaged[:, None, None, None], chunked.run(call, tiles), output)


def _is_sound(lse: Tensor) -> bool:
    """Whether every lse is finite and not 0, what the kernel gives for a row whose largest score it took for -inf."""
    smallest, largest = lse.detach().abs().aminmax()  # NaN passes through both
    return float(smallest) > 0 and float(largest) < torch.inf


def _is_sound_row(lse: Tensor) -> Tensor:
    """The same for each batch row."""
    sizes = lse.abs().flatten(1)
    return (sizes.amin(1) > 0) & (sizes.amax(1) < torch.inf)


def _has_finite_scores(call: AttentionCall) -> Tensor:
    """Of each batch row, whether no score can leave the range of the dtype that scores are computed in."""
    size_q, size_k = (t.detach().double().abs().flatten(1).amax(1) for t in (call.q, call.k))
    largest = size_q * size_k * call.q.shape[-1] * max(1.0, abs(call.scale))
    biases = [call.bias] if isinstance(call.bias, Tensor) else call.bias.parameters() if call.bias is not None else []
    for bias in biases:
        blocked = bias == -torch.inf
        largest = largest + bias.detach().double().masked_fill(blocked, 0.0).abs().amax()
    computed = torch.finfo(torch.promote_types(call.q.dtype, torch.float32))
    return largest < computed.max * (1 + computed.eps / 4)  # the largest number plus less than that rounds to itself


def _traced(call: AttentionCall) -> Tensor:
    """The kernels that a graph can hold: no decision hangs on a number in a tensor."""
    masks = conjuncts(call.mask)
    plain = call.softcap is None and call.sinks is None
    if all(isinstance(mask, Band) for mask in masks):
        within = band_limits(masks, call.queries, call.keys)
        full, causal = is_full_or_causal(within, call.queries, call.keys)
        if plain and (full or (causal and call.scale >= MIN_SCALE)):
            return fused.run(call, full_block(call, causal=not full))
        nearest, farthest = within
        if plain and nearest is not None and call.bias is None and not call.dropout:
            somebody_sees = nearest < call.keys and -call.queries < farthest >= nearest
            if somebody_sees and 2 * (farthest - nearest + 1) <= call.keys:
                return band.run(call, within)
    block = full_block(call, mask=call.mask)
    if plain:
        return fused.run(call, block)
    drop = partial(F.dropout, p=call.dropout) if call.dropout else None
    return compute_steps(
        call.q,
        call.k,
        call.v,
        block.allowed,
        scale=call.scale,
        bias=call.bias_for(block),
        softcap=call.softcap,
        sinks=call.sinks,
        dropout=drop,
    ).output
