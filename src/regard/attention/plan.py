"""Which kernel computes an attention, and why."""

from __future__ import annotations

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
from regard.attention.kernels.schedule import (
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
from regard.attention.mask.kinds import Allowed, Band, Padding
from regard.attention.validation import validate

MAX_DENSE_PAIRS = 2**20
"""Up to this many pairs of a query and a key, a mask or bias of every pair may stand in memory."""

MIN_SCALE = torch.finfo(torch.float32).tiny
"""The smallest scale that the fused kernel takes. With its flag for causal, PyTorch 2.13's CPU kernel multiplies its
own -inf by the scale, in float32: NaN for a scale that is 0 there, or below."""


@dataclass(frozen=True)
class Plan:
    """How `regard.attend` computes one attention; ``str(plan)`` is one line."""

    kernel: str
    """``fused`` (everything at once, by the fused kernel's flags), ``dense`` (the same with a mask of every pair),
    ``bands`` (blocks of rows against the keys they reach), ``packed`` (document by document), ``tiles`` (blocks of rows
    against the tiles that are not empty), ``chunked`` (the definition, some rows at a time); on a GPU also ``flex`` and
    ``varlen``."""
    reason: str
    """Why this one."""
    flops: int
    """Floating-point operations of the forward pass: a multiplication and an addition count as two."""
    peak_bytes: int
    """An estimate of what the forward pass allocates at its peak, the output included."""

    def __str__(self) -> str:
        return f"{self.kernel}: {self.reason}; {_scaled(self.flops)}FLOP, {_scaled(self.peak_bytes)}B"


@dataclass(frozen=True)
class KernelChoice:
    """A kernel, and the schedule it runs where it runs one."""

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
    """What `regard.attend` would do with these arguments, without doing it.

    A mask that is a function, or a tensor, is evaluated tile by tile to count what is left of the square.

    Args:
        q: as in `regard.attend`, and so is everything else.
        k: see `regard.attend`.
        v: see `regard.attend`.
        mask: see `regard.attend`.
        scale: see `regard.attend`.
        bias: see `regard.attend`.
        softcap: see `regard.attend`.
        sinks: see `regard.attend`.
        dropout: see `regard.attend`.

    Returns:
        `Plan`: the kernel, the reason, the operations and the peak of memory.

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
        working = max(working, _working(call, block, choice.kernel))
    size = call.q.element_size()
    kept = batch * heads * call.queries * (call.v.shape[-1] * size + max(4, size))
    return Plan(choice.kernel, choice.reason, 2 * heads * widths * pairs, kept + working)


def choose(call: AttentionCall) -> KernelChoice:
    """The kernel and the schedule for a call: the mask picks one, the options and the device may need another."""
    if 0 in (call.q.numel(), call.k.numel(), call.v.numel()):
        return KernelChoice("chunked", "there is nothing to compute", single_block)
    by_mask = _by_mask(call)
    if call.q.device.type != "cpu":
        return _on_a_gpu(call, by_mask)
    asks = " and ".join(_beyond_the_kernel(call))
    if asks:
        return KernelChoice("chunked", f"the fused kernel has no {asks}; {by_mask.reason}", by_mask.schedule)
    return by_mask


def _by_mask(call: AttentionCall) -> KernelChoice:
    """The kernel that the mask wants."""
    square = call.queries * call.keys
    fits = square <= MAX_DENSE_PAIRS
    masks = conjuncts(call.mask)
    near = [mask for mask in masks if isinstance(mask, Band)]
    others = [mask for mask in masks if not isinstance(mask, Band)]
    within = band_limits(near, call.queries, call.keys)
    full, causal = is_full_or_causal(within, call.queries, call.keys)

    if (full or causal) and all(_same_for_every_query(mask) for mask in others):
        keys = reduce(and_, others) if others else None
        says = [f"{call.mask!r} lets everybody attend to everything" if near and full else ""]
        says += [f"{keys!r} is one row for all queries" if others else "", "its flag for causal" if not full else ""]
        reason = " and ".join(part for part in says if part) or "everybody attends to everything"
        # A bias that is no tensor would become one of every pair, and so would one beside a mask.
        if fits or call.bias is None or (isinstance(call.bias, Tensor) and keys is None):
            return KernelChoice("fused", reason, partial(single_block, causal=not full, keys=keys))
        return KernelChoice("tiles", f"{reason}, but a bias of every pair beside it is too much to keep", tiles)
    if not others:
        pairs = _pairs(within, call.queries, call.keys)
        if not fits or 2 * pairs <= square:
            return KernelChoice("bands", f"{call.mask!r} leaves {pairs:,} of {square:,} pairs", bands)
    about = others[0] if len(others) == 1 else None
    if isinstance(about, Documents) and (about.keys is not None or call.queries == call.keys):
        found = about.runs()
        lying = [runs for runs in found if runs is not None]
        # Where each batch row has ids of its own, its kernel does not hang on how those of another lie.
        if len(lying) == len(found) or about.batch_size is not None:
            rest = (
                "" if len(lying) == len(found) else f"; {len(found) - len(lying)} batch rows are mixed, and go by tiles"
            )
            count = sum(run.num_documents for runs in lying for run in runs)
            return KernelChoice("packed", f"{count:,} documents, each in one piece{rest}", documents)
    if fits:
        return KernelChoice("dense", f"a mask of {square:,} pairs is small", partial(single_block, keys=call.mask))
    return KernelChoice("tiles", f"{call.mask!r} says tile by tile where anybody may attend", tiles)


def _beyond_the_kernel(call: AttentionCall) -> Iterator[str]:
    """What was asked for that the fused kernel cannot do on the CPU."""
    if call.softcap is not None:
        yield f"softcap={call.softcap:g}"
    if call.dropout:
        yield f"dropout={call.dropout:g}"
    if call.scale < MIN_SCALE:
        yield f"scale={call.scale:g}"
    if _learns(call.bias):
        yield "gradient of a bias"


def _learns(bias: Tensor | PositionBias | None) -> bool:
    learned = [bias] if isinstance(bias, Tensor) else bias.parameters() if bias is not None else []
    return torch.is_grad_enabled() and any(t.requires_grad for t in learned)


def _on_a_gpu(call: AttentionCall, by_mask: KernelChoice) -> KernelChoice:
    plain = call.softcap is None and call.sinks is None
    square = call.queries * call.keys
    # PyTorch's public function takes the flag for causal or a mask, not both: together they become a square.
    flag_and_mask = isinstance(call.mask, And) and by_mask.kernel == "fused"
    if plain and by_mask.kernel in ("fused", "dense") and not (flag_and_mask and square > MAX_DENSE_PAIRS):
        return by_mask
    if call.bias is not None or call.dropout or call.q.dtype == torch.float64:
        return KernelChoice("chunked", f"no kernel for what stands beside this: {by_mask.reason}", by_mask.schedule)
    half = call.q.dtype in (torch.float16, torch.bfloat16)
    if plain and half and by_mask.kernel == "packed" and _varlen_takes(call):
        return KernelChoice("varlen", by_mask.reason, by_mask.schedule)
    return KernelChoice("flex", by_mask.reason, by_mask.schedule)


def _varlen_takes(call: AttentionCall) -> bool:
    """Whether documents lie in one piece each, and what a token sees in its own includes itself."""
    (about,) = (mask for mask in conjuncts(call.mask) if isinstance(mask, Documents))
    near = [mask for mask in conjuncts(call.mask) if mask is not about]
    nearest, farthest = band_limits(near, call.queries, call.keys)
    lying = about.keys is None and all(runs is not None for runs in about.runs())
    return lying and (nearest is None or nearest <= 0) and farthest >= 0


def is_full_or_causal(within: BandLimits, queries: int, keys: int) -> tuple[bool, bool]:
    """Whether a reach leaves every key to every query, and whether it is what the kernel's flag for causal says."""
    nearest, farthest = within
    from_the_first = nearest is None or nearest <= 1 - queries
    return from_the_first and farthest >= keys - 1, from_the_first and farthest == 0


def _same_for_every_query(mask: Mask) -> bool:
    if isinstance(mask, Combined):
        return _same_for_every_query(mask.left) and _same_for_every_query(mask.right)
    if isinstance(mask, Not):
        return _same_for_every_query(mask.other)
    return isinstance(mask, Padding) or (isinstance(mask, Allowed) and mask.tensor.shape[-2] == 1)


def _pairs(within: BandLimits, queries: int, keys: int) -> int:
    """How many pairs a reach leaves."""
    nearest, farthest = within
    query = torch.arange(queries, device="cpu")
    first = torch.zeros_like(query) if nearest is None else (query + nearest).clamp(0, keys)
    return int(((query + farthest + 1).clamp(0, keys) - first).clamp(min=0).sum())


def _working(call: AttentionCall, block: ScoreBlock, kernel: str) -> int:
    """Bytes that stand in memory while one block is computed."""
    block = next(split_stack(call, block)) if kernel == "chunked" else block
    size = call.q.element_size()
    batch, heads = call.q.shape[:2] if block.batch is None else (block.num_stacked, call.q.shape[1])
    d_key, d_value = call.q.shape[-1], call.v.shape[-1]
    copied = 0
    if isinstance(block.keys, Tensor) or d_key != d_value:
        copied = batch * call.k.shape[1] * block.columns * 2 * max(d_key, d_value) * size
    if kernel == "chunked":
        rows = min(block.rows[1] - block.rows[0], chunk_height(call, block))
        # Scores, scaled, masked, weights and what the softmax needs on the way.
        return copied + 6 * max(4, size) * batch * heads * rows * block.columns
    rows = block.rows[1] - block.rows[0]
    wide = isinstance(call.bias, PositionBias) or (call.bias is not None and block.allowed is not None)
    biased = (
        (batch if len(call.v) > 1 or block.num_stacked > 1 else 1) * heads * rows * block.columns * size if wide else 0
    )
    # A mask is a byte a pair, the numbers that are added as many as one holds, and positions beside them while a
    # function is evaluated.
    masked = block.allowed.numel() * (1 + size) if block.allowed is not None else 0
    evaluated = rows * call.keys * 10 if kernel == "tiles" and block.allowed is not None else 0
    return copied + biased + masked + evaluated


def _scaled(number: float | int) -> str:
    prefixes = iter(("", "K", "M", "G", "T", "P", "E"))
    prefix = next(prefixes)
    while number >= 1000:
        number, prefix = number / 1000, next(prefixes)
    return f"{number:.3g} {prefix}"
