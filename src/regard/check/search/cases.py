"""The inputs of calls: random numbers and masks, in sizes that all differ or all coincide."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.recipes.case import Case
from regard.check.search.layouts import Sizes, Way

__all__ = [
    "drawn",
    "function_case",
    "lengths",
    "module_case",
    "padded",
    "random_mask",
    "square",
]

DIFFERENT = Sizes(batch=2, heads=3, queries=6, keys=6, d_key=10, d_value=10)
CROSS = Sizes(batch=2, heads=3, queries=4, keys=7, d_key=10, d_value=10)
OTHER = Sizes(batch=3, heads=4, queries=5, keys=5, d_key=6, d_value=6)
WIDE = Sizes(batch=2, heads=3, queries=4, keys=7, d_key=10, d_value=8)
"""No two of batch, heads, tokens and widths are the same, nor are the roots that a scale may be mistaken for."""
SAME = Sizes(batch=4, heads=4, queries=4, keys=4, d_key=4, d_value=4)
"""Sizes that coincide: what is right by accident is right here alone, and what is wrong by accident too."""


def drawn(*shape: int, seed: int) -> Tensor:
    """Normal numbers, the same for the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def function_case(sizes: Sizes, way: Way, seed: int = 0, *, same: bool = False) -> Case:
    """q, k and v for a function that is called in some way."""
    batch = 1 if "b" not in way.layout else sizes.batch
    heads = 1 if "h" not in way.layout else sizes.heads
    q = drawn(batch, heads, sizes.queries, sizes.d_key, seed=seed)
    if same:
        return Case(q, q, q)
    k = drawn(batch, heads, sizes.keys, sizes.d_key, seed=seed + 1)
    v = drawn(batch, heads, sizes.keys, sizes.d_value, seed=seed + 2) + 0.3
    return Case(q, k, v)


def module_case(
    sizes: Sizes, way: Way, width: int, seed: int = 0, *, context: int | None = None, inputs: int = 1
) -> Case:
    """X for a module, or x and context, or what queries, keys and values are made of."""
    batch = 1 if way.layout == "td" else sizes.batch
    x = drawn(batch, sizes.queries, width, seed=seed)
    other = None if inputs == 1 else drawn(batch, sizes.keys, context or width, seed=seed + 1)
    values = None if inputs < 3 else drawn(batch, sizes.keys, context or width, seed=seed + 2)
    return Case(x=x, context=other, values=values)


def random_mask(batch: int, queries: int, keys: int) -> Tensor:
    """(batch, 1, queries, keys): asymmetric; each query may attend to one key at least, and not to all."""
    may = torch.rand(batch, 1, queries, keys, generator=torch.Generator().manual_seed(7)) < 0.55
    rows = torch.arange(queries)
    may[:, :, rows, (rows * 2 + 1) % keys] = True
    may[:, :, rows, (rows * 3 + 2) % keys] = (rows * 3 + 2) % keys == (rows * 2 + 1) % keys
    return may


def padded(batch: int, keys: int) -> Tensor:
    """(batch, 1, 1, keys): the last keys of each sample are padding, another number in each."""
    lengths = torch.tensor([max(1, keys - 1 - 2 * (n % 3)) for n in range(batch)])
    return (torch.arange(keys) < lengths[:, None])[:, None, None]


def lengths(case: Case) -> tuple[int, int]:
    """How many queries and keys there are."""
    if case.q is not None and case.k is not None:
        return case.q.shape[-2], case.k.shape[-2]
    assert case.x is not None
    return case.x.shape[1], (case.x if case.context is None else case.context).shape[1]


def square(case: Case) -> bool:
    """Whether they are as many."""
    queries, keys = lengths(case)
    return queries == keys
