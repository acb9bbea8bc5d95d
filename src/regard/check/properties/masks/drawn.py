"""Masks that are drawn for a call: their axes, what they block, and what they mean for each score."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.check.target.mask_values import write_mask

__all__ = ["causal_mask", "drawn_mask", "open_mask", "padding_mask", "spread"]


def open_mask(sizes: Sequence[int], form: str) -> Tensor:
    """A mask that blocks nothing."""
    return write_mask(torch.ones(*sizes, dtype=torch.bool), form)


def drawn_mask(sizes: list[int], *, of_queries: bool) -> Tensor:
    """A mask in which no two rows are alike, the first key is allowed, and no axis looks like another.

    Args:
        sizes: of the mask, keys last.
        of_queries: whether it says something else of each query; where it does not, a token of a sample that is no
            padding comes after one that is: before padding, a causal mask would hide that as well.
    """
    *rows, keys = sizes
    if keys < 3:
        return torch.arange(keys).expand(sizes) == 0
    count = math.prod(rows)
    if of_queries:
        inner = min(keys - 2, 16)
        number = torch.arange(count) * 5 + 3  # odd: no two are alike up to 2**inner
    else:
        inner = min(keys - 1, 16)
        number = torch.cat([torch.arange(2, 2**inner, 2), torch.arange(1, 2**inner, 2)])  # first, key 1 is hidden
        number = number[torch.arange(count) % len(number)]
    pattern = torch.zeros(sizes, dtype=torch.bool)
    pattern[..., 1 : inner + 1] = (number.reshape([*rows, 1]) >> torch.arange(inner)) & 1 > 0
    pattern[..., 0] = True
    return pattern


def padding_mask(sizes: list[int], side: str) -> Tensor:
    """A mask by which another number of keys is padding in each row, all at the end or all in front.

    Args:
        sizes: of the mask, keys last.
        side: "end" or "front".
    """
    *rows, keys = sizes
    count = 1 + torch.arange(math.prod(rows)).reshape([*rows, 1]) % max(1, keys - 2)
    places = torch.arange(keys)
    return places < keys - count if side == "end" else places >= count


def causal_mask(sizes: list[int], letters: str) -> Tensor:
    """The mask by which a query sees the keys up to its own position, of axes with these letters, keys last."""
    axis = letters.index("q")
    own = torch.arange(sizes[axis]).view([-1 if each == axis else 1 for each in range(len(sizes))])
    return (torch.arange(sizes[-1]) <= own).expand(sizes).clone()


def spread(pattern: Tensor, shape: str, samples: int, heads: int, queries: int, keys: int) -> Tensor:
    """The mask as (samples, heads, queries, keys)."""
    letters = shape.replace("1", "")
    order = [letters.index(letter) for letter in "bhqk" if letter in letters]
    ordered = pattern.reshape([size for size, letter in zip(pattern.shape, shape, strict=True) if letter != "1"])
    view = ordered.permute(order).reshape(
        [pattern.shape[shape.index(letter)] if letter in shape else 1 for letter in "bhqk"]
    )
    return view.expand(samples, heads, queries, keys)
