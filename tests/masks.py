"""Any mask, three ways: as plain facts, as its definition written out for one pair, and as regard makes it.

The facts read well when a test fails, and a strategy that draws them runs none of the code under test.
"""

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from regard import mask

MaskSpec = tuple[Any, ...]

KINDS = ("causal", "window", "padding", "documents", "pairs", "prefix", "where", "allowed", "blocked")
KINDS_WITH_FULL_REPR = KINDS[:6]
"""The kinds whose text says all there is to them."""


@dataclass
class Case:
    batch: int
    heads: int
    queries: int
    keys: int
    spec: MaskSpec

    def definition(self) -> Tensor:
        """The loops: who may attend, ``(batch, heads, queries, keys)``."""
        may = torch.zeros(self.batch, self.heads, self.queries, self.keys, dtype=torch.bool)
        for b in range(self.batch):
            for h in range(self.heads):
                for i in range(self.queries):
                    for j in range(self.keys):
                        may[b, h, i, j] = may_attend(self.spec, b, h, i, j, self.queries, self.keys)
        return may

    def expand(self, t: Tensor) -> Tensor:
        """A mask's answer, which may leave batch rows and heads out, at the definition's shape."""
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
        case ("pairs", ids, of_keys):
            query, key = (row[b] if row and isinstance(row[0], list) else row for row in (ids, of_keys))
            return query[i] == key[j]
        case ("prefix", n):
            return j < (n[b] if isinstance(n, list) else n) or j <= position()
        case ("where", steps, offset):
            step = steps[b % len(steps)][h % len(steps[0])]
            return (position(offset) - j) % step == 0
        case ("allowed" | "blocked" as kind, shape, seed):
            wanted = (b, h, i, j)[-len(shape) :]
            here = tuple(index % size for index, size in zip(wanted, shape, strict=True))
            return bool(tensor(shape, seed)[here]) is (kind == "allowed")
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
        case ("where", steps, offset):
            if len(steps) == len(steps[0]) == 1:
                return mask.where(lambda i, j: (i - j) % steps[0][0] == 0, offset=offset)
            every = torch.tensor(steps)[:, :, None, None]
            return mask.where(lambda i, j: (i - j) % every == 0, offset=offset)
        case ("allowed" | "blocked" as kind, shape, seed):
            return getattr(mask, kind)(tensor(shape, seed))
        case ("pairs", ids, of_keys):
            return mask.documents(ids, of_keys)
        case (kind, value):
            return getattr(mask, kind)(value)
    raise AssertionError(spec)


@st.composite
def cases(
    draw: st.DrawFn, *, kinds: tuple[str, ...] = KINDS, max_tokens: int = 7, min_tokens: int = 0, depth: int = 4
) -> Case:
    """Expressions of masks up to so deep, for any few queries and keys."""
    batch, heads = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    queries, keys = draw(st.integers(min_tokens, max_tokens)), draw(st.integers(min_tokens, max_tokens))
    offsets = st.none() | st.integers(-3, 9)
    a_length, an_id = st.integers(0, keys), st.integers(-1, 2)

    def ids(tokens: int) -> st.SearchStrategy[list[Any]]:
        row = st.lists(an_id, min_size=tokens, max_size=tokens)
        return row | each_row(row)

    def each_row(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
        return st.lists(values, min_size=batch, max_size=batch)

    def or_one(n: int) -> st.SearchStrategy[int]:
        return st.sampled_from(sorted({1, n}))

    steps = st.tuples(or_one(batch), or_one(heads)).flatmap(
        lambda size: st.lists(
            st.lists(st.integers(1, 4), min_size=size[1], max_size=size[1]), min_size=size[0], max_size=size[0]
        )
    )
    shapes = st.tuples(or_one(batch), or_one(heads), or_one(queries), or_one(keys), st.integers(0, 2)).map(
        lambda axes: list(axes[axes[4] : 4])
    )
    a_tensor = shapes, st.integers(0, 99)
    arguments = {
        "causal": [offsets],
        "window": [st.integers(1, 8), st.integers(0, 8), offsets],
        "padding": [each_row(a_length)],
        "documents": [ids(keys)],
        "pairs": [ids(queries), ids(keys)],
        "prefix": [a_length | each_row(a_length)],
        "where": [steps, offsets],
        "allowed": a_tensor,
        "blocked": a_tensor,
    }
    expression = leaf = st.sampled_from(kinds).flatmap(lambda kind: st.tuples(st.just(kind), *arguments[kind]))
    for _ in range(depth):
        expression = st.one_of(
            leaf,
            st.tuples(st.just("~"), expression),
            st.tuples(st.sampled_from("&|"), expression, expression),
        )
    return Case(batch, heads, queries, keys, draw(expression))
