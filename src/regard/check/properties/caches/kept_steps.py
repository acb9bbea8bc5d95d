"""A method for one token, which reads what the module keeps of the tokens before, gives what the call gives."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from regard.check.properties.caches.step_methods import OTHERWISE, STATE, STEP, row_of_the_call
from regard.check.properties.code import code_of, line_of
from regard.check.properties.finding import Finding
from regard.check.properties.other_methods import needs_of
from regard.check.target import Invocation, Stream
from regard.check.target.cache_forms import RESET, cache_names
from regard.check.target.cache_search import other_tokens
from regard.check.target.errors import Failed
from regard.check.target.names import call_meaning
from regard.check.target.preparation import copied

__all__ = ["kept_step_findings"]

_PREFILLS = re.compile(
    r"prefill\w*|prime|(?:fill|load|write|init|start|begin|set)_?(?:kv_?)?(?:cache|prompt|prefix|context)|process_prompt"
    r"|(?:read|encode|forward)_(?:prompt|prefix)"
)
"""Names of what reads the first tokens."""
_OF_A_PROMPT = re.compile(r"^prefill|^prime$|prompt")
_ALLOCATES = re.compile(
    r"(?:setup|init|allocate|alloc|make|create|build|prepare|reset|start|begin)_?\w*(?:cache|state|buffer|past)\w*|setup"
)
_BEGINS = re.compile(
    r"(?:start|begin|new|init|restart)(?:_(?:new_?)?(?:sequence|text|decoding|generation|state|stream|steps?|cache))?"
)
"""Names of what begins another text, beside those of what forgets one."""
_BATCH = re.compile(r"b|bs|bsz|n?_?batch(?:_?size)?|max_batch(?:_size)?")
_LENGTH = re.compile(
    r"(?:max_?)?(?:seq(?:uence)?_?|cache_?|context_?)?(?:len(?:gth)?|size|tokens)|max_seq\w*|max_\w*len\w*|capacity"
)
_UNLIKE = re.compile(r"\bsinks?\b|streaming|budget|\brecent\b|top-?k\b|\bprun|\bsparse", re.I)
"""In code whose steps see fewer tokens on purpose."""
PREFIX, MIN_TOKENS = 2, 4
SAME = 1e-8
"""Of the largest number of an output."""
OTHER = 2e-2
"""The same: a cache in low precision rounds by less."""


@dataclass(frozen=True, eq=False)
class _Way:
    """How a text is read token by token."""

    begin: Callable[[Any, Any], None]
    """What is done with a copy of the module, and the tokens, first."""
    first: int
    """How many tokens that reads."""
    step: str
    is_kept: bool
    """Whether a token keeps its axis of tokens."""


@dataclass(frozen=True, eq=False)
class _Gap:
    """How far what a method returns is from what the call gives."""

    way: _Way
    number: int
    """The first token of which it is another."""
    gap: float
    is_equal: bool
    is_other: bool
    """Whether it is another by more than is rounded."""


def kept_step_findings(invocation: Invocation) -> Iterator[Finding]:
    """A method that takes one token, with the module's own memory, and gives something else than the call.

    Whatever way there is in which both are the same is the one that is meant, but behind a method that is said to read
    a prompt. Else a way is asked in which the method computes with the same layers as the call, in the same order, and
    what it returns hangs on the tokens before.

    Args:
        invocation: a call of a module, of one sequence.
    """
    target, streams = invocation.target, invocation.streams
    if not isinstance(target, nn.Module) or len(streams) != 1 or len(streams[0].token_axes) != 1 or invocation.packed:
        return
    stream = streams[0]
    given, (axis,) = invocation.arguments[stream.argument], stream.token_axes
    methods = [*_steps(target)]
    if not methods or given.shape[axis] < MIN_TOKENS or stream.batch_axis is None:
        return
    code = code_of(target)
    if OTHERWISE.search(code) or _UNLIKE.search(code):
        return
    try:
        whole = [row_of_the_call(invocation, stream.argument, axis, number + 1) for number in range(given.shape[axis])]
    except (Failed, RuntimeError, IndexError, ValueError):
        return
    for name in methods:
        told, wrong, are_equal = list[_Gap](), list[_Gap](), False
        for begin, first, is_prompt in _beginnings(invocation, stream):
            ways = [_Way(begin, first, name, is_kept) for is_kept in (True, False)]
            gaps = [each for way in ways if (each := _gap(invocation, stream, way, whole)) is not None]
            if any(each.is_equal for each in gaps):
                are_equal = True
            else:
                (told if is_prompt else wrong).extend(each for each in gaps if each.is_other)
        for found in (*told, *(wrong if not are_equal else ())):
            if not _is_causal(invocation, stream, whole) or not _is_of_the_call(invocation, stream, found.way):
                continue
            number, gap = found.number, found.gap
            message = (
                f"token by token {name}() gives token {number} an output that differs by up to {gap:.2g} from that of "
                f"the call, which reads the {number + 1} tokens at once: what the module keeps for it is not what the "
                "call computes"
            )
            yield Finding(
                "violation", "kept-steps-equal-whole", "output", message, line_of(getattr(type(target), name))
            )
            return


def _gap(invocation: Invocation, stream: Stream, way: _Way, whole: Sequence[Tensor]) -> _Gap | None:
    """What a way gives, beside the outputs of the call; None where it does not run, or gives others in size."""
    stepped, _ = _stepped(invocation, stream, way, invocation.arguments[stream.argument])
    pairs = list(zip(stepped, whole[way.first :], strict=False))
    if not pairs or any(one.numel() != other.numel() for one, other in pairs):
        return None
    largest = max(1.0, *(float(each.abs().max()) for each in whole))
    gaps = [float((one.flatten() - other.flatten()).abs().max()) for one, other in pairs]
    at = next((at for at, gap in enumerate(gaps) if not gap <= SAME * largest), None)
    return _Gap(way, way.first + (at or 0), gaps[at or 0], at is None, max(gaps) > OTHER * largest)


def _steps(target: nn.Module) -> Iterator[str]:
    """The methods of a module's class that need one token alone, or that and its place."""
    for name, method in inspect.getmembers(type(target), inspect.isfunction):
        if method.__module__.startswith("torch.") or not STEP.fullmatch(name.lstrip("_")):
            continue
        several = [*inspect.signature(method).parameters.values()][1:]
        if not several or any(STATE.fullmatch(each.name) for each in several):
            continue
        needed = needs_of(method)
        if needed[:1] == [several[0].name] and all(call_meaning(each) in ("start", "positions") for each in needed[1:]):
            yield name


def _beginnings(invocation: Invocation, stream: Stream) -> Iterator[tuple[Callable[[Any, Any], None], int, bool]]:
    """Ways to begin a text: what is called first, how many tokens that reads, and whether its name says a prompt."""
    kind, (axis,) = type(invocation.target), stream.token_axes
    methods = [
        each for each in inspect.getmembers(kind, inspect.isfunction) if not each[1].__module__.startswith("torch.")
    ]
    resets = [name for name, each in methods if (RESET.search(name) or _BEGINS.fullmatch(name)) and not needs_of(each)]
    given = invocation.arguments[stream.argument]
    batch, tokens = given.shape[stream.batch_axis or 0], given.shape[axis]
    flags = dict.fromkeys(cache_names(invocation).flags, True)

    def forget(live: Any) -> None:
        for name in resets:
            getattr(live, name)()

    def called(live: Any, text: Tensor) -> None:
        forget(live)
        rest = {name: value for name, value in invocation.arguments.items() if name != stream.argument}
        invocation.run({**rest, stream.argument: text.narrow(axis, 0, PREFIX), **flags}, target=live)

    def prefilled(name: str, live: Any, text: Tensor) -> None:
        forget(live)
        getattr(live, name)(text.narrow(axis, 0, PREFIX).clone())

    def allocated(name: str, needed: Sequence[str], live: Any, _: Tensor) -> None:
        getattr(live, name)(**{each: batch if _BATCH.fullmatch(each) else tokens for each in needed})

    yield lambda live, _: forget(live), 0, False
    yield called, PREFIX, False
    for name, method in methods:
        needed = needs_of(method)
        if _PREFILLS.fullmatch(name) and len(needed) == 1 and not _BATCH.fullmatch(needed[0]):
            yield partial(prefilled, name), PREFIX, _OF_A_PROMPT.search(name) is not None
        known = all(_BATCH.fullmatch(each) or _LENGTH.fullmatch(each) for each in needed)
        if _ALLOCATES.fullmatch(name) and needed and known:
            yield partial(allocated, name, needed), 0, False


def _stepped(invocation: Invocation, stream: Stream, way: _Way, text: Tensor) -> tuple[list[Tensor], list[str]]:
    """What a method returns for each token that is not read first, and the layers of the last; none where it raises."""
    live, (axis,), layers = copied(invocation.target), stream.token_axes, list[str]()
    _note(live, layers)
    method = getattr(live, way.step)
    token, *rest = needs_of(method.__func__)

    def run() -> list[Tensor]:
        way.begin(live, text)
        found = []
        for at in range(way.first, text.shape[axis]):
            one = text.narrow(axis, at, 1) if way.is_kept else text.select(axis, at)
            where = {each: torch.tensor([at]) if call_meaning(each) == "positions" else at for each in rest}
            layers.clear()
            returned = method(**{token: one.clone()}, **where)
            found += [each.detach() for each in tree_leaves(returned) if isinstance(each, Tensor)][:1]
        return found

    try:
        plain = replace(invocation, arguments={}, positional=[], packed={}, completion=None, gradients=False)
        found: list[Tensor] = plain.run(target=run)
    except (Failed, RuntimeError, IndexError, ValueError, TypeError):
        return [], []
    is_each = len(found) == text.shape[axis] - way.first and all(bool(each.isfinite().all()) for each in found)
    return (found, layers) if is_each else ([], [])


def _note(live: nn.Module, layers: list[str]) -> None:
    """Write down each layer with parameters of its own as it is called."""
    for name, part in live.named_modules():
        if any(True for _ in part.parameters(recurse=False)) and not any(True for _ in part.children()):
            part.register_forward_hook(lambda *_, name=name: layers.append(name))


def _is_causal(invocation: Invocation, stream: Stream, whole: Sequence[Tensor]) -> bool:
    """Whether the call gives each token the same, whatever comes behind it."""
    (axis,) = stream.token_axes
    output = invocation.outputs(invocation.run())[0].detach()
    if output.ndim <= axis or output.shape[axis] != len(whole):
        return False
    rows = [output.select(axis, at) for at in range(len(whole))]
    return all(torch.allclose(one, other, rtol=1e-6, atol=1e-8) for one, other in zip(rows, whole, strict=True))


def _is_of_the_call(invocation: Invocation, stream: Stream, way: _Way) -> bool:
    """Whether a step calls the layers of the call in their order, and hangs on the tokens before, and not on chance."""
    given, (axis,) = invocation.arguments[stream.argument], stream.token_axes
    live, called = copied(invocation.target), list[str]()
    _note(live, called)
    try:
        invocation.run(target=live)
    except Failed:
        return False
    found, layers = _stepped(invocation, stream, way, given)
    other = other_tokens(invocation)[stream.argument]
    changed = torch.cat([other.narrow(axis, 0, 1), given.narrow(axis, 1, given.shape[axis] - 1)], axis)
    moved, _ = _stepped(invocation, stream, way, changed)
    at = 1 if way.first == 0 else 0
    hangs = len(moved) == len(found) and float((moved[at] - found[at]).abs().max()) > SAME
    return layers == called and len(layers) > 1 and hangs
