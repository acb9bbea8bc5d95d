"""States that are told which beams go on: all that they keep of a beam is that of the beam it comes from."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.properties.masks.drawn import padding_mask
from regard.check.target import Invocation
from regard.check.target.cache_forms import parameters_of
from regard.check.target.cache_search import other_tokens
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied

__all__ = ["beam_state_findings"]

_ORDERS = re.compile(r"_?(?:reorder|permute_beams?|(?:batch_|beam_|index_)?select)(?:_\w+)?_?")
"""Methods that put what is kept into another order of samples."""
_OF_THE_SOURCE = re.compile(r"mem|enc|cross|static|source|src|context")
"""What all beams of a sample share: an order of these leaves it as it is."""
TOLERANCE = 1e-9
"""Of the largest number of an output."""


def beam_state_findings(invocation: Invocation) -> Iterator[Finding]:
    """A state whose beams are put into another order, and that answers otherwise than one which was made in that order.

    What the first call is given differs among samples: its tokens, and its masks of padding.

    Args:
        invocation: a call that takes an object of a class of its file, and needs none.
    """
    axes = {each.argument: each.batch_axis for each in invocation.streams}
    counts = {invocation.arguments[name].shape[axis] for name, axis in axes.items() if axis is not None}
    if None in axes.values() or len(counts) != 1 or min(counts) < 2 or invocation.arrays:
        return
    count = counts.pop()
    order = torch.arange(count).roll(1)
    for name, kind, method in _states(invocation):
        before = {**other_tokens(invocation), **_paddings(invocation, count)}
        ordered = {
            key: each.index_select(axes.get(key) or 0, order)
            for key, each in before.items()
            if isinstance(each, Tensor)
        }

        def answer(first: dict[str, Tensor], change: str = "") -> tuple[Tensor, list[str]]:
            target, state, left = copied(invocation.target), kind(), list[str]()  # noqa: B023
            invocation.run({**invocation.arguments, **first, name: state}, target=target, shared=(name,))  # noqa: B023
            if change:
                kept = {key: each for key, each in vars(state).items() if isinstance(each, Tensor) and each.ndim}
                kept = {key: each.clone() for key, each in kept.items() if len(each) == count}
                made = getattr(state, change)(order)
                state = made if isinstance(made, kind) else state  # noqa: B023
                left = [
                    key
                    for key, each in kept.items()
                    if not torch.equal(each, each[order]) and torch.equal(getattr(state, key), each)
                ]
            result = invocation.run({**invocation.arguments, name: state}, target=target, shared=(name,))  # noqa: B023
            return invocation.outputs(result)[0].detach(), left

        try:
            (found, left), (wanted, _), (unmoved, _) = answer(before, method), answer(ordered), answer(before)
        except (Failed, RuntimeError, IndexError, ValueError, TypeError, AttributeError):
            continue
        if not found.shape == wanted.shape == unmoved.shape or not bool((found - wanted).isfinite().all()):
            continue
        most = TOLERANCE * max(1.0, float(wanted.abs().max()))
        gap = float((found - wanted).abs().max())
        has_an_effect = float((unmoved - wanted).abs().max()) > most and float((unmoved - found).abs().max()) > most
        if gap > most and has_an_effect and left and not any(map(_OF_THE_SOURCE.search, left)):
            message = (
                f"{kind.__name__}.{method}() leaves {', '.join(left)} in the old order: the output differs by up to "
                f"{gap:.2g} from that of the same beams kept in the new one"
            )
            yield Finding("violation", "cache-beams", "k", message)
            return


def _states(invocation: Invocation) -> Iterator[tuple[str, Any, str]]:
    """The arguments that take an object of a class which needs nothing to be made, and its method of an order."""
    names = vars(sys.modules.get(type(invocation.target).__module__, object))
    for name, parameter in parameters_of(invocation.target).items():
        if parameter.default is not None or invocation.arguments.get(name) is not None:
            continue
        text = parameter.annotation if isinstance(parameter.annotation, str) else str(parameter.annotation)
        for word in dict.fromkeys(re.findall(r"\w+", text)):
            kind = names.get(word)
            if not inspect.isclass(kind) or issubclass(kind, Tensor) or _required(kind):
                continue
            for method, function in inspect.getmembers(kind, inspect.isfunction):
                if _ORDERS.fullmatch(method) and len(_required(function)) == 2:
                    yield name, kind, method


def _required(function: Any) -> list[str]:
    """The arguments that have to be given."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return [""]
    return [each.name for each in parameters if each.default is each.empty and each.kind not in (2, 4)]


def _paddings(invocation: Invocation, count: int) -> dict[str, Tensor]:
    """Masks of padding in front that are no two alike, for those that the call has to be given."""
    found = {}
    for name in invocation.masks:
        value = invocation.arguments.get(name)
        if isinstance(value, Tensor) and value.ndim == 2 and len(value) == count and value.dtype == torch.bool:
            found[name] = padding_mask(list(value.shape), "front")
    return found
