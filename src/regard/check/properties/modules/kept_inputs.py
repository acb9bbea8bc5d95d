"""What a method keeps of one input on its modules, as keys of a cross-attention, and reads again for another input."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.properties.code import code_of
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.cache_search import other_tokens
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied

__all__ = ["kept_input_findings"]

_EMPTIED = re.compile(
    r"reset|clear|flush|empty_|def _?(?:begin|start|new)\w*\(|\bfresh\b|\bnew (?:instance|model|module)\b"
    r"|\bstreaming\b",
    re.I,
)
"""In code that has a way to begin anew, or says that one is needed: the caller sees to it."""
_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
"""Kinds of parameters that take whatever is given."""
_OF_MODULES = frozenset(vars(nn.Module()))
"""Attributes that PyTorch gives every module."""
SAME = 1e-9


def kept_input_findings(invocation: Invocation) -> Iterator[Finding]:
    """A method that gives something else for an input after another one, by what it kept of that.

    The same input twice has to give the same: what goes on from call to call, as a step of decoding, is meant to.

    Args:
        invocation: a call of a module, by whose sequences those of its methods are known.
    """
    target = invocation.target
    if not isinstance(target, nn.Module) or invocation.packed or _EMPTIED.search(code_of(target)):
        return
    given, others = invocation.arguments, {**invocation.arguments, **other_tokens(invocation)}
    for method, names, changed in ((*each, name) for each in _methods(invocation) for name in each[1]):
        one = {name: given[name] for name in names}
        other = {**one, changed: others[changed]}
        try:
            live = copied(target)
            before = _held(live)
            first = _outputs(invocation, live, method, other)
            after_it = _held(live).items()
            kept = [key for key, each in after_it if _is_empty(before.get(key)) and not _is_empty(each)]
            if not kept or not first:
                continue
            sizes = [_size(_held(live)[each]) for each in kept]
            after = _outputs(invocation, live, method, one)
            if sizes != [_size(_held(live).get(each)) for each in kept]:
                continue  # it goes on behind what it keeps, as a cache of keys does
            alone = copied(target)
            expected, again = (_outputs(invocation, alone, method, one) for _ in range(2))
            if not _is_same(expected, again) or _is_same(expected, after):
                continue
            _put_back(live, kept, target)
            if not _is_same(expected, _outputs(invocation, live, method, one)):
                continue
        except Failed:
            continue
        path, name = kept[0]
        message = (
            f"{method}() keeps {f'{path}.' if path else ''}{name} of the first {changed} that it is given, and reads "
            f"it for the next one: what it returns for that is another thing than alone"
        )
        yield Finding("violation", "kept-of-its-input", "call", message)
        return


def _methods(invocation: Invocation) -> Iterator[tuple[str, list[str]]]:
    """The methods of a module's class that need nothing but sequences of its call, and these."""
    streams = {each.argument for each in invocation.streams}
    for name, method in inspect.getmembers(type(invocation.target), inspect.isfunction):
        several = [*inspect.signature(method).parameters.values()][1:]
        needs = [each.name for each in several if each.default is each.empty and each.kind not in _ANY]
        is_own = not method.__module__.startswith("torch.") and not name.startswith("_")
        if is_own and needs and {*needs} <= streams:
            yield name, needs


def _held(module: nn.Module) -> dict[tuple[str, str], Any]:
    """The attributes of its modules that are empty or hold tensors, by path and name; no parameters and buffers."""
    return {
        (path, name): dict(value) if type(value) is dict else value
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if name not in _OF_MODULES and (_is_empty(value) or _is_of_tensors(value))
    }


def _put_back(live: nn.Module, kept: Sequence[tuple[str, str]], target: nn.Module) -> None:
    """Empty what a module keeps, and what it was kept by, as the shape of an input."""
    before, parts = dict(target.named_modules()), dict(live.named_modules())
    for path, part in parts.items():
        old = vars(before[path]) if path in before else {}
        for name, value in list(vars(part).items()):
            is_key = isinstance(value, bool | int | str | torch.Size | torch.device | torch.dtype)
            if name in _OF_MODULES or not ((path, name) in kept or is_key):
                continue
            if name in old:
                setattr(part, name, dict(old[name]) if type(old[name]) is dict else old[name])
            else:
                delattr(part, name)


def _size(value: Any) -> int:
    """How many numbers a value holds."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return value.numel() if isinstance(value, Tensor) else sum(map(_size, parts))


def _is_empty(value: Any) -> bool:
    return value is None or (type(value) is dict and not value)


def _is_of_tensors(value: Any) -> bool:
    several = [*value.values()] if isinstance(value, dict) else value if isinstance(value, tuple | list) else [value]
    parts = [one for each in several for one in (each if isinstance(each, tuple | list) else [each])]
    return len(parts) > 0 and all(isinstance(each, Tensor) for each in parts)


def _outputs(invocation: Invocation, module: nn.Module, method: str, given: dict[str, Any]) -> list[Tensor]:
    call = replace(invocation, arguments=given, positional=[], completion=None)
    return [each.detach().clone() for each in call.outputs(call.run(target=getattr(module, method)))]


def _is_same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    if [each.shape for each in one] != [each.shape for each in other]:
        return False
    gaps = [(a.double() - b.double()).abs() for a, b in zip(one, other, strict=True) if a.numel()]
    return all(bool(torch.isfinite(each).all()) and float(each.max()) <= SAME for each in gaps)
