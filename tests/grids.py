"""Grids of cases: every pair of values in the fast tier, every combination in the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import settings


def grid(*, where: Callable[..., bool] | None = None, **axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize a test over axes of values: `@grid(dtype=[...], mask=[...], tokens=[...])`.

    The fast tier runs a set of combinations in which every pair of values of two axes occurs; `make test-more` runs
    the full product. Most faults need one value or a pair of them, seldom three at once (Kuhn, Wallace and Gallo,
    "Software fault interactions and implications for software testing", IEEE TSE 30(6), 2004).

    Args:
        where: which combinations make sense, by the axes' names; all of them where it is missing.
        axes: the values of each argument of the test.
    """
    names = list(axes)
    rows = [dict(zip(names, values, strict=True)) for values in product(*map(list, axes.values()))]
    rows = [row for row in rows if where is None or where(**row)]
    fast = _pairwise(rows)
    params = [
        pytest.param(*row.values(), marks=() if i in fast else pytest.mark.more, id="-".join(map(_label, row.values())))
        for i, row in enumerate(rows)
    ]
    return pytest.mark.parametrize(names, params)


def some_examples(share: float) -> settings:
    """Settings of a random test whose examples are dear: this share of the tier's number of examples."""
    return settings(max_examples=max(2, round(settings.default.max_examples * share)))


def _pairwise(rows: list[dict[str, Any]]) -> set[int]:
    """The fewest rows, greedily, in which every pair of values occurs that occurs in any row."""
    pairs = [
        {((a, id(row[a])), (b, id(row[b]))) for a, b in combinations(row, 2)} or {(a, id(row[a])) for a in row}
        for row in rows
    ]
    missing, taken = set().union(*pairs), set()
    while missing:
        best = max(range(len(rows)), key=lambda i: len(pairs[i] & missing))
        taken.add(best)
        missing -= pairs[best]
    return taken


def _label(value: Any) -> str:
    """A value in a test's name; no address of an object, for each of pytest-xdist's workers has another one."""
    label = value if isinstance(value, str) else getattr(value, "__name__", None) or str(value)
    if " at 0x" in label:
        raise ValueError(f"{label} is another name in each process: give the axis strings, or functions with a name")
    return label
