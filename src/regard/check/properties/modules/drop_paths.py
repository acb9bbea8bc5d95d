"""Stochastic depth: while it trains, a branch is left out for whole samples, and on average it is what it was."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from regard.check.properties.evidence import with_fresh_tokens
from regard.check.properties.finding import Finding
from regard.check.target import Failed, Invocation
from regard.check.target.argument import source_of
from regard.check.target.preparation import copied, in_mode

__all__ = ["drop_path_findings"]

PATHS = re.compile(r"drop_?path|stochastic_?depth", re.I)
"""In the names of classes and functions that leave out branches."""
_TOLD = re.compile(r"scale_by|rescale|scale_at|layer_?drop", re.I)
"""In the code of a class that is told whether it divides."""
DRAWS = 400
MOVED = 1e-9
SURE = 6.0
"""Standard deviations of a mean: one in a billion is as far away by chance."""


def drop_path_findings(invocation: Invocation) -> Iterator[Finding]:
    """A branch that is left out for the same tokens of all samples, and never for one sample of several.

    Huang et al. 2016, "Deep Networks with Stochastic Depth"; of each sample by itself as in Larsson et al. 2017,
    "FractalNet". Of (tokens, samples, width) the first axis, which such code draws along, is that of the tokens.

    And a branch that is divided by the share of samples that it stays for, as is said, and stays for another share.

    Args:
        invocation: a call of a module that is in eval().
    """
    if not isinstance(invocation.target, nn.Module):
        return
    paths = [
        name
        for name, each in invocation.target.named_modules()
        if name and PATHS.search(type(each).__name__) and not any(True for _ in each.children())
    ]
    axes = _sample_axes(invocation, lambda given: _handed_over(invocation, paths, given)) if paths else {}
    for path, (shape, axis) in axes.items():
        live = in_mode(copied(invocation.target.get_submodule(path)), training=True)
        draws = _draws(live, shape)
        found = [*_judged(draws, axis)] or [*_never_divided(in_mode(live, training=False), draws)]
        if found:
            yield Finding("violation", *found[0], module=path)
            return
    if axes and _leaves_nothing(invocation, [*axes]):
        message = (
            "where stochastic depth leaves out all that it is handed, what is returned hangs on no input: it stands "
            "behind the sum with the residual, and a sample that it leaves out is lost"
        )
        yield Finding("violation", "drop-path-of-samples", "block", message, module=next(iter(axes)))
        return
    functions = dict(_functions(invocation.target))
    calls = dict[str, tuple[tuple[Any, ...], dict[str, Any]]]()
    axes = _sample_axes(invocation, lambda given: _given_to_functions(invocation, functions, given, calls))
    for name, (shape, axis) in axes.items() if functions else ():
        args, kwargs = calls[name]
        function = functions[name]
        found = [*_judged(_draws(lambda ones: function(ones, *args[1:], **kwargs), shape), axis)]  # noqa: B023
        if found:
            step, text = found[0][:2], found[0][2]
            yield Finding("violation", *step, f"{name}(): {text}")
            return


def _judged(draws: Tensor | None, axis: int) -> Iterator[tuple[str, str, str]]:
    """What is wrong with what ones became, if something is: the property, its step, and a sentence.

    Args:
        draws: (draws, shape of the branch); None where that was not seen.
        axis: of the samples.
    """
    if draws is None:
        return
    drawn = [each for each in range(draws.ndim - 1) if bool((draws != draws.narrow(each + 1, 0, 1)).any())]
    if len(drawn) == 1 and axis not in drawn:
        message = (
            f"while it trains, it draws one number for each of the {draws.shape[drawn[0] + 1]} entries of axis "
            f"{drawn[0]}, for all samples alike: those stand along axis {axis}"
        )
        yield "drop-path-of-samples", "block", message
        return
    largest = float(draws.max())
    if largest <= 1 + MOVED or bool(((draws != 0) & (draws != largest)).any()):
        return  # nothing is left out, or what stays is not divided: it may be multiplied in eval()
    alone = draws
    for each in range(draws.ndim - 1, 0, -1):
        alone = alone.select(each, 0) if each - 1 not in drawn else alone
    kept, told = float((alone > 0).double().mean()), 1 / largest
    if abs(kept - told) > SURE * (told * (1 - told) / alone.numel()) ** 0.5:
        message = (
            f"while it trains, a branch stays for about {kept:.2g} of the samples, and what stays is divided by "
            f"{told:.3g}: on average it is {kept / told:.2g} times what it is in eval()"
        )
        yield "drop-path-keeps-mean", "block", message


def _never_divided(path: nn.Module, draws: Tensor | None) -> Iterator[tuple[str, str, str]]:
    """The same of what stays as it is in train(), and in eval() as well: nothing makes up for what is left out.

    Not of a class that is told so, as by scale_by_keep=False.

    Args:
        path: in eval().
        draws: (draws, shape of the branch).
    """
    if draws is None or not bool(((draws == 0) | (draws == 1)).all()) or _TOLD.search(source_of(type(path))):
        return
    kept = float(draws.mean())
    ones = torch.ones(draws.shape[1:], dtype=torch.float64)
    if 0.0 < kept < 1.0 and torch.equal(path(ones), ones):
        message = (
            f"while it trains, a branch stays for about {kept:.2g} of the samples as it is, and for all of them in "
            f"eval(): on average it is {kept:.2g} times what it is there"
        )
        yield "drop-path-keeps-mean", "block", message


def _leaves_nothing(invocation: Invocation, paths: list[str]) -> bool:
    """Whether what a block returns hangs on nothing that it is handed, where the modules of some paths return zeros.

    The block is what the first of them is a part of.
    """
    live, seen = copied(invocation.target), list[tuple[Any, Any]]()
    for path in paths:
        live.get_submodule(path).register_forward_hook(lambda _, __, made: torch.zeros_like(made))
    owner = live.get_submodule(paths[0].rpartition(".")[0])
    owner.register_forward_hook(
        lambda _, args, kwargs, made: seen.append((tree_leaves((args, kwargs)), tree_leaves(made))), with_kwargs=True
    )
    try:
        for each in (invocation.arguments, with_fresh_tokens(invocation)):
            invocation.run(each, target=live)
    except Failed:
        return False
    if len(seen) < 2 or len(seen) % 2:
        return False
    (given, made), (fresh, other) = seen[0], seen[len(seen) // 2]
    handed = [pair for pair in zip(given, fresh, strict=False) if isinstance(pair[0], Tensor)]
    is_handed = any(not torch.equal(*pair) for pair in handed)
    returned = [pair for pair in zip(made, other, strict=False) if isinstance(pair[0], Tensor)]
    return is_handed and bool(returned) and all(torch.equal(*pair) for pair in returned)


def _sample_axes(
    invocation: Invocation, handed: Callable[[Mapping[str, Any]], dict[str, Tensor]]
) -> Mapping[str, tuple[torch.Size, int]]:
    """Of each of some modules or functions that are handed a tensor: its shape, and the axis of the samples in it.

    That is the one of which one sample has a part.
    """
    stream = invocation.streams[0]
    given = invocation.arguments[stream.argument]
    if stream.batch_axis is None or given.shape[stream.batch_axis] < 2 or not given.is_floating_point():
        return {}
    moved = given.clone()
    moved.select(stream.batch_axis, 0).mul_(0.5).add_(1.0)
    try:
        before, after = (handed({**invocation.arguments, stream.argument: each}) for each in (given, moved))
    except Failed:
        return {}
    found = {}
    for path in before.keys() & after.keys():
        if before[path].shape != after[path].shape:
            continue
        changed = (before[path] - after[path]).abs() > MOVED
        partly = [axis for axis in range(changed.ndim) if not bool(_along(changed, axis).all())]
        if len(partly) == 1 and bool(changed.any()):
            found[path] = (changed.shape, partly[0])
    return found


def _handed_over(invocation: Invocation, paths: list[str], arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    """What each of some modules is handed first in a call."""
    live, found = copied(invocation.target), dict[str, Tensor]()
    for path in paths:
        live.get_submodule(path).register_forward_pre_hook(lambda _, given, path=path: _keep(found, path, given))
    invocation.run(arguments, target=live)
    return found


def _functions(target: nn.Module) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions of the files of a module's classes that leave out branches by their names."""
    for names in _namespaces(target):
        for name, each in names.items():
            if inspect.isfunction(each) and PATHS.search(name):
                yield name, each


def _namespaces(target: nn.Module) -> list[dict[str, Any]]:
    """The names of the files in which the classes of a module stand, but for PyTorch's own."""
    found: dict[int, dict[str, Any]] = {}
    for kind in {type(each) for each in target.modules()}:
        names = getattr(kind.forward, "__globals__", {})
        if not str(names.get("__name__", "torch.")).startswith("torch."):
            found[id(names)] = names
    return [*found.values()]


def _given_to_functions(
    invocation: Invocation,
    functions: Mapping[str, Callable[..., Any]],
    arguments: Mapping[str, Any],
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]],
) -> dict[str, Tensor]:
    """What each of some functions is handed first in a call in train(), and in `calls` all that it is."""
    found = dict[str, Tensor]()

    def kept(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any, **kwargs: Any) -> Any:
            if args and name not in found:
                _keep(found, name, args)
                calls[name] = args, kwargs
            return args[0] if args and isinstance(args[0], Tensor) else function(*args, **kwargs)

        return inner

    live = in_mode(copied(invocation.target), training=True)
    with _replaced(invocation.target, {name: kept(name, each) for name, each in functions.items()}):
        invocation.run(arguments, target=live)
    return found


@contextmanager
def _replaced(target: nn.Module, functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Inside, the classes of a module find other functions under some names of their files."""
    spaces = _namespaces(target)
    before = [{name: names[name] for name in functions if name in names} for names in spaces]
    try:
        for names, known in zip(spaces, before, strict=True):
            names.update({name: functions[name] for name in known})
        yield
    finally:
        for names, known in zip(spaces, before, strict=True):
            names.update(known)


def _keep(found: dict[str, Tensor], path: str, given: tuple[Any, ...]) -> None:
    if given and isinstance(given[0], Tensor):
        found.setdefault(path, given[0].detach().clone())


def _draws(path: Callable[[Tensor], Any], shape: torch.Size) -> Tensor | None:
    """What ones become in training, many times; None where that is not seen."""
    made = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for _ in range(DRAWS):
            try:
                each = path(torch.ones(shape, dtype=torch.float64))
            except Exception:  # the code's own may raise anything
                return None
            if not isinstance(each, Tensor) or each.shape != shape:
                return None
            made.append(each)
    return torch.stack(made)


def _along(changed: Tensor, axis: int) -> Tensor:
    """(entries of an axis): whether something of each has changed."""
    return changed.movedim(axis, 0).flatten(1).any(1)
