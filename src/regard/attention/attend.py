"""`attend`: the output of the definition, by a fast kernel and without its matrices."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
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
from regard.attention.kernels.schedule import single_block, tiles
from regard.attention.mask import Mask
from regard.attention.plan import HALF_PRECISION, KernelChoice, choose, is_plain
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
    """The output of `regard.steps`, by the kernel that suits the mask; `regard.plan` names the kernel and the reason.

    Time and memory follow the mask: they grow with the pairs in a window, the pairs in each packed document, or, for
    any other mask, the keys that some of 256 neighbouring queries may attend to. A mask or bias of every pair of a
    query and a key is in memory only up to a million pairs (2**20), or if the caller passes one.

    On a CPU, half precision is computed in float32, and output and gradients are rounded once.

    A query with nothing to attend to gets zeros. NaN or infinity in a query stays in its row, in a key in the rows
    that may attend to it; a blocked value must be finite, since 0 x NaN is NaN.

    In a graph (`torch.compile`, `torch.export`) no number of a tensor is known. There, full, causal, per-key and window
    masks keep their kernels, every other mask is a tensor of the graph, and NaN is treated as by PyTorch's kernel. In
    transforms of `torch.func` (grad, vmap, jvp) the definition runs, with a memory of queries x keys. `regard.plan` is
    about calls outside both.

    Args:
        q: queries ``(..., heads, queries, d_key)``; the heads axis and all before it may be absent.
        k: keys ``(..., kv_heads, keys, d_key)``; kv_heads divides heads.
        v: values ``(..., kv_heads, keys, d_value)``.
        mask: who may attend, from `regard.mask`; None blocks nothing.
        scale: what the scores are multiplied by; 1 / sqrt(d_key) by default.
        bias: added to the scaled scores; a tensor that broadcasts to ``(..., heads, queries, keys)``, or a function of
            positions such as `regard.positions.ALiBi`, which needs no tensor of every pair.
        softcap: above 0; if given, scaled scores become softcap * tanh(scaled / softcap).
        sinks: one score per head, ``(heads,)``, that takes part in the softmax and has no value.
        dropout: probability that a weight becomes zero; the others are divided by 1 - dropout. It applies whenever it
            is above 0.

    Returns:
        ``(..., heads, queries, d_value)``, in the dtype of q.

    Raises:
        TypeError: a bare tensor as mask; dtypes that differ.
        ValueError: shapes or a mask that do not fit; a number out of its range. The message names them.
    """
    in_graph = torch.compiler.is_compiling()
    if not (in_graph or hook_state.hooks or torch._C._is_any_autocast_enabled()):
        output = _compute_plain(q, k, v, mask, scale, bias, softcap, sinks, dropout)
        if output is not None:
            return output
    autocast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    if autocast:  # by one rule for every kernel; PyTorch has one for some kernels only
        q, k, v, bias, sinks = (_autocast(t) for t in (q, k, v, bias, sinks))
    compute = _compute if in_graph or not hook_state.hooks else _compute_with_hooks
    with _disable_autocast() if autocast else nullcontext():
        return compute(q, k, v, mask, scale, bias, softcap, sinks, dropout, in_graph)


def _autocast(t: Any) -> Any:
    """A tensor in the dtype of autocast."""
    if not isinstance(t, Tensor) or t.dtype == torch.float64 or not t.is_floating_point():
        return t
    device = t.device.type
    return t.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else t


@contextmanager
def _disable_autocast() -> Iterator[None]:
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


def _compute_with_hooks(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, *arguments: Any) -> Tensor:
    with disable_hooks() as hooks:
        output = _compute_plain(q, k, v, mask, *arguments[:5])
        if output is None:
            output = _compute(q, k, v, mask, *arguments)
    options = dict(zip(("scale", "bias", "softcap", "sinks", "dropout"), arguments, strict=False))
    for hook in hooks:
        replaced = hook(q, k, v, mask, **options, output=output)
        output = output if replaced is None else replaced
    return output


def _compute_plain(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, *options: Any) -> Tensor | None:
    """The output of the most common calls, with as little as possible around the kernel; None for any other call."""
    if not is_plain(q, k, v, mask, *options):
        return None
    # The queries are the last positions: a single one attends to every key.
    causal = mask is not None and q.shape[2] > 1
    if not q.is_cpu:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])
    output: Tensor
    output, lse = flash.forward(q, k, v, 0.0, causal)
    return output if _is_sound(lse) else None


def _compute(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | None,
    scale: float | int | None,
    bias: Tensor | PositionBias | None,
    softcap: float | int | None,
    sinks: Tensor | None,
    dropout: float | int,
    in_graph: bool,
) -> Tensor:
    """The output: validate the arguments, choose a kernel, run it."""
    # The kernels have no rule for vmap, nor for forward derivatives.
    in_transform = torch._C._are_functorch_transforms_active()
    # PyTorch's kernels add up the gradients of keys and values in q's dtype, a term for each block of rows and each
    # head of a group: in bfloat16 off by 2 % where one rounding is 0.3 %. Few CPUs multiply it faster than float32.
    widen = isinstance(q, Tensor) and q.dtype in HALF_PRECISION and q.device.type == "cpu" and not in_graph
    validate(q, k, v, mask, scale=scale, bias=bias, softcap=softcap, sinks=sinks, dropout=dropout)
    if widen:
        bias = bias.float() if isinstance(bias, Tensor) else bias
        sinks = None if sinks is None else sinks.float()
        wide = q.float(), k.float(), v.float()
        return _compute(*wide, mask, scale, bias, softcap, sinks, dropout, in_graph).to(q.dtype)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    call = AttentionCall.from_inputs(
        q, k, v, mask, scale=scale, bias=bias, softcap=softcap, sinks=sinks, dropout=dropout
    )
    if in_transform:
        output = chunked.run_whole(call, partial(single_block, keys=mask))
    else:
        output = _run(call, choose(call, in_graph=in_graph), in_graph=in_graph)
    return output.reshape(*q.shape[:-1], v.shape[-1])


def _run(call: AttentionCall, choice: KernelChoice, *, in_graph: bool) -> Tensor:
    """The output by the chosen kernel; rows that the fused CPU kernel may damage are computed by the definition."""
    if choice.kernel == "chunked":
        return chunked.run(call, choice.schedule)
    if choice.kernel == "flex":
        return flex.run(call)
    if choice.kernel == "varlen":
        return flex.documents(call)
    if choice.kernel == "unfold":
        return band.run(call)
    if choice.kernel == "definition":
        return chunked.run_whole(call, choice.schedule)
    if choice.kernel in ("fused", "dense") and call.sinks is None:
        (block,) = choice.schedule(call)
        if in_graph or call.q.device.type != "cpu":
            return fused.run(call, block)
        output, lse = fused.run_on_cpu(call, block)
    else:
        output, lse = flash.run(call, choice.schedule)
    if _is_sound(lse):
        return output
    # Rows with nothing to attend to, a sum of exactly 1, or numbers that are not finite. For the last, the kernel gives
    # NaN or zeros, depending on the CPU: their batch rows are computed by the definition.
    damaged = ~_is_sound_row(lse) & ~_has_finite_scores(call)
    if not bool(damaged.any()):
        return output
    return torch.where(damaged[:, None, None, None], chunked.run(call, tiles), output)


def _is_sound(lse: Tensor) -> bool:
    """Whether every lse is finite and not 0; the kernel gives 0 for a row whose largest score it took for -inf."""
    lse = lse.detach() if lse.requires_grad else lse
    # 0 / 0 and inf / inf are NaN, which equals nothing, not even itself. On short sequences every operation counts.
    ones = lse.div(lse)
    return torch.equal(ones, ones)


def _is_sound_row(lse: Tensor) -> Tensor:
    """`_is_sound` for each batch row."""
    sizes = lse.abs().flatten(1)
    return (sizes.amin(1) > 0) & (sizes.amax(1) < torch.inf)


def _has_finite_scores(call: AttentionCall) -> Tensor:
    """For each batch row, whether no score can leave the range of the dtype that scores are computed in."""
    size_q, size_k = (t.detach().double().abs().flatten(1).amax(1) for t in (call.q, call.k))
    largest = size_q * size_k * call.q.shape[-1] * max(1.0, abs(call.scale))
    bias_tensors = (
        [call.bias] if isinstance(call.bias, Tensor) else call.bias.parameters() if call.bias is not None else []
    )
    for bias in bias_tensors:
        blocked = bias == -torch.inf
        largest = largest + bias.detach().double().masked_fill(blocked, 0.0).abs().amax()
    computed = torch.finfo(torch.promote_types(call.q.dtype, torch.float32))
    return largest < computed.max * (1 + computed.eps / 4)  # the largest number plus less than that rounds to itself
