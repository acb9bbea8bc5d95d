"""The keys of two calls of a module compared: whether they are the same, in which places, and in which memory."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from regard.lens.capture.call import CapturedCall

ROUNDING = 16
"""By how many units in the last place of their largest number keys may differ that are computed anew in each call."""


def match_rows(k: Tensor, former: Tensor) -> tuple[bool, Tensor | None]:
    """Whether the first keys are the former ones, and which batch row each row was; None if none changed its place."""
    k = k[:, :, : former.shape[2]]
    if torch.equal(k, former):
        return True, None
    if len(k) == 1:
        return False, None
    # Of equal rows the one in its old place is taken.
    sums, former_sums = (t.double().sum((1, 2, 3)) for t in (k, former))
    same = (sums[:, None] == former_sums).double() + torch.eye(len(k), device=k.device) / 2
    order = same.argmax(-1)
    return torch.equal(k, former[order]), order


def are_computed_anew(k: Tensor, former: Tensor) -> bool:
    """Whether the first keys are the former ones but for rounding.

    A cache of latents (DeepSeek-V2, arXiv:2405.04434, equation 10) holds no keys: each call multiplies all latents
    again, and a product of another height may add up in another order.
    """
    difference = (k[:, :, : former.shape[2]] - former).abs().amax()
    return bool(difference <= ROUNDING * torch.finfo(k.dtype).eps * former.abs().amax())


def is_same_place(k: Tensor, former: Tensor) -> bool:
    """Whether the keys begin at the same place in memory."""
    place, former_place = ((t.data_ptr(), t.stride(), t.shape[:2]) for t in (k, former))
    return place == former_place


def once_per_group(call: CapturedCall, num_heads: int) -> CapturedCall:
    """The call with so many heads of keys, if it repeats each for the heads of a group."""
    times, rest = divmod(call.k.shape[1], num_heads)
    if times < 2 or rest:
        return call
    k, v = (t[:, ::times] for t in (call.k, call.v))
    is_repeated = all(torch.equal(t, few.repeat_interleave(times, 1)) for t, few in ((call.k, k), (call.v, v)))
    return replace(call, k=k, v=v) if is_repeated else call


def checksums(k: Tensor) -> Tensor:
    """(batch, keys): one number per key, which shows whether the key was changed."""
    return k.sum((1, 3))


def may_grow_in_place(call: CapturedCall) -> bool:
    """Whether the memory behind these keys may receive more keys."""
    k = call.k
    return call.project is None and (call.shape[2] < k.shape[2] or k.stride(1) > k.shape[2] * k.stride(2))
