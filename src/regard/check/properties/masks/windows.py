"""A window: how many tokens it has, beside the number that it was told and what its documentation says."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.code import code_of, documentation_of_functions
from regard.check.properties.documentation import (
    documentation_of,
    is_exclusive,
    is_inclusive,
    is_of_each_side,
    is_two_sided,
    name_and_documentation,
)
from regard.check.properties.evidence import may_be_causal
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.patterns import allowed_of, built_in_pattern
from regard.check.roles.influence import record_invocation
from regard.check.roles.instances import SOFTMAXES
from regard.check.target import Failed, Invocation
from regard.check.target.configs import is_config
from regard.check.target.influence import depends
from regard.check.target.names import constructor_meaning
from regard.check.target.preparation import modules_in
from regard.check.target.sizes import Sizes
from regard.check.target.told_numbers import numbers_of_arguments, numbers_told

__all__ = ["stacked_window_findings", "window_findings"]

MAX_WINDOW = 32
"""A larger one is not exercised: a call for each token is made."""
MORE_TOKENS = 3
"""Than the window has."""
SLIDING = re.compile("sliding|local", re.I)
"""Words for a window that goes along with the query; others may mean as many tokens as there can be."""
_KEEPS_FIRST = re.compile(r"sink|global|prefix|anchor|(?:first|initial|old\w*)[ _]tokens", re.I)
"""In code that keeps the first tokens on purpose."""


def window_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """What a window hides that is told how many tokens it has, with more tokens than that."""
    told = dict(_told(invocation))
    allowed = allowed_of(evidence)[0, 0]
    pattern, _ = built_in_pattern(allowed)
    if is_two_sided(documentation_of(invocation.target)):
        yield from _of_two_sides(invocation, evidence, allowed)
    line = evidence.base.instance.scores_location
    if invocation.in_steps and (kept := _keeps_the_first(invocation, allowed, [*told.values()])) is not None:
        message = (
            f"a cache that holds {kept} tokens drops the newest of them where it is full: query {kept + 1} sees itself "
            f"and keys 0 to {kept - 2}, and none of those right before it"
        )
        yield Finding("violation", "window-as-documented", "mask", message, line)
        return
    if len({*told.values()}) != 1 or pattern not in ("causal", "causal window"):
        return
    name, number = next(iter(told.items()))
    longer = _with_more_tokens(invocation, number)
    if longer is None:
        yield Finding("open", "mask-open", "mask", f"{name}={number}: not exercised with more tokens than that", line)
        return
    pattern, _ = built_in_pattern(longer)
    if pattern == "causal window":
        yield _of_width(invocation, name, number, int(longer.sum(-1).max()), line)
    if pattern == "causal" and _is_to_slide(invocation, name):
        message = f"with {name}={number}, a query of {len(longer)} tokens sees all keys before it: no window hides any"
        yield Finding("violation", "window-as-documented", "mask", message, line)
    if (ahead := _far_ahead(longer)) is not None:
        message = (
            f"with {name}={number}, query 0 of {len(longer)} tokens sees key {ahead}, a later one, though not key 1: "
            "the window opens what the causal mask hides"
        )
        yield Finding("violation", "window-as-documented", "mask", message, line)


def _keeps_the_first(invocation: Invocation, allowed: Tensor, told: list[int]) -> int | None:
    """How many tokens a full cache holds in which each new one takes the place of the one before it; else None.

    Not where the first are kept on purpose, as attention sinks are.

    Args:
        invocation: a call with one token after the other.
        allowed: (queries, keys) of it.
        told: the windows that it was told.
    """
    counts = [int(allowed.sum(-1).max())] if not bool(allowed[-1].all()) else told[:1]
    if not counts or counts[0] < 2 or _KEEPS_FIRST.search(code_of(invocation.target)):
        return None
    longer = _with_more_tokens(invocation, counts[0])
    if longer is None:
        return None
    query, key = (torch.arange(len(longer)) for _ in range(2))
    first = (key < counts[0] - 1) & (key <= query[:, None]) | (key == query[:, None])
    return counts[0] if longer.shape == first.shape and torch.equal(longer, first) else None


def stacked_window_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """The same of the layers of a model, where all that have a window have the same.

    Args:
        invocation: the call.
        evidence: of the first of its attentions.
    """
    told = dict(_told(invocation))
    if len({*told.values()}) != 1:
        return
    name, number = next(iter(told.items()))
    windows = [each for each in _weighted(invocation, number) if built_in_pattern(each)[0] == "causal window"]
    widths = {int(each.sum(-1).max()) for each in windows}
    if len(widths) == 1:
        yield _of_width(invocation, name, number, widths.pop(), evidence.base.instance.scores_location)


def _far_ahead(allowed: Tensor) -> int | None:
    """The least distance at which all queries see a later key, where none sees the one right after its own.

    A triangle of hidden keys that a second triangle cuts off, as by `tril(triu(hidden), window)`, is open behind it.
    What lets tokens read one another beside the attention, as a norm of all tokens, lets the nearest be read as well.

    Args:
        allowed: (queries, keys).
    """
    seen = [allowed.diagonal(distance) for distance in range(1, allowed.shape[1])]
    if not seen or any(bool(each.any()) != bool(each.all()) for each in seen) or bool(seen[0].any()):
        return None
    return next((distance for distance, each in enumerate(seen, 1) if bool(each.all())), None)


def _is_to_slide(invocation: Invocation, name: str) -> bool:
    """Whether what is called is told a window that slides, and nothing can be handed over or set in its place."""
    settings = [each for module in modules_in(invocation.target) for each in vars(module).items()]
    is_off = any(value is False and SLIDING.search(each) for each, value in settings)
    names = f"{name}\n\n{name_and_documentation(invocation.target)}"
    return bool(SLIDING.search(names)) and not is_off and not invocation.masks


def _of_width(invocation: Invocation, name: str, number: int, width: int, line: CodeLocation | None) -> Finding:
    seen = f"a query sees itself and the {width - 1} keys before it"
    configs = (inspect.getdoc(type(each)) or "" for each in invocation.arguments.values() if is_config(each))
    by_kind = {
        type(each): each
        for module in modules_in(invocation.target)
        for each in module.modules()
        if name in vars(each) or any(told == name for _, told, _ in numbers_of_arguments(each))
    }
    documentation = "\n\n".join(
        (
            documentation_of(invocation.target),
            documentation_of_functions(invocation.target),
            *configs,
            *map(documentation_of, by_kind.values()),
        )
    )
    if is_exclusive(documentation) and width != number + 1:
        message = f"{seen}; by its documentation {name}={number} keys come before it"
        return Finding("violation", "window-as-documented", "mask", message, line)
    if width == number:
        message = f"its own mask: causal window of {width}: {seen}, as {name}={number} says"
        return Finding("design", "mask-pattern", "mask", message, line)
    if is_inclusive(documentation):
        message = f"{seen}: {width} keys, and by its documentation {name}={number} has itself included"
        return Finding("violation", "window-as-documented", "mask", message, line)
    message = f"its own mask: causal window: with {name}={number}, {seen}"
    return Finding("design", "mask-pattern", "mask", message, line)


def _of_two_sides(invocation: Invocation, evidence: Evidence, allowed: Tensor) -> Iterator[Finding]:
    """A window that reaches farther to one side, or not as far, where the documentation says how far it reaches.

    Args:
        invocation: the call.
        evidence: of its attention.
        allowed: (queries, keys): what its own mask leaves.
    """
    number = max((each for _, each in _told(invocation)), default=0)
    allowed = _of_the_window(allowed)
    if built_in_pattern(allowed)[0] in ("full", "causal") and number > 0:
        longer = _with_more_tokens(invocation, number)
        allowed = allowed if longer is None else longer
    pattern, _ = built_in_pattern(allowed)
    is_window = pattern == "window" or (pattern == "causal window" and not may_be_causal(invocation))
    if not is_window or allowed.shape[0] != allowed.shape[1]:
        return
    query, key = allowed.nonzero().unbind(-1)
    back, ahead = int((query - key).max()), int((key - query).max())
    if back != ahead:
        message = f"a query sees {back} tokens back and {ahead} ahead; by its documentation both are the same"
    elif is_of_each_side(documentation_of(invocation.target)) and 0 < number != back < len(allowed) - 1:
        message = f"a query sees {back} tokens to each side; by its documentation they are {number}"
    else:
        return
    yield Finding("violation", "window-as-documented", "mask", message, evidence.base.instance.scores_location)


def _of_the_window(allowed: Tensor) -> Tensor:
    """(queries, keys) without the first tokens that see all tokens, and that all see, as global ones."""
    while len(allowed) > 1 and not bool(allowed.all()) and bool(allowed[0].all() and allowed[:, 0].all()):
        allowed = allowed[1:, 1:]
    return allowed


def _told(invocation: Invocation) -> Iterator[tuple[str, int]]:
    """The windows that the call or its modules were told: those of which a documentation speaks, not one that is kept.

    As `window` where `self.back = window - 1` is kept, and the documentation says what a window is.
    """
    kept = {
        attribute: (name, value)
        for module in modules_in(invocation.target)
        for each in module.modules()
        for attribute, name, value in numbers_of_arguments(each)
        if constructor_meaning(name.strip("_")) == "window" and re.search(rf"\b{name}\b", documentation_of(each))
    }
    for each, number in numbers_told(invocation):
        name, value = kept.get(each, (each, number))
        if constructor_meaning(name.strip("_")) == "window" and value > 0:
            yield name, value


def _longer(invocation: Invocation, number: int) -> Invocation | None:
    """The call with more tokens than a window has; None where it has no such call."""
    known, tokens = invocation.sizes, number + MORE_TOKENS
    if number > MAX_WINDOW or not {"heads", "kv_heads", "d_head"} <= known.keys():
        return None
    sizes = Sizes(1, tokens, tokens, known["heads"], known["kv_heads"], known["d_head"], beyond_window=True)
    return next(invocation.resized(sizes), None)


def _weighted(invocation: Invocation, number: int) -> list[Tensor]:
    """(queries, keys): of each softmax of that call, which keys have a weight in some head."""
    longer, tokens = _longer(invocation, number), number + MORE_TOKENS
    if longer is None:
        return []
    weights = (each.outputs[0].data for each in record_invocation(longer) if each.name in SOFTMAXES)
    return [(each != 0).flatten(0, -3).any(0) for each in weights if each.ndim > 2 and each.shape[-2:] == (tokens,) * 2]


def _with_more_tokens(invocation: Invocation, number: int) -> Tensor | None:
    """(queries, keys): which tokens of the keys an output hangs on; None where no such call runs.

    What token ids weigh is read off the softmax.
    """
    longer, tokens = _longer(invocation, number), number + MORE_TOKENS
    if longer is not None and [each.role for each in longer.streams] == ["ids"]:
        weighted = _weighted(invocation, number)
        return weighted[0] if len(weighted) == 1 else None
    read = None if longer is None else next((each for each in longer.streams if each.role in ("x", "v")), None)
    if longer is None or read is None or len(read.token_axes) != 1:
        return None
    axis = read.token_axes[0]
    try:
        moved = [depends(longer, read.argument, axis, key, longer.arguments)[:1] for key in range(tokens)]
    except (Failed, IndexError):  # it has fewer tokens
        return None
    if any(not each or each[0].ndim <= axis or each[0].shape[axis] != tokens for each in moved):
        return None
    return torch.stack([each[0].movedim(axis, 0).flatten(1).any(-1) for each in moved], -1)
