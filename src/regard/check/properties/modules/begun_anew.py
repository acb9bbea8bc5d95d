"""A method that begins another sequence: the steps after it read nothing of the sequence before."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.properties.finding import Finding
from regard.check.properties.other_methods import needs_of
from regard.check.target import Invocation, Stream
from regard.check.target.cache_forms import cache_names
from regard.check.target.cache_search import other_tokens
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied

__all__ = ["begun_anew_findings"]

_BEGINS = re.compile(
    r"(?:start|begin|reset|clear|new)(?:_(?:\w+_)?(?:cache|caches|states?|memory|memories|source|sequence|decoding|"
    r"generation|sentence|context|buffers?))?|(?:init|set)_(?:\w+_)?(?:cache|caches|states?|memory|decoding|generation)"
)
_STEPS = re.compile(r"(?:forward_|decode_|decoding_|generation_|inference_|generate_)?(?:step|one|token)(?:_forward)?")
"""Names of what begins a sequence, and of what reads one token of it."""
_FORGETS = re.compile(r"(?:reset|clear|empty|flush|forget)(?:_(?:\w+_)?(?:kv|caches?|states?|memory|memories|past))?")
"""Names of what makes a module forget the sequence that its own call has read."""
TOKENS = 2
"""That are read of either sequence."""
SAME = 1e-9


@dataclass(frozen=True)
class _Steps:
    """How a sequence is read in steps."""

    begin: str
    given: tuple[str, ...]
    """The arguments of the method that begins."""
    step: str
    token: str
    """The argument of a step that is one token."""
    beside: tuple[str, ...]
    """Its other arguments, which are the same for all tokens."""
    before: tuple[str, ...]
    """Other methods that begin a sequence, and take nothing: they may empty what this one leaves to them."""


def begun_anew_findings(invocation: Invocation) -> Iterator[Finding]:
    """A second sequence that is computed in other numbers than by a module that has read none before.

    Args:
        invocation: a call of a module with the whole sequence, by whose arguments those of its methods are known.
    """
    stream = next((each for each in invocation.streams if each.role in ("x", "q", "ids")), None)
    if not isinstance(invocation.target, nn.Module) or invocation.packed or stream is None:
        return
    if len(stream.token_axes) != 1:
        return
    others = {**invocation.arguments, **other_tokens(invocation)}
    yield from itertools.islice(_of_calls(invocation, others), 1)
    for steps in _ways(invocation, stream):
        for is_cut in (False, True):  # with an axis of one token, or without it
            first, second = (
                [_call(steps, each, (stream, is_cut)) for each in several]
                for several in ([invocation.arguments], [others, invocation.arguments])
            )
            try:
                alone, again, after = (
                    _outputs(invocation, calls, seed) for calls, seed in ((first, 0), (first, 1), (second, 0))
                )
            except Failed:
                continue
            if not alone or _gap(alone, again) > SAME or (gap := _gap(alone, after)) <= SAME:
                break
            message = (
                f"after {steps.begin}({', '.join(steps.given)}) a second sequence is read with what is left of the one "
                f"before: {steps.step}() returns numbers that differ by up to {gap:.3g} from those of a new module"
            )
            yield Finding("violation", "begun-anew", "call", message)
            return


def _of_calls(invocation: Invocation, others: Mapping[str, Any]) -> Iterator[Finding]:
    """What is kept by the calls of a module themselves, beyond the method that makes it forget.

    Args:
        invocation: the call.
        others: its arguments with other tokens.
    """
    flags = dict.fromkeys(cache_names(invocation).flags, True)
    methods = [
        name
        for name, method in inspect.getmembers(type(invocation.target), inspect.isfunction)
        if _FORGETS.fullmatch(name)
        and all(each.default is not each.empty for each in [*inspect.signature(method).parameters.values()][1:])
    ]
    if not methods:
        return

    def after(live: nn.Module, before: Sequence[Mapping[str, Any]], names: Sequence[str], seed: int) -> list[Tensor]:
        for each in before:
            invocation.run({**each, **flags}, target=live)
        for name in names:
            getattr(live, name)()
        pairs = zip(live.parameters(), invocation.target.parameters(), strict=True)
        if not all(torch.equal(mine, own) for mine, own in pairs):
            raise Failed("parameters are drawn anew: another model is begun, and no sequence")
        result = invocation.run({**invocation.arguments, **flags}, target=live, seed=seed)
        return [each.detach().clone() for each in invocation.outputs(result)]

    try:
        alone, again = (after(copied(invocation.target), [], [], seed) for seed in (0, 1))
        kept, anew = (after(copied(invocation.target), [others], names, 0) for names in ([], methods))
    except Exception:  # methods of the code's own may raise anything
        return
    # What is longer was made by what is kept; a method that changes nothing is of something else.
    if not alone or _gap(alone, again) > SAME or _gap(anew, kept) <= SAME or (gap := _gap(alone, anew)) <= SAME:
        return
    text = " and ".join(f"{each}()" for each in methods)
    message = (
        f"after {text} a second sequence is read with what is left of the one before: the call"
        f"{''.join(f' with {each}=True' for each in flags)} returns numbers that differ by up to {gap:.3g} from those "
        "of a new module"
    )
    yield Finding("violation", "begun-anew", "call", message)


def _ways(invocation: Invocation, stream: Stream) -> Iterator[_Steps]:
    """Each pair of methods of its class that begin a sequence and read a token, where all that they need is known."""
    needs = {
        name: needs_of(method)
        for name, method in inspect.getmembers(type(invocation.target), inspect.isfunction)
        if _BEGINS.fullmatch(name) or _STEPS.fullmatch(name)
    }
    known, plain = set(invocation.arguments), [each for each in needs if _BEGINS.fullmatch(each) and not needs[each]]
    for begin in filter(_BEGINS.fullmatch, needs):
        for step in filter(_STEPS.fullmatch, needs):
            tokens = [each for each in needs[step] if each not in known - {stream.argument}]
            if len(tokens) == 1 and {*needs[begin]} <= known - {stream.argument}:
                beside = (each for each in needs[step] if each != tokens[0])
                before = (each for each in plain if each != begin)
                yield _Steps(begin, tuple(needs[begin]), step, tokens[0], tuple(beside), tuple(before))


def _call(steps: _Steps, arguments: Mapping[str, Any], token: tuple[Stream, bool]) -> Callable[[Any], list[Any]]:
    """One sequence that is begun and of which some tokens are read."""
    stream, is_cut = token
    sequence, axis = arguments[stream.argument], stream.token_axes[0]

    def run(module: Any) -> list[Any]:
        for name in steps.before:
            getattr(module, name)()
        getattr(module, steps.begin)(*(arguments[each] for each in steps.given))
        beside = {name: arguments[name] for name in steps.beside}
        found = []
        for at in range(min(TOKENS, sequence.shape[axis])):
            one = sequence.select(axis, at) if is_cut else sequence.narrow(axis, at, 1)
            found.append(getattr(module, steps.step)(**{steps.token: one.clone()}, **beside))
        return found

    return run


def _outputs(invocation: Invocation, calls: Sequence[Callable[[Any], list[Any]]], seed: int) -> list[Tensor]:
    """What the last of some sequences returns, of one copy of the module."""
    live = copied(invocation.target)
    call = replace(invocation, arguments={}, positional=[], completion=None)
    result = call.run(seed=seed, target=lambda: [each(live) for each in calls][-1])
    return [each.detach() for each in invocation.outputs(result)]


def _gap(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """The largest difference; infinite where there are others."""
    if [each.shape for each in one] != [each.shape for each in other]:
        return torch.inf
    return max((float((a - b).abs().max()) for a, b in zip(one, other, strict=True) if a.numel()), default=0.0)
