"""Methods that put the rows of what is kept in the order of the beams that go on."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.argument import source_of
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied

__all__ = ["BEAMS", "FROM", "KEPT", "OF_THE_SOURCE", "REORDER", "is_in_order", "reorder_method_findings"]

REORDER = re.compile(r"_*re_?order\w*|_*select_(?:beams?|hypotheses)\w*|_*permute_(?:cache|state|beams?)\w*")
KEPT = re.compile(r"cache|state|past|beams?|hypo|incremental|memory|kv", re.I)
"""In the name of such a method, or of what it is given."""
_BACK = re.compile(r"back|undo|restore|inverse|unsort")
"""In the name of one that undoes an order."""
FROM = re.compile(r"(?:\w+_)?(?:parents?|beams?|order|idx|ids?|ind(?:ex|ices)|from|source|src|origins?)(?:_\w+)?")
"""Names of the argument that says of each new row which old one it continues."""
_TO = re.compile(r"dest|target|(?:^|_)to(?:_|$)|slots?")
OF_THE_SOURCE = re.compile(
    r"(?<![a-z])(?:mem(?!ber)|enc|cross|static(?!method)|source|src|context|len|offset|mask)", re.I
)
_KEYS, _VALUES = re.compile(r"(?<![a-z])(?:k|keys?)(?![a-z])"), re.compile(r"(?<![a-z])(?:v|values?)(?![a-z])")
BEAMS = 3
SHAPES = ((BEAMS, 2, 4, 5), (4, BEAMS, 2, 5))
"""(beams, heads, tokens, width), and with the tokens first."""
NAMES = (
    ("key", "value"),
    ("k", "v"),
    ("keys", "values"),
    ("prev_key", "prev_value"),
    ("past_key", "past_value"),
    ("k_cache", "v_cache"),
    ("key_cache", "value_cache"),
    ("cache_k", "cache_v"),
    ("past_k", "past_v"),
)
"""Of keys and values that are kept by name."""


def reorder_method_findings(invocation: Invocation) -> Iterator[Finding]:
    """A method that puts old row i where the order has i, or that leaves the values, or the keys, in the old order.

    The order is one that differs from its inverse: (1, 2, 0). Keys and values are handed over in the forms that are
    usual, until the method takes one.

    Args:
        invocation: a call of a module.
    """
    target = invocation.target
    if not isinstance(target, nn.Module):
        return
    beside = vars(sys.modules.get(type(target).__module__, object))
    functions = {name: each for name, each in beside.items() if inspect.isfunction(each)}
    methods = {name: getattr(type(target), name) for name in dir(type(target))}
    for name, method in {**functions, **methods}.items():
        if not REORDER.fullmatch(name) or not callable(method):
            continue
        method = getattr(copied(target), name) if name in methods else method
        try:
            several = [*inspect.signature(method).parameters]
        except (ValueError, TypeError):
            continue
        if not KEPT.search(f"{name} {several[:1]}") or _BACK.search(name):
            continue
        if len(several) != 2 or not FROM.fullmatch(several[1]) or _TO.search(several[1]):
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
            told = f"{name}() with {several[1]}=[1, 2, 0]"
            if all(is_in_order(b, a, order.argsort()) for b, a in pairs):
                message = f"{told} puts old row 0 into new row 1: new row i continues old row {several[1]}[i]"
                yield Finding("violation", "rows-of-their-beams", "k", message)
            left = [torch.equal(a, b) for b, a in pairs]
            moved = [is_in_order(b, a, order) for b, a in pairs]
            is_of_one = len(pairs) == 2 and left != moved and sum(left) == sum(moved) == 1
            if is_of_one and (_is_named(state) or _is_of_keys_and_values(invocation, method)):
                one, other = ("keys", "values") if moved[0] else ("values", "keys")
                message = f"{told} puts the {one} into the new order and leaves the {other} in the old one"
                yield Finding("violation", "cache-beams", "k", message)
            elif all(left):
                continue  # it may look for other names
            return


def _is_named(state: Any) -> bool:
    """Whether the keys and the values have names there."""
    return isinstance(state, dict) or isinstance(state[0], dict)


def _is_of_keys_and_values(invocation: Invocation, method: Callable[..., Any]) -> bool:
    """Whether a pair without names is of keys and values, and not of a cache and its length, or of what is encoded."""
    text = source_of(method)
    if OF_THE_SOURCE.search(text):
        return False
    if _KEYS.search(text) and _VALUES.search(text):
        return True
    try:
        result = invocation.run(invocation.arguments)
    except Failed:
        return False
    rest = list(result[1:]) if isinstance(result, tuple | list) else []
    for each in rest:
        inner = each[0] if isinstance(each, tuple | list) and len(each) == 1 else each
        if isinstance(inner, tuple | list) and len(inner) == 2 and all(isinstance(one, Tensor) for one in inner):
            return bool(inner[0].ndim > 2 and inner[0].shape == inner[1].shape)
    return False


def is_in_order(before: Tensor, after: Tensor, order: Tensor) -> bool:
    """Whether the beams are in the order, whichever axis is theirs."""
    axes = [axis for axis, size in enumerate(before.shape) if size == BEAMS]
    return any(torch.equal(after, before.index_select(axis, order)) for axis in axes)


def _states() -> Iterator[Any]:
    """What may be kept of keys and values, in the forms that are usual: the keys are the first."""
    generator = torch.Generator().manual_seed(31)
    for shape in SHAPES:
        one, two = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))

        def pair(one: Tensor = one, two: Tensor = two) -> tuple[Tensor, Tensor]:
            return one.clone(), two.clone()

        for names in NAMES:
            yield dict(zip(names, pair(), strict=True))
        yield (pair(),)
        yield [pair()]
        yield pair()
        yield [*pair()]
        yield [[*pair()]]
        for names in NAMES:
            yield {"0": dict(zip(names, pair(), strict=True))}
            yield [dict(zip(names, pair(), strict=True))]
        yield one.clone()
