"""Objects and modules that keep keys and values, and whose method reorders them: both take the order."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.properties.caches.reorder_methods import BEAMS, FROM, KEPT, OF_THE_SOURCE, REORDER, is_in_order
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.preparation import copied, modules_in

__all__ = ["kept_order_findings", "reorder_object_findings"]

VALUE_OF_KEY = {"k": "v", "key": "value", "keys": "values"}


def reorder_object_findings(invocation: Invocation) -> Iterator[Finding]:
    """A method that puts the keys that its object keeps into another order, and not the values; or the values alone.

    Keys and values of a layer are laid into the object first. Its class stands in the file and needs nothing to be
    made, or it is a module of the target.

    Args:
        invocation: a call of a module.
    """
    if not isinstance(invocation.target, nn.Module):
        return
    order = torch.tensor([1, 2, 0])
    for holder in _holders(invocation):
        for name, function in inspect.getmembers(type(holder), inspect.isfunction):
            several = [*inspect.signature(function).parameters]
            if not REORDER.fullmatch(name) or len(several) != 2 or not FROM.fullmatch(several[1]):
                continue
            if not KEPT.search(f"{name} {type(holder).__name__}"):
                continue
            for key, value in _pairs(holder):
                kept = _laid_in(holder, key, 1), _laid_in(holder, value, 2)
                try:
                    getattr(holder, name)(order)
                    after = _only(getattr(holder, key)), _only(getattr(holder, value))
                except Exception:  # it keeps them in another form
                    continue
                moved = [is_in_order(one, other, order) for one, other in zip(kept, after, strict=True)]
                left = [torch.equal(one, other) for one, other in zip(kept, after, strict=True)]
                if moved != left and sum(moved) == sum(left) == 1:
                    one, other = (key, value) if moved[0] else (value, key)
                    told = f"{type(holder).__name__}.{name}()"
                    message = f"{told} puts {one} into the new order and leaves {other} in the old one"
                    yield Finding("violation", "cache-beams", "k", message)
                    return


def kept_order_findings(invocation: Invocation) -> Iterator[Finding]:
    """The same of what modules keep of a call, under two names or in a dict, once the call has been made.

    Args:
        invocation: a call of a module, of two samples or more.
    """
    axes = {each.argument: each.batch_axis for each in invocation.streams}
    counts = {invocation.arguments[name].shape[axis] for name, axis in axes.items() if axis is not None}
    if not isinstance(invocation.target, nn.Module) or None in axes.values() or len(counts) != 1 or min(counts) < 2:
        return
    count = counts.pop()
    order = torch.arange(count).roll(1)
    live = copied(invocation.target)
    for holder in live.modules():
        for name, function in inspect.getmembers(type(holder), inspect.isfunction):
            several = [*inspect.signature(function).parameters]
            if not REORDER.fullmatch(name) or len(several) != 2 or not FROM.fullmatch(several[1]):
                continue
            try:
                invocation.run(target=live)
                before = {key: each.clone() for key, each in _kept(holder) if each.ndim and len(each) == count}
                getattr(holder, name)(order)
            except Exception:  # it takes another order, or keeps nothing yet
                continue
            after = {key: each for key, each in _kept(holder) if key in before and each.shape == before[key].shape}
            moved = {key for key in after if torch.equal(after[key], before[key][order])}
            left = {key for key in after if torch.equal(after[key], before[key])} - moved
            for one, other in ((key, each) for key in moved for each in left):
                names = {key.rpartition(".")[2] for key in (one, other)}
                if any({key, value} == names for key, value in VALUE_OF_KEY.items()):
                    told = f"{type(holder).__name__}.{name}()"
                    message = f"{told} puts {one} into the new order and leaves {other} in the old one"
                    yield Finding("violation", "cache-beams", "k", message)
                    return


def _kept(holder: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What a module keeps by the name of an attribute, or by that and a name in a dict."""
    for name, each in [*vars(holder).items(), *holder.named_buffers(recurse=False)]:
        if isinstance(each, Tensor):
            yield name, each
        if isinstance(each, dict) and not name.startswith("_"):
            yield from ((f"{name}.{key}", one) for key, one in each.items() if isinstance(one, Tensor))


def _holders(invocation: Invocation) -> Iterator[Any]:
    """Objects of the classes of the file that have a method of an order, and the modules of a copy of the target."""
    for name, kind in vars(sys.modules.get(type(invocation.target).__module__, object)).copy().items():
        if not inspect.isclass(kind) or kind.__name__ != name or issubclass(kind, nn.Module | Tensor):
            continue
        if kind.__module__ == type(invocation.target).__module__ and any(map(REORDER.fullmatch, vars(kind))):
            try:
                yield kind()
            except Exception:  # it needs something
                continue
    if any(REORDER.fullmatch(name) for module in modules_in(invocation.target) for name in dir(type(module))):
        yield from modules_in(copied(invocation.target))


def _pairs(holder: Any) -> list[tuple[str, str]]:
    """The names of what may hold keys, and values."""
    names = (
        [*vars(holder), *(name for name, _ in holder.named_buffers(recurse=False))]
        if isinstance(holder, nn.Module)
        else [*vars(holder)]
    )
    found = []
    for name in names:
        partner = "_".join(VALUE_OF_KEY.get(word, word) for word in name.split("_"))
        if partner == name or partner not in names or OF_THE_SOURCE.search(name):
            continue
        both = getattr(holder, name), getattr(holder, partner)
        if all(
            each is None or isinstance(each, list | dict) or (isinstance(each, Tensor) and each.ndim > 2)
            for each in both
        ):
            found.append((name, partner))
    return found


def _laid_in(holder: Any, name: str, seed: int) -> Tensor:
    """What is laid in under the name, of as many beams as the order has."""
    laid = torch.randn(BEAMS, 2, 4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    before = getattr(holder, name)
    form = (
        [laid.clone()] if isinstance(before, list) else {0: laid.clone()} if isinstance(before, dict) else laid.clone()
    )
    setattr(holder, name, form)
    return laid


def _only(kept: Any) -> Tensor:
    (found,) = kept if isinstance(kept, list) else kept.values() if isinstance(kept, dict) else [kept]
    return torch.as_tensor(found)
