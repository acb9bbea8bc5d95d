"""Any mask, three ways: as a plain specification, as its definition for one pair, and as regard makes it.

A specification reads well when a test fails, and a strategy that draws one runs none of the code under test.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from regard import mask

MaskSpec = tuple[Any, ...]

KINDS = ("causal", "window", "padding", "documents", "pairs", "prefix", "first", "where", "allowed", "blocked")
KINDS_WITH_FULL_REPR = KINDS[:7]  # the kinds whose repr holds all their arguments

BATCH, HEADS, QUERIES, KEYS = 2, 3, 4, 6
EVERY_KIND = [
    mask.causal(),
    mask.window(2, 1),
    mask.padding([4, 6]),
    mask.documents([[0, 0, 1, 1, 2, 2], [3, 3, 3, 0, 0, 0]]),
    mask.documents([0, 1, 1, 2], [[2, 0, 0, 1, 1, 1], [1, 0, 2, 2, 3, 3]]),
    mask.prefix([3, 1]),
    mask.first(2),
    mask.where(lambda i, j: (i - j) % 2 == 0),
    mask.where(lambda i, j: (i - j) % torch.tensor([1, 2, 3])[:, None, None] == 0),
    mask.allowed(torch.eye(4, 6).bool()),
    mask.blocked(torch.eye(4, 6).bool().expand(2, 1, 4, 6)),
    mask.causal() & mask.padding([5, 6]),
    mask.window(2) | ~mask.documents([[0, 0, 1, 1, 2, 2], [3, 3, 3, 0, 0, 0]]),
]
"""Masks for these sizes."""


@dataclass
class MaskCase:
    batch: int
    heads: int
    queries: int
    keys: int
    spec: MaskSpec

    def definition(self) -> Tensor:
        """Who may attend, ``(batch, heads, queries, keys)``, pair by pair."""
        shape = self.batch, self.heads, self.queries, self.keys
        pairs = [may_attend(self.spec, *index, *shape[2:]) for index in product(*map(range, shape))]
        return torch.tensor(pairs, dtype=torch.bool).reshape(shape)

    def expand(self, t: Tensor) -> Tensor:
        """What a mask returns, which may leave batch rows and heads out, at the definition's shape."""
        return t.expand(self.batch, self.heads, *t.shape[-2:])


def may_attend(spec: MaskSpec, b: int, h: int, i: int, j: int, queries: int, keys: int) -> bool:
    """The definition of every mask, for query i and key j of batch row b and head h."""

    def position(offset: int | None = None) -> int:
        return i + (keys - queries if offset is None else offset)

    match spec:
        case ("~", a):
            return not may_attend(a, b, h, i, j, queries, keys)
        case ("&", a, c):
            return may_attend(a, b, h, i, j, queries, keys) and may_attend(c, b, h, i, j, queries, keys)
        case ("|", a, c):
            return may_attend(a, b, h, i, j, queries, keys) or may_attend(c, b, h, i, j, queries, keys)
        case ("causal", offset):
            return j <= position(offset)
        case ("window", before, after, offset):
            return -before < j - position(offset) <= after
        case ("padding", lengths):
            return j < lengths[b]
        case ("documents", ids):
            row = ids[b] if ids and isinstance(ids[0], list) else ids
            return position() >= 0 and row[position()] == row[j]
        case ("pairs", ids, key_ids):
            query, key = (row[b] if row and isinstance(row[0], list) else row for row in (ids, key_ids))
            return query[i] == key[j]
        case ("prefix", n):
            return j < (n[b] if isinstance(n, list) else n) or j <= position()
        case ("first", n):
            return j < n
        case ("where", steps, offset):
            step = steps[b % len(steps)][h % len(steps[0])]
            return (position(offset) - j) % step == 0
        case ("allowed" | "blocked" as kind, shape, seed):
            index = (b, h, i, j)[-len(shape) :]
            return bool(tensor(shape, seed)[tuple(n % size for n, size in zip(index, shape, strict=True))]) is (
                kind == "allowed"
            )
    raise AssertionError(spec)


def tensor(shape: list[int], seed: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6


def build(spec: MaskSpec) -> mask.Mask:
    """The same mask, from regard."""
    match spec:
        case ("~", a):
            return ~build(a)
        case ("&", a, c):
            return build(a) & build(c)
        case ("|", a, c):
            return build(a) | build(c)
        case ("causal", offset):
            return mask.causal(offset)
        case ("window", before, after, offset):
            return mask.window(before, after, offset=offset)
        case ("where", [[step]], offset):
            return mask.where(lambda i, j: (i - j) % step == 0, offset=offset)
        case ("where", steps, offset):
            by_row_and_head = torch.tensor(steps)[:, :, None, None]
            return mask.where(lambda i, j: (i - j) % by_row_and_head == 0, offset=offset)
        case ("allowed" | "blocked" as kind, shape, seed):
            return getattr(mask, kind)(tensor(shape, seed))
        case ("pairs", ids, key_ids):
            return mask.documents(ids, key_ids)
        case (kind, value):
            return getattr(mask, kind)(value)
    raise AssertionError(spec)


@st.composite
def cases(
    draw: st.DrawFn, *, kinds: tuple[str, ...] = KINDS, max_tokens: int = 7, min_tokens: int = 0, depth: int = 4
) -> MaskCase:
    """Expressions of masks of these kinds, up to so deep, for a few queries and keys."""
    tokens = st.integers(min_tokens, max_tokens)
    sizes = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(tokens), draw(tokens)
    return MaskCase(*sizes, draw(specs(*sizes, kinds=kinds, depth=depth)))


def specs(
    batch: int, heads: int, queries: int, keys: int, *, kinds: tuple[str, ...] = KINDS, depth: int
) -> st.SearchStrategy[MaskSpec]:
    """Specifications of masks of these kinds, combined up to so deep, that fit these sizes."""
    length, width = st.integers(0, keys), st.integers(1, 9) | st.integers(1, max(1, keys + 1))
    offset = st.none() | st.just(0) | st.integers(-3, 9) | st.integers(-queries, keys)

    def per_row(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
        return st.lists(values, min_size=batch, max_size=batch)

    def ids(tokens: int) -> st.SearchStrategy[list[Any]]:
        # Ids that repeat make documents in several pieces; the others are of about one length.
        several_pieces = st.lists(st.integers(-1, 5), min_size=1, max_size=9)
        one_piece = st.integers(2, 12).flatmap(lambda n: st.permutations(range(n)))
        row = (several_pieces | one_piece).map(lambda drawn: [drawn[j * len(drawn) // tokens] for j in range(tokens)])
        return row | per_row(row) if batch else row

    def steps(shape: tuple[int, int]) -> st.SearchStrategy[list[list[int]]]:
        row = st.lists(st.integers(1, 4), min_size=shape[1], max_size=shape[1])
        return st.lists(row, min_size=shape[0], max_size=shape[0])

    step_shapes = st.tuples(st.sampled_from([1, batch]), st.sampled_from([1, heads]))
    boolean_tensor = broadcastable([batch, heads, queries, keys], min_axes=2), st.integers(0, 99)
    arguments: dict[str, tuple[st.SearchStrategy[Any], ...]] = {
        "causal": (offset,),
        "window": (width, st.just(0) | width, offset),
        "padding": (per_row(length),),
        "documents": (ids(keys),),
        "pairs": (ids(queries), ids(keys)),
        "prefix": (length | per_row(length),),
        "first": (width | st.just(0),),
        "where": (step_shapes.flatmap(steps) if batch else st.just([[2]]), offset),
        "allowed": boolean_tensor,
        "blocked": boolean_tensor,
    }
    spec = leaf = st.one_of([st.tuples(st.just(kind), *arguments[kind]) for kind in kinds])
    for _ in range(depth):
        spec = leaf | st.tuples(st.just("~"), spec) | st.tuples(st.sampled_from("&|"), spec, spec)
    return spec


def broadcastable(shape: list[int], min_axes: int = 0) -> st.SearchStrategy[list[int]]:
    """Shapes that broadcast to this one: axes left out at the front, and axes of size 1."""
    return st.integers(0, len(shape) - min_axes).flatmap(
        lambda skipped: st.tuples(*[st.sampled_from([1, n]) for n in shape[skipped:]]).map(list)
    )
