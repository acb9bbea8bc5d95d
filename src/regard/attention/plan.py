"""The choice of the kernel that computes an attention, and the reason."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial, reduce
from operator import and_

import torch
from torch import Tensor

from regard._shapes import Float
from regard.attention.bias import PositionBias
from regard.attention.kernels.call import AttentionCall
from regard.attention.kernels.chunked import chunk_height, split_stack
from regard.attention.kernels.flex import varlen_options
from regard.attention.kernels.schedule import (
    TILE_ROWS,
    BandLimits,
    Schedule,
    band_limits,
    bands,
    conjuncts,
    documents,
    single_block,
    tiles,
)
from regard.attention.kernels.score_block import ScoreBlock
from regard.attention.mask.base import And, Combined, Mask, Not
from regard.attention.mask.documents import Documents
from regard.attention.mask.kinds import Allowed, Band, First, Padding
from regard.attention.validation import validate
from regard.notebook import preformatted

MAX_DENSE_PAIRS = 2**20
"""Up to this many pairs of a query and a key, a mask or bias of every pair may be in memory."""

HALF_PRECISION = (torch.bfloat16, torch.float16)
"""Dtypes that GPU kernels multiply as they are; on a CPU they are widened to float32."""

MIN_SCALE = torch.finfo(torch.float32).tiny
"""The smallest scale that the fused kernel takes. With its causal flag, PyTorch 2.13's CPU kernel multiplies its own
-inf by the scale in float32, which gives NaN for a scale that is 0 there or negative."""


@dataclass(frozen=True)
class Plan:
    """How `regard.attend` computes one attention; ``str(plan)`` is one line."""

    kernel: str
    """``fused`` (all pairs in one call of the fused kernel, with its flags), ``dense`` (the same with a mask of every
    pair), ``bands`` (blocks of rows against the keys of a window), ``packed`` (document by document), ``tiles`` (blocks
    of rows against the tiles that are not empty), ``chunked`` (the definition, some rows at a time); on a GPU also
    ``flex`` and ``varlen``."""
    reason: str
    """Why this kernel."""
    flops: int
    """Floating-point operations of the forward pass: a multiplication and an addition count as two."""
    peak_bytes: int
    """An estimate of the peak memory that the forward pass allocates, with the output."""

    def _repr_html_(self) -> str:
        return preformatted(str(self))

    def __str__(self) -> str:
        return f"{self.kernel}: {self.reason}; {_with_prefix(self.flops)}FLOP, {_with_prefix(self.peak_bytes)}B"


@dataclass(frozen=True)
class KernelChoice:
    """A kernel, the reason, and the blocks that it computes."""

    kernel: str
    reason: str
    schedule: Schedule


def plan(
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
) -> Plan:
    """The kernel of `regard.attend` for these arguments, and its cost, without computing the attention.

    A mask that is a function or a tensor is evaluated tile by tile to count the pairs that may attend.

    Args:
        q: as in `regard.attend`, and so are all other arguments.
        k: see `regard.attend`.
        v: see `regard.attend`.
        mask: see `regard.attend`.
        scale: see `regard.attend`.
        bias: see `regard.attend`.
        softcap: see `regard.attend`.
        sinks: see `regard.attend`.
        dropout: see `regard.attend`.

    Returns:
        `Plan`: the kernel, the reason, the operations and the peak memory.

    Raises:
        TypeError: as `regard.attend` does.
        ValueError: as `regard.attend` does.
    """
    validate(q, k, v, mask, scale=scale, bias=bias, softcap=softcap, sinks=sinks, dropout=dropout)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    call = AttentionCall.from_inputs(
        q, k, v, mask, scale=scale, bias=bias, softcap=softcap, sinks=sinks, dropout=dropout
    )
    choice = choose(call)
    batch, heads = call.q.shape[:2]
    widths = call.q.shape[-1] + call.v.shape[-1]
    pairs = working = 0
    for block in choice.schedule(call):
        pairs += block.pairs * (batch if block.batch is None else 1)
        working = max(working, _working_bytes(call, block, choice.kernel))
    size = call.q.element_size()
    output_bytes = batch * heads * call.queries * (call.v.shape[-1] * size + max(4, size))
    return Plan(choice.kernel, choice.reason, 2 * heads * widths * pairs, output_bytes + working)


def is_plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | None,
    scale: float | int | None,
    bias: Tensor | PositionBias | None,
    softcap: float | int | None,
    sinks: Tensor | None,
    dropout: float | int,
) -> bool:
    """Whether a call outside a graph and autocast is the most common one: it needs neither validation nor `choose`.

    It is a full or causal attention without options and transforms, of tensors that fit the fused kernel as they are:
    float32 or float64, on a GPU also half precision. On short sequences, validation takes as long as the attention.
    """
    if not (scale is None and bias is None and softcap is None and sinks is None and dropout == 0):
        return False
    causal = mask is not None
    if causal and not (type(mask) is Band and mask.before is None and not mask.after and mask.offset is None):
        return False
    try:
        shape, key_shape, dtype = q.shape, k.shape, q.dtype
        return (
            (dtype is torch.float32 or dtype is torch.float64 or (q.is_cuda and dtype in HALF_PRECISION))
            and k.dtype is dtype
            and v.dtype is dtype
            and key_shape == v.shape
            and len(shape) == 4
            and (key_shape == shape or _key_shape_fits(shape, key_shape, causal))
            and 0 not in shape
            and 0 not in key_shape
            and ((q.is_cpu and k.is_cpu and v.is_cpu) or (q.is_cuda and q.device == k.device == v.device))
            and q.stride(3) == k.stride(3) == v.stride(3) == 1
            and not torch._C._are_functorch_transforms_active()
        )
    except AttributeError:
        return False  # not a tensor: `validate` names it


def _key_shape_fits(q: torch.Size, k: torch.Size, causal: bool) -> bool:
    """Whether queries and keys of different shapes fit one another, and the kernel's causal flag."""
    batch, heads, queries, width = q
    return batch == k[0] and not (k[1] == 0 or heads % k[1]) and width == k[3] and (queries in (1, k[2]) or not causal)


def choose(call: AttentionCall, *, in_graph: bool = False) -> KernelChoice:
    """The kernel and the schedule of a call: the mask decides first, then the options and the device.

    Args:
        call: the attention.
        in_graph: whether the call becomes part of a graph (`torch.compile`, `torch.export`).
    """
    if in_graph:
        return _for_graph(call)
    if 0 in (call.q.numel(), call.k.numel(), call.v.numel()):
        return KernelChoice("chunked", "there is nothing to compute", single_block)
    by_mask = _by_mask(call)
    if call.q.device.type != "cpu":
        return _on_a_gpu(call, by_mask)
    unsupported = " and ".join(_unsupported_options(call))
    if unsupported:
        return KernelChoice("chunked", f"the fused kernel has no {unsupported}; {by_mask.reason}", by_mask.schedule)
    return by_mask


def _for_graph(call: AttentionCall) -> KernelChoice:
    """A kernel that a graph can contain: the choice depends on no number in a tensor.

    Beside the kernels of `Plan` there are ``unfold`` (a narrow window, by one call of the fused kernel on overlapping
    blocks) and ``definition`` (every pair at once).
    """
    if call.softcap is not None or call.sinks is not None:
        reason = "the fused kernel has no softcap and no sinks"
        return KernelChoice("definition", reason, partial(single_block, keys=call.mask))
    masks = conjuncts(call.mask)
    if all(isinstance(mask, Band) for mask in masks):
        limits = band_limits(masks, call.queries, call.keys)
        full, causal = _is_full_or_causal(limits, call.queries, call.keys)
        if full or (causal and call.scale >= MIN_SCALE):
            return KernelChoice("fused", "full, or the causal flag", partial(single_block, causal=not full))
        nearest, farthest = limits
        if nearest is not None and call.bias is None and not call.dropout:
            not_empty = nearest < call.keys and -call.queries < farthest >= nearest
            if not_empty and 2 * (farthest - nearest + 1) <= call.keys:
                return KernelChoice("unfold", "a narrow window", bands)
    return KernelChoice("dense", "any other mask is a tensor of the graph", partial(single_block, keys=call.mask))


def _by_mask(call: AttentionCall) -> KernelChoice:
    """The kernel that suits the mask."""
    square = call.queries * call.keys
    fits = square <= MAX_DENSE_PAIRS
    masks = conjuncts(call.mask)
    band_masks = [mask for mask in masks if isinstance(mask, Band)]
    others = [mask for mask in masks if not isinstance(mask, Band)]
    limits = band_limits(band_masks, call.queries, call.keys)
    full, causal = _is_full_or_causal(limits, call.queries, call.keys)

    if (full or causal) and all(_same_for_every_query(mask) for mask in others):
        keys = reduce(and_, others) if others else None
        parts = [f"{call.mask!r} blocks nothing" if band_masks and full else ""]
        parts += [f"{keys!r} is the same for all queries" if others else "", "the causal flag" if not full else ""]
        reason = " and ".join(part for part in parts if part) or "no mask"
        # A bias by position becomes a tensor of every pair, and so does a bias tensor together with a mask.
        if fits or call.bias is None or (isinstance(call.bias, Tensor) and keys is None):
            return KernelChoice("fused", reason, partial(single_block, causal=not full, keys=keys))
        return KernelChoice("tiles", f"{reason}, but a bias of every pair is too large", tiles)
    if not others:
        pairs = _count_pairs(limits, call.queries, call.keys)
        if not fits or 2 * pairs <= square:
            return KernelChoice("bands", f"{call.mask!r} leaves {pairs:,} of {square:,} pairs", bands)
    packed = others[0] if len(others) == 1 else None
    if isinstance(packed, Documents) and (packed.keys is not None or call.queries == call.keys):
        all_runs = packed.runs()
        in_one_piece = [runs for runs in all_runs if runs is not None]
        # Where each batch row has its own ids, its kernel does not depend on those of other rows.
        num_mixed = len(all_runs) - len(in_one_piece)
        if not num_mixed or packed.batch_size is not None:
            mixed = f"; {num_mixed} batch rows are mixed, and go by tiles" if num_mixed else ""
            count = sum(run.num_documents for runs in in_one_piece for run in runs)
            return KernelChoice("packed", f"{count:,} documents, each in one piece{mixed}", documents)
    if fits:
        return KernelChoice("dense", f"a mask of {square:,} pairs is small", partial(single_block, keys=call.mask))
    return KernelChoice("tiles", f"{call.mask!r} is evaluated tile by tile", tiles)


def _unsupported_options(call: AttentionCall) -> Iterator[str]:
    """The options that the fused kernel does not have on the CPU."""
    if call.softcap is not None:
        yield f"softcap={call.softcap:g}"
    if call.dropout:
        yield f"dropout={call.dropout:g}"
    if call.scale < MIN_SCALE:
        yield f"scale={call.scale:g}"
    if _needs_gradient(call.bias):
        yield "gradient of a bias"


def _needs_gradient(bias: Tensor | PositionBias | None) -> bool:
    tensors = [bias] if isinstance(bias, Tensor) else bias.parameters() if bias is not None else []
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _on_a_gpu(call: AttentionCall, by_mask: KernelChoice) -> KernelChoice:
    has_kernel_options = call.softcap is None and call.sinks is None
    square = call.queries * call.keys
    fits = square <= MAX_DENSE_PAIRS
    # PyTorch's public function takes the causal flag or a mask, not both: together they become a mask of every pair.
    flag_and_mask = isinstance(call.mask, And) and by_mask.kernel == "fused"
    if has_kernel_options and by_mask.kernel in ("fused", "dense") and (fits or not flag_and_mask):
        return by_mask
    if call.bias is not None or call.dropout or call.q.dtype == torch.float64:
        return KernelChoice("chunked", f"no GPU kernel has these options: {by_mask.reason}", by_mask.schedule)
    half = call.q.dtype in HALF_PRECISION
    if has_kernel_options and half and by_mask.kernel == "packed" and _fits_varlen(call):
        return KernelChoice("varlen", by_mask.reason, by_mask.schedule)
    if not fits:
        return KernelChoice("flex", by_mask.reason, by_mask.schedule)
    # FlexAttention is compiled, for seconds, and reads the mask tile by tile: more than few pairs take.
    if has_kernel_options:
        return KernelChoice("dense", f"a mask of {square:,} pairs is small", partial(single_block, keys=call.mask))
    return KernelChoice("chunked", f"softcap or sinks, and {square:,} pairs are few", by_mask.schedule)


def _fits_varlen(call: AttentionCall) -> bool:
    """Whether each document is in one piece, and each token may attend to itself."""
    if not {"scale", "window_size"} <= varlen_options():
        return False
    (packed,) = (mask for mask in conjuncts(call.mask) if isinstance(mask, Documents))
    band_masks = [mask for mask in conjuncts(call.mask) if mask is not packed]
    nearest, farthest = band_limits(band_masks, call.queries, call.keys)
    in_one_piece = packed.keys is None and all(runs is not None for runs in packed.runs())
    return in_one_piece and (nearest is None or nearest <= 0) and farthest >= 0


def _is_full_or_causal(limits: BandLimits, queries: int, keys: int) -> tuple[bool, bool]:
    """Whether the limits block nothing, and whether they are those of the kernel's causal flag."""
    nearest, farthest = limits
    from_first_key = nearest is None or nearest <= 1 - queries
    return from_first_key and farthest >= keys - 1, from_first_key and farthest == 0


def _same_for_every_query(mask: Mask) -> bool:
    if isinstance(mask, Combined):
        return _same_for_every_query(mask.left) and _same_for_every_query(mask.right)
    if isinstance(mask, Not):
        return _same_for_every_query(mask.other)
    return isinstance(mask, Padding | First) or (isinstance(mask, Allowed) and mask.tensor.shape[-2] == 1)


def _count_pairs(limits: BandLimits, queries: int, keys: int) -> int:
    """How many pairs the limits allow."""
    nearest, farthest = limits
    query = torch.arange(queries, device="cpu")
    first = torch.zeros_like(query) if nearest is None else (query + nearest).clamp(0, keys)
    return int(((query + farthest + 1).clamp(0, keys) - first).clamp(min=0).sum())


def _working_bytes(call: AttentionCall, block: ScoreBlock, kernel: str) -> int:
    """The bytes in memory while one block is computed."""
    block = next(split_stack(call, block)) if kernel == "chunked" else block
    size = call.q.element_size()
    batch, heads = call.q.shape[:2] if block.batch is None else (block.num_stacked, call.q.shape[1])
    d_key, d_value = call.q.shape[-1], call.v.shape[-1]
    copied = 0
    if isinstance(block.keys, Tensor) or d_key != d_value:
        copied = batch * call.k.shape[1] * block.columns * 2 * max(d_key, d_value) * size
    if kernel == "chunked":
        rows = min(block.height, chunk_height(call, block))
        # Scores, scaled, masked, weights and the intermediate results of the softmax.
        return copied + 6 * max(4, size) * batch * heads * rows * block.columns
    rows = block.height
    if isinstance(block.rows, Tensor):
        copied += batch * heads * rows * 2 * max(d_key, d_value) * size
    bias_bytes = 0
    if isinstance(call.bias, PositionBias) or (call.bias is not None and block.allowed is not None):
        bias_rows = batch if len(call.v) > 1 or block.num_stacked > 1 else 1
        bias_bytes = bias_rows * heads * rows * block.columns * size
    # A mask has one byte a pair, the additive mask one number a pair; a function is evaluated on positions.
    mask_bytes = block.allowed.numel() * (1 + size) if block.allowed is not None else 0
    position_bytes = 0
    if kernel == "tiles" and (block.allowed is not None or isinstance(block.rows, Tensor)):
        position_bytes = TILE_ROWS * call.keys * 10
    return copied + bias_bytes + mask_bytes + position_bytes


def _with_prefix(number: float | int) -> str:
    prefixes = iter(("", "K", "M", "G", "T", "P", "E"))
    prefix = next(prefixes)
    while number >= 1000:
        number, prefix = number / 1000, next(prefixes)
    return f"{number:.3g} {prefix}"
