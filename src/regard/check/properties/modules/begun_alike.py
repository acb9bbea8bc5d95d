"""Units of a layer that begin alike and learn alike: heads, channels or learned tokens that never become several.

Rumelhart, Hinton and Williams 1986: units that begin with equal weights get equal errors, and develop equal weights;
"symmetry breaking" is what small random numbers are for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain, islice

import torch
from torch import Tensor, nn

from regard.check.properties.finding import Finding
from regard.check.properties.modules.begun_as_zeros import is_written_as_zeros
from regard.check.target import Invocation
from regard.check.target.argument import source_of
from regard.check.target.classes import own_classes
from regard.check.target.errors import Failed
from regard.check.target.first_numbers import equal_units
from regard.check.target.preparation import copied, drawn_like, first_numbers

__all__ = ["begun_alike_findings"]

ALIKE = 1e-9
"""How much gradients of units may differ that are the same, as a share of the largest."""
MOVING = 1e-6
"""The same share that a gradient has at least, of a unit that moves."""
ROUNDING = 1e-13
"""The largest gradient of numbers that change nothing in a call, as what is added to all scores of a query."""

_SEEDS = re.compile(r"^\s*(?:(?:np|numpy|torch|random)\.)+(?:manual_)?seed(?:_all)?\(", re.M)
"""The line that lets the random numbers begin again, for all of the program."""


def begun_alike_findings(invocation: Invocation) -> Iterator[Finding]:
    """What is to become several, and begins with the same numbers: matrices of one seed, and rows of one matrix.

    Args:
        invocation: the call.
    """
    yield from islice(chain(_of_one_seed(invocation.target), _of_units(invocation)), 1)


def _of_one_seed(target: object) -> Iterator[Finding]:
    """Matrices of the same numbers, each of another object whose constructor lets the random numbers begin again.

    Copies of one layer begin alike as well, and are often drawn anew where a model is made of them: no seed says so.
    """
    first = first_numbers(target)
    if not isinstance(target, nn.Module) or first is None:
        return
    seeded = {path: type(each).__name__ for path, each in target.named_modules() if _sets_a_seed(type(each))}
    for names in first.twins:
        owners = [{path for path in seeded if path and f"{name}.".startswith(f"{path}.")} for name in names]
        if all(owners) and not set.intersection(*owners):
            message = (
                f"{', '.join(names[:-1])} and {names[-1]} begin with the same numbers: the constructor of "
                f"{seeded[max(owners[0])]} sets the seed of all random numbers each time"
            )
            yield Finding("violation", "drawn-apart", "projections", message)
            return


def _sets_a_seed(kind: type) -> bool:
    return own_classes(kind)[:1] == [kind] and _SEEDS.search(source_of(vars(kind).get("__init__"))) is not None


def _of_units(invocation: Invocation) -> Iterator[Finding]:
    """Rows of a matrix that begin with the same numbers, and that get the same gradient, whatever the output is to be.

    One call more, of modules that have such rows. Most of these learn: rows of zeros, as of positions, get gradients
    of their own by what stands around them.

    Args:
        invocation: the call.
    """
    target, first = invocation.target, first_numbers(invocation.target)
    if not isinstance(target, nn.Module) or first is None or not first.alike:
        return
    live = copied(target)
    parameters = dict(live.named_parameters())
    if any(name not in parameters or parameters[name].shape != each.shape for name, each in first.numbers.items()):
        return
    with torch.no_grad():
        for name, numbers in first.numbers.items():
            parameters[name].copy_(numbers)
    gradients = _gradients(invocation, live, {name: parameters[name] for name in first.alike})
    for name, gradient in gradients.items():
        rows = _moving_alike(first.numbers[name], gradient)
        is_known = bool(first.numbers[name].any()) or is_written_as_zeros(live, name)
        if rows and is_known:  # memory that nothing was written to may hold anything
            message = (
                f"{len(rows)} of the {_count(gradient)} rows of {name} begin with the same numbers and get the same "
                "gradient, whatever is trained: they stay the same, and are one row"
            )
            yield Finding("violation", "begins-apart", "projections", message)
            return


def _gradients(invocation: Invocation, live: nn.Module, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of some parameters, of a sum in which each number of the outputs counts as much as none other."""
    try:
        with torch.enable_grad():
            outputs = [each for each in invocation.outputs(invocation.run(target=live)) if each.requires_grad]
            total = sum((each * drawn_like(each, seed=3)).sum() for each in outputs)
            if not isinstance(total, Tensor):
                return {}
            found = torch.autograd.grad(total, [*parameters.values()], allow_unused=True)
    except (Failed, RuntimeError):
        return {}
    return {name: each for name, each in zip(parameters, found, strict=True) if each is not None}


def _moving_alike(numbers: Tensor, gradient: Tensor) -> list[int]:
    """The rows of the largest group whose numbers are the same, and whose gradients are so and are not zero."""
    largest, found = float(gradient.abs().max()), list[int]()
    if not ROUNDING < largest < torch.inf:
        return []
    axis = next(each for each, size in enumerate(gradient.shape) if size > 1)
    rows = gradient.movedim(axis, 0).flatten(1)
    for several in equal_units(numbers):
        moving = [each for each in several if float(rows[each].abs().max()) > MOVING * largest]
        for one in moving:
            alike = [each for each in moving if bool(((rows[each] - rows[one]).abs() <= ALIKE * largest).all())]
            found = alike if len(alike) > max(1, len(found)) else found
    return found


def _count(gradient: Tensor) -> int:
    return next(size for size in gradient.shape if size > 1)
