"""Stochastic depth: while it trains, a branch is left out for whole samples."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.properties.finding import Finding
from regard.check.target import Failed, Invocation
from regard.check.target.preparation import copied

__all__ = ["drop_path_findings"]

PATHS = re.compile(r"drop_?path|stochastic_?depth", re.I)
"""In the names of classes that leave out branches."""
DRAWS = 100
MOVED = 1e-9


def drop_path_findings(invocation: Invocation) -> Iterator[Finding]:
    """A branch that is left out for the same tokens of all samples, and never for one sample of several.

    Huang et al. 2016, "Deep Networks with Stochastic Depth"; of each sample by itself as in Larsson et al. 2017,
    "FractalNet". Of (tokens, samples, width) the first axis, which such code draws along, is that of the tokens.

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
    axes = _sample_axes(invocation, paths) if paths else {}
    for path, (shape, axis) in axes.items():
        drawn = _drawn_along(invocation.target.get_submodule(path), shape)
        if len(drawn) == 1 and axis not in drawn:
            message = (
                f"while it trains, it draws one number for each of the {shape[drawn[0]]} entries of axis "
                f"{drawn[0]}, for all samples alike: those stand along axis {axis}"
            )
            yield Finding("violation", "drop-path-of-samples", "block", message, module=path)
            return


def _sample_axes(invocation: Invocation, paths: list[str]) -> Mapping[str, tuple[torch.Size, int]]:
    """Of each of some modules that are handed a tensor: its shape, and the axis that one sample has a part of."""
    stream = invocation.streams[0]
    given = invocation.arguments[stream.argument]
    if stream.batch_axis is None or given.shape[stream.batch_axis] < 2 or not given.is_floating_point():
        return {}
    moved = given.clone()
    moved.select(stream.batch_axis, 0).mul_(0.5).add_(1.0)
    try:
        before, after = (
            _handed_over(invocation, paths, {**invocation.arguments, stream.argument: each}) for each in (given, moved)
        )
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


def _keep(found: dict[str, Tensor], path: str, given: tuple[Any, ...]) -> None:
    if given and isinstance(given[0], Tensor):
        found.setdefault(path, given[0].detach().clone())


def _drawn_along(path: nn.Module, shape: torch.Size) -> list[int]:
    """The axes along which ones become other numbers in training; none where nothing is left out, or all at once."""
    live, axes, dtype = copied(path).train(), set[int](), torch.float64
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for _ in range(DRAWS):
            try:
                made = live(torch.ones(shape, dtype=dtype))
            except Exception:  # the code's own may raise anything
                return []
            if not isinstance(made, Tensor) or made.shape != shape:
                return []
            axes |= {axis for axis in range(len(shape)) if bool((made != made.narrow(axis, 0, 1)).any())}
    return sorted(axes)


def _along(changed: Tensor, axis: int) -> Tensor:
    """(entries of an axis): whether something of each has changed."""
    return changed.movedim(axis, 0).flatten(1).any(1)
