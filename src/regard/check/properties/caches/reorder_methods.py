"""Methods that put the rows of what is kept in the order of the beams that go on."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.preparation import copied

__all__ = ["reorder_method_findings"]

_REORDER = re.compile(r"_*re_?order\w*|_*select_(?:beams?|hypotheses)\w*|_*permute_(?:cache|state|beams?)\w*")
_KEPT = re.compile(r"cache|state|past|beams?|hypo|incremental|memory|kv", re.I)
"""In the name of such a method, or of what it is given."""
_BACK = re.compile(r"back|undo|restore|inverse|unsort")
"""In the name of one that undoes an order."""
_FROM = re.compile(r"(?:\w+_)?(?:parents?|beams?|order|idx|ids?|ind(?:ex|ices)|from|source|src|origins?)(?:_\w+)?")
"""Names of the argument that says of each new row which old one it continues."""
_TO = re.compile(r"dest|target|(?:^|_)to(?:_|$)|slots?")
BEAMS = 3
SHAPE = (BEAMS, 2, 4, 5)
"""(beams, heads, tokens, width)."""


def reorder_method_findings(invocation: Invocation) -> Iterator[Finding]:
    """A method that puts old row i where the order has i, and not the old row of that number into new row i.

    The order is one that differs from its inverse: (1, 2, 0).

    Args:
        invocation: a call of a module.
    """
    target = invocation.target
    if not isinstance(target, nn.Module):
        return
    for name in dir(type(target)):
        method = getattr(type(target), name)
        if not _REORDER.fullmatch(name) or not callable(method):
            continue
        method = getattr(copied(target), name)
        try:
            several = [*inspect.signature(method).parameters]
        except (ValueError, TypeError):
            continue
        if not _KEPT.search(f"{name} {several[:1]}") or _BACK.search(name):
            continue
        if len(several) != 2 or not _FROM.fullmatch(several[1]) or _TO.search(several[1]):
            continue
        order = torch.tensor([1, 2, 0])
        for state in _states():
            before = [each.clone() for each in tree_leaves(state)]
            try:
                returned = method(state, order)
            except Exception:  # it takes another form
                continue
            result = tree_leaves(state if returned is None else returned)
            after = [each for each in result if isinstance(each, Tensor)]
            if len(after) != len(before) or any(a.shape != b.shape for a, b in zip(after, before, strict=True)):
                continue
            pairs = list(zip(before, after, strict=True))
            if all(torch.equal(a, b[order.argsort()]) for b, a in pairs):
                message = (
                    f"{name}() with {several[1]}=[1, 2, 0] puts old row 0 into new row 1: new row i continues old row "
                    f"{several[1]}[i]"
                )
                yield Finding("violation", "rows-of-their-beams", "k", message)
            return


def _states() -> Iterator[Any]:
    """What may be kept of keys and values, in the forms that are usual."""
    generator = torch.Generator().manual_seed(31)
    one, two = (torch.randn(SHAPE, generator=generator, dtype=torch.float64) for _ in range(2))
    yield {"key": one.clone(), "value": two.clone()}
    yield ((one.clone(), two.clone()),)
    yield [(one.clone(), two.clone())]
    yield (one.clone(), two.clone())
    yield {"0": {"key": one.clone(), "value": two.clone()}}
    yield one.clone()
