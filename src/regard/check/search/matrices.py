"""Weights of queries, keys and values as matrices (out, in): by head, packed in one, stored in either orientation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

__all__ = ["Roles", "StoredParameter", "matrices", "projections"]


@dataclass(frozen=True, eq=False)
class StoredParameter:
    """A parameter with two axes or more, or a bias."""

    path: str
    tensor: Tensor
    stored: str
    """"out-in" (torch.nn.Linear), "in-out" (Conv1D), or "raw"."""


Roles = dict[str, list[tuple[StoredParameter, StoredParameter | None]]]
"""For each role the weights that play it, one for each head where heads have their own, with their biases."""
Read = tuple[str, Tensor, Tensor | None]


def matrices(
    found: list[tuple[StoredParameter, StoredParameter | None]], into: int | None, heads: int, letter: str
) -> Iterator[Read]:
    """A role's weight as (out, in), with its bias; both orientations where it cannot be told which is stored.

    Args:
        found: the weights that play it, with their biases.
        into: the width of what it is multiplied with; None for any.
        heads: how many the attention has.
        letter: the role.
    """
    if len(found) > 1:
        if letter == "out":  # each head's output has its own: their sum is the concatenation, projected
            each = [read for one in found for read in islice(matrices([one], None, 1, letter), 1)]
            if len(each) < len(found) or len({len(matrix) for _, matrix, _ in each}) > 1:
                return  # of other things, as one that mixes heads
            biases = [bias for _, _, bias in each if bias is not None]
            yield (
                "by head",
                torch.cat([matrix for _, matrix, _ in each], 1),
                sum(biases[1:], biases[0]) if biases else None,
            )
            return
        several = [list(matrices([one], into, 1, letter)) for one in found]
        for which in zip(*several, strict=False):
            if len({matrix.shape[1] for _, matrix, _ in which}) > 1:
                continue
            biases = [bias for _, _, bias in which]
            whole = None if any(bias is None for bias in biases) else torch.cat([b for b in biases if b is not None])
            yield which[0][0] + " by head", torch.cat([matrix for _, matrix, _ in which]), whole
        return
    (weight, bias) = found[0]
    tensor = weight.tensor
    flat = None if bias is None else bias.tensor.reshape(-1)
    if tensor.ndim > 3:  # of a convolution over several axes, which is no matrix
        return
    if tensor.ndim == 3:
        yield from ((how, matrix, flat) for how, matrix in _by_head(tensor, into, heads, letter))
    elif weight.stored != "raw":
        yield weight.stored, tensor if weight.stored == "out-in" else tensor.t(), flat
    else:
        for how, matrix in (("in-out", tensor.t()), ("out-in", tensor)):
            if into is None or matrix.shape[1] == into:
                yield how, matrix, flat


def _by_head(tensor: Tensor, into: int | None, heads: int, letter: str) -> Iterator[tuple[str, Tensor]]:
    """(out, in) of weights that have an axis of their own for heads."""
    for at in range(3):
        if tensor.shape[at] != heads:
            continue
        rest = tensor.movedim(at, 0)
        for how, each in ((f"heads {at} in-out", rest.transpose(1, 2)), (f"heads {at} out-in", rest)):
            if letter == "out":  # each head's: (width, d_out) or (d_out, width)
                yield how, each.permute(1, 0, 2).reshape(each.shape[1], -1)
            elif into is None or each.shape[2] == into:
                yield how, each.reshape(-1, each.shape[2])


Three = tuple[Tensor, Tensor, Tensor]
Biases = tuple[Tensor | None, Tensor | None, Tensor | None]


def projections(
    roles: Roles, heads: int, width: int, context: int
) -> Iterator[tuple[str, Three, Biases, int, tuple[str, ...]]]:
    """q, k and v with their biases, the number of key heads, and what is unusual about how they are stored.

    Args:
        roles: the weights of each role.
        heads: how many the attention has.
        width: of what queries are made of.
        context: the width of what keys and values are made of.
    """
    if {"q", "k", "v"} <= set(roles):
        for a, q, bq in matrices(roles["q"], width, heads, "q"):
            for b, k, bk in matrices(roles["k"], context, heads, "k"):
                for c, v, bv in matrices(roles["v"], context, heads, "v"):
                    if (a == b == c) or q.shape != k.shape:
                        shared = heads if len(k) == len(q) else max(1, heads * len(k) // len(q))
                        yield f"{a}", (q, k, v), (bq, bk, bv), shared, ()
        return
    if {"q", "kv"} <= set(roles):
        for a, q, bq in matrices(roles["q"], width, heads, "q"):
            for how, kv, bkv in matrices(roles["kv"], context, heads, "kv"):
                for cut, says, (k, v) in _cut(kv, 2, heads):
                    biases = [None, None] if bkv is None else next(p for c, _, p in _cut(bkv, 2, heads) if c == cut)
                    yield f"{a} {how} {cut}", (q, k, v), (bq, biases[0], biases[1]), _shared(heads, q, k), says
        return
    for how, packed, bias in matrices(roles["qkv"], width, heads, "qkv"):
        for cut, says, (q, k, v) in _cut(packed, 3, heads):
            biases = [None] * 3 if bias is None else next(p for c, _, p in _cut(bias, 3, heads) if c == cut)
            yield f"{how} {cut}", (q, k, v), (biases[0], biases[1], biases[2]), heads, says
        each = len(packed) - width
        if 0 < each < 2 * width and each % 2 == 0 and width % heads == 0 and each // 2 % (width // heads) == 0:
            sizes = [width, each // 2, each // 2]
            q, k, v = torch.split(packed, sizes)
            biases = [None] * 3 if bias is None else list(torch.split(bias, sizes))
            yield f"{how} groups", (q, k, v), (biases[0], biases[1], biases[2]), _shared(heads, q, k), ()


def _shared(heads: int, q: Tensor, k: Tensor) -> int:
    return max(1, heads * len(k) // len(q))


def _cut(packed: Tensor, parts: int, heads: int) -> Iterator[tuple[str, tuple[str, ...], list[Tensor]]]:
    """Packed rows in as many parts: one after the other, by head, or by channel."""
    if len(packed) % parts:
        return
    said = "thirds: q, k and v" if parts == 3 else "halves: k and v"
    yield "thirds", (f"packed in {said}, one after the other",), list(packed.chunk(parts))
    if len(packed) % (parts * heads) == 0 and heads > 1:
        by_head = packed.reshape(heads, parts, -1, *packed.shape[1:])
        names = "q, k and v" if parts == 3 else "k and v"
        says = f"packed by head: {names} of each head are next to each other (GPT-NeoX)"
        yield "by head", (says,), [by_head[:, n].reshape(-1, *packed.shape[1:]) for n in range(parts)]
    by_channel = packed.reshape(-1, parts, *packed.shape[1:])
    says = f"packed by channel: the {parts} numbers of a channel are next to each other"
    yield "by channel", (says,), [by_channel[:, n] for n in range(parts)]
    if len(packed) % (parts * heads) == 0 and heads > 1:
        last = packed.reshape(heads, -1, parts, *packed.shape[1:])
        says = "packed by head and channel"
        yield "by head and channel", (says,), [last[:, :, n].reshape(-1, *packed.shape[1:]) for n in range(parts)]
