"""The mask tensors of ``nn.MultiheadAttention``, read as a `Mask` and a bias."""

from __future__ import annotations

from functools import reduce
from operator import add, and_

import torch
from torch import Tensor

from regard._shapes import Bool
from regard.attention import mask as masks
from regard.attention.mask import Mask


def read_masks(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, *, num_heads: int, extra_keys: int, dtype: torch.dtype
) -> tuple[Mask | None, Tensor | None]:
    """The two masks as one `Mask` and one bias; each is None where nothing is left for it.

    A tensor of numbers is added to the scores. Where it is -inf, it is a mask; where its other numbers are all 0, it is
    nothing else. A mask of queries x keys that is causal or a window is found to be one, so that the blocked pairs are
    not computed. In a graph (`torch.compile`) and in transforms of `torch.func` no number of a tensor is known:
    booleans are a mask there, and numbers are a bias.

    Args:
        attn_mask: ``(queries, keys)`` or ``(batch * num_heads, queries, keys)``; True = may NOT attend.
        key_padding_mask: ``(batch, keys)``; True = may NOT be attended to.
        num_heads: the number of heads.
        extra_keys: how many keys follow those of the masks; every query may attend to them.
        dtype: of the bias.
    """
    parts = []
    if attn_mask is not None:
        parts.append(attn_mask.view(-1, num_heads, *attn_mask.shape[1:]) if attn_mask.ndim == 3 else attn_mask)
    if key_padding_mask is not None:
        parts.append(key_padding_mask[:, None, None, :])
    found: list[Mask] = []
    biases: list[Tensor] = []
    for part in parts:
        allowed, bias = _split(torch.nn.functional.pad(part, (0, extra_keys)) if extra_keys else part)
        if allowed is not None:
            mask = _structured(allowed)
            found += [] if mask is None else [mask]
        if bias is not None:
            biases.append(bias.to(dtype))
    return reduce(and_, found) if found else None, reduce(add, biases) if biases else None


def _split(t: Tensor) -> tuple[Bool[Tensor, "..."] | None, Tensor | None]:
    """What a mask tensor allows, and what it adds to the scores."""
    if t.dtype == torch.bool:
        return ~t, None
    if not numbers_are_known():
        return None, t
    allowed = t != -torch.inf
    # A mask that learns is a bias: its gradient is one number a pair.
    return allowed, None if not t.requires_grad and torch.equal(t == 0, allowed) else t


def numbers_are_known() -> bool:
    """Whether the numbers of a tensor can be read: not in a graph, nor in a transform of `torch.func`."""
    return not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active()


def _structured(allowed: Bool[Tensor, "... queries keys"]) -> Mask | None:
    """The mask of a tensor, True = may attend: None if it blocks nothing, a band if it is one."""
    if not numbers_are_known():
        return masks.allowed(allowed)
    if bool(allowed.all()):
        return None
    band = find_band(allowed) if allowed.ndim == 2 else None
    return masks.allowed(allowed) if band is None else band


def find_band(allowed: Bool[Tensor, "queries keys"]) -> Mask | None:
    """The `mask.causal` or `mask.window` that a tensor is, or None.

    Args:
        allowed: ``(queries, keys)``, True = may attend.
    """
    queries, keys = allowed.shape
    first_row, last_row = allowed[0].nonzero(), allowed[-1].nonzero()
    if not (len(first_row) and len(last_row)):
        return None
    # The limits on key - query: the first row shows the later one, the last row the earlier one, or none.
    last_of_first, first_of_last = int(first_row[-1]), int(last_row[0])
    farthest = last_of_first
    nearest = first_of_last - (queries - 1) if first_of_last else 1 - queries
    if farthest < nearest or int(allowed.count_nonzero()) != _count(queries, keys, nearest, farthest):
        return None
    if not torch.equal(allowed.tril(farthest).triu(nearest), allowed):
        return None
    if nearest == 1 - queries:
        return masks.causal(offset=farthest)
    return masks.window(farthest - nearest + 1, offset=farthest)


def _count(queries: int, keys: int, nearest: int, farthest: int) -> int:
    """How many pairs have a key - query between two limits."""
    query = torch.arange(queries, device="cpu")
    ends, starts = (query + farthest + 1).clamp(0, keys), (query + nearest).clamp(0, keys)
    return int((ends - starts).clamp(min=0).sum())
