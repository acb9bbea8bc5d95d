"""How a block is wired: what its attention and its feed-forward network read, and what becomes of what they return.

A block is run once, and every tensor in it is kept. A sum is told by its numbers; a path that passes by a module is
told by what still moves when that module returns the same whatever it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.check.causes import MISTAKES, Mistake
from regard.check.subject import tensors_in

__all__ = ["BlockAttention", "BlockRun", "Wiring", "alike", "is_linear", "is_norm", "wired"]

BlockRun = Callable[[bool], Tensor]
"""Runs a block, on its input or on another one of the same shape, and returns its output."""


@dataclass(frozen=True, eq=False)
class BlockAttention:
    """An attention inside a block: a module of its own, or projections of the block itself."""

    path: str
    """Of the module; of the first projection, where it is none."""
    enters: tuple[nn.Module, ...]
    """What reads its input."""
    leaves: nn.Module
    """What returns its output."""
    whole: bool
    """Whether it is a module of its own."""


@dataclass(eq=False)
class Wiring:
    """What was shown of a block."""

    causes: list[tuple[Mistake, dict[str, object]]] = field(default_factory=list)
    says: list[str] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
    """What could not be shown."""


@dataclass(frozen=True, eq=False)
class _Event:
    """One call of a module."""

    path: str
    module: nn.Module
    read: Tensor
    returned: Tensor
    at: int
    """How many tensors had been made when it returned."""


@dataclass(frozen=True, eq=False)
class _Part:
    """An attention or a feed-forward network, as it was called."""

    what: str
    read: Tensor
    ends: tuple[_Event, ...]
    """Calls that may return its output, the likeliest first."""


class _Tape(TorchFunctionMode):
    """Keeps every tensor of a size, and what was normed by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Tensor] = []
        self.normed: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        norms = func in (nn.functional.layer_norm, nn.functional.rms_norm)
        before = args[0].detach().clone() if norms and args else None
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            if tensor.ndim == 3 and tensor.is_floating_point():
                self.made.append(tensor.detach().clone())
        if before is not None:
            self.normed.append((before, self.made[-1] if before.ndim == 3 else before))
        return result


def alike(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers, to 1e-9 of the largest."""
    if a.shape != b.shape:
        return False
    return bool((a - b).abs().max() <= 1e-9 * max(1.0, float(b.abs().max())))


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm, by its name."""
    return "norm" in type(module).__name__.lower() and all(parameter.ndim < 2 for parameter in module.parameters())


def is_linear(module: nn.Module) -> bool:
    """Whether a module multiplies each position by one matrix."""
    return isinstance(module, nn.Linear | nn.Conv1d) or type(module).__name__ == "Conv1D"


def first(result: Any) -> Tensor | None:
    """The first tensor of numbers in what was given or returned."""
    return next((tensor for tensor in tensors_in(result) if tensor.is_floating_point()), None)


def wired(block: nn.Module, run: BlockRun, given: Tensor, attentions: Sequence[BlockAttention]) -> Wiring:
    """What the wiring of a block is.

    Args:
        block: it, in eval.
        run: runs it.
        given: its input; ids, or (batch, tokens, width) in any order.
        attentions: those inside.
    """
    wiring = Wiring()
    skipped = _without_effect(block, run, attentions)
    if skipped:
        wiring.causes.append((MISTAKES["ffn-skipped"], {"what": ", ".join(path for path, _ in skipped)}))
    useless = {id(linear) for _, linears in skipped for linear in linears}
    tape, events, output = _recorded(block, run)
    parts = list(_parts(block, events, attentions, useless))
    missing = [one.path for one in attentions if not any(event.module is one.leaves for event in events)]
    if missing:
        wiring.why.append(f"its attention {missing[0]} is never called")
        return wiring
    _followed(wiring, run, tape, events, parts, given if given.is_floating_point() else None, output)
    return wiring


# What was called. -----------------------------------------------------------------------------------------------------


def _recorded(block: nn.Module, run: BlockRun) -> tuple[_Tape, list[_Event], Tensor]:
    """Every call of a module and every tensor, of one run."""
    events: list[_Event] = []
    tape = _Tape()
    read: dict[int, list[Tensor]] = {}
    with ExitStack() as stack:

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            found = first((args, kwargs))
            read.setdefault(id(module), []).append(torch.zeros(0) if found is None else found.detach().clone())

        def after(path: str) -> Callable[..., None]:
            def hook(module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
                found, came = first(result), read[id(module)].pop()
                if found is not None:
                    events.append(_Event(path, module, came, found.detach().clone(), len(tape.made)))

            return hook

        for path, module in block.named_modules():
            handle = module.register_forward_pre_hook(before, with_kwargs=True)
            stack.callback(handle.remove)
            handle = module.register_forward_hook(after(path), with_kwargs=True)
            stack.callback(handle.remove)
        with tape:
            output = run(False)
    tape.normed += [(event.read, event.returned) for event in events if is_norm(event.module)]
    return tape, events, output.detach()


def _outside(block: nn.Module, attentions: Sequence[BlockAttention]) -> Iterator[tuple[str, nn.Module]]:
    """The linear maps that belong to no attention."""
    inner = {id(part) for one in attentions if one.whole for part in one.leaves.modules()}
    inner |= {id(part) for one in attentions if not one.whole for part in (*one.enters, one.leaves)}
    for path, module in block.named_modules():
        if is_linear(module) and id(module) not in inner:
            yield path, module


def _without_effect(
    block: nn.Module, run: BlockRun, attentions: Sequence[BlockAttention]
) -> list[tuple[str, list[nn.Module]]]:
    """Feed-forward networks whose parameters may be anything: the output stays the same to the bit."""
    groups: dict[str, list[nn.Module]] = {}
    for path, module in _outside(block, attentions):
        top, dot, _ = path.partition(".")
        groups.setdefault(top if dot else "", []).append(module)
    before = run(False)
    found = []
    for name, linears in groups.items():
        if len(linears) < 2:
            continue
        parameters = [parameter for linear in linears for parameter in linear.parameters()]
        kept = [parameter.detach().clone() for parameter in parameters]
        with torch.no_grad():
            for parameter in parameters:
                parameter.copy_(parameter.flip(-1) * 1.7 + 0.3)
        try:
            after = run(False)
        finally:
            with torch.no_grad():
                for parameter, old in zip(parameters, kept, strict=True):
                    parameter.copy_(old)
        if torch.equal(before, after):
            found.append((name, linears))
    return found


def _parts(
    block: nn.Module, events: list[_Event], attentions: Sequence[BlockAttention], useless: set[int]
) -> Iterator[_Part]:
    """Attentions and feed-forward networks in the order in which they are called."""
    leaves = {id(one.leaves): one for one in attentions}
    outside = {id(module) for _, module in _outside(block, attentions)} - useless
    enters: dict[int, Tensor] = {}
    linears: list[_Event] = []
    ended: list[Tensor] = []
    crossed = "cross-attention" if len(attentions) > 1 else "attention"
    for event in events:
        for one in attentions:
            if not one.whole and event.module is one.enters[0]:
                enters[id(one.leaves)] = event.read
        if id(event.module) in leaves:
            one = leaves[id(event.module)]
            if linears:
                yield _feed_forward(linears)
                linears = []
            name = crossed if "cross" in one.path or "enc" in one.path else "attention"
            yield _Part(name, event.read if one.whole else enters.get(id(event.module), event.read), (event,))
            ended = [event.returned]
        elif id(event.module) in outside:
            # A square map of what attention returned is attention's output projection.
            square = event.read.shape == event.returned.shape
            if square and not linears and any(alike(event.read, end) for end in ended):
                ended.append(event.returned)
            else:
                linears.append(event)
    if linears:
        yield _feed_forward(linears)


def _feed_forward(linears: list[_Event]) -> _Part:
    return _Part("feed-forward network", linears[0].read, tuple(reversed(linears)))


# Where it goes. -------------------------------------------------------------------------------------------------------


def _followed(
    wiring: Wiring,
    run: BlockRun,
    tape: _Tape,
    events: list[_Event],
    parts: list[_Part],
    stream: Tensor | None,
    output: Tensor,
) -> None:
    """Follow the residual stream from one part to the next, and to the output."""
    closes = any(alike(after, output) for _, after in tape.normed)
    opens = stream is not None and bool(parts) and _is_norm_of(tape, stream, parts[0].read)
    pre = post = 0
    for number, part in enumerate(parts):
        found = _sum(tape, events, part, stream)
        if found is None:
            last = 0 < number == len(parts) - 1 and part.what.startswith("feed")
            if (
                last
                and stream is not None
                and (_reaches(tape, events, stream, output) or part.ends[0].returned.shape != stream.shape)
            ):
                break  # the last linear map gives logits
            if _passes(run, _fixed(part, events)):
                wiring.why.append(f"the {part.what}'s output could not be followed")
                return
            wiring.causes.append((MISTAKES["residual-missing"], {"what": part.what}))
            stream = next((end.returned for end in part.ends if end.returned.shape == part.read.shape), None)
            continue
        residual, total = found
        if stream is None or alike(residual, stream):
            pre += _is_norm_of(tape, residual, part.read)
        elif _is_norm_of(tape, stream, residual):
            if closes and not opens:
                post += 1
            elif opens and not closes and (number or not _passes(run, _fixed_norm(tape, events, stream, residual))):
                wiring.causes.append((MISTAKES["residual-of-norm"], {"what": part.what}))
            else:
                wiring.why.append(f"the {part.what}'s output is added to a normalized input: pre-norm or post-norm?")
        else:
            wiring.why.append(f"the {part.what}'s output is added neither to its input nor to the normalized input")
            return
        stream = total
    if stream is not None and not _reaches(tape, events, stream, output):
        wiring.why.append("its output is not the last sum, with or without a norm")
    elif not wiring.causes and not wiring.why and parts:
        kind = "post-norm" if closes and not pre else "pre-norm" if pre else "without norms between"
        wiring.says.append(f"{kind}: {', '.join(part.what for part in parts)}, each added to its input")


def _is_norm_of(tape: _Tape, before: Tensor, after: Tensor) -> bool:
    return any(alike(a, before) and alike(b, after) for a, b in tape.normed)


def _sum(tape: _Tape, events: list[_Event], part: _Part, stream: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """What a part's output is added to, and the sum; None where no such sum is made."""
    normed = [before for before, after in tape.normed if alike(after, part.read)]
    residuals = ([] if stream is None else [stream]) + normed + [part.read]
    for end in part.ends:
        outputs = [end.returned]
        for event in events:  # dropout, a projection or a norm of the branch
            reads = event.at >= end.at and alike(event.read, outputs[-1])
            maps = is_linear(event.module) or is_norm(event.module)
            if reads and maps and event.returned.shape == outputs[-1].shape:
                outputs.append(event.returned)
        if end.returned.ndim == 3:
            outputs.append(end.returned.transpose(1, 2))
        for residual in residuals:
            for branch in outputs:
                if branch.shape != residual.shape:
                    continue
                total = residual + branch
                if any(alike(made, total) for made in tape.made[end.at :]):
                    return residual, total
    return None


def _reaches(tape: _Tape, events: list[_Event], stream: Tensor, output: Tensor) -> bool:
    """Whether the output is the stream, or norms and linear maps of it."""
    front = [stream]
    for _ in range(4):
        if any(alike(each, output) for each in front):
            return True
        further = [after for before, after in tape.normed if any(alike(before, each) for each in front)]
        further += [
            event.returned
            for event in events
            if is_linear(event.module) and any(alike(event.read, each) for each in front)
        ]
        front = further
    return any(alike(each, output) for each in front)


# What passes by. ------------------------------------------------------------------------------------------------------


def _fixed(part: _Part, events: list[_Event]) -> list[tuple[nn.Module, Tensor]]:
    end = next((end for end in part.ends if end.returned.shape == part.read.shape), part.ends[0])
    return [(end.module, end.returned)] if _once(end.module, events) else []


def _once(module: nn.Module, events: list[_Event]) -> bool:
    return sum(event.module is module for event in events) == 1


def _fixed_norm(tape: _Tape, events: list[_Event], before: Tensor, after: Tensor) -> list[tuple[nn.Module, Tensor]]:
    return [
        (event.module, event.returned)
        for event in events
        if is_norm(event.module)
        and _once(event.module, events)
        and alike(event.read, before)
        and alike(event.returned, after)
    ]


def _passes(run: BlockRun, fixed: list[tuple[nn.Module, Tensor]]) -> bool:
    """Whether another input gives another output while some modules return what they are told to."""
    if not fixed:
        return True
    with ExitStack() as stack:
        for module, value in fixed:

            def hook(_: nn.Module, __: Any, result: Any, value: Tensor = value) -> Any:
                return (value, *result[1:]) if isinstance(result, tuple) else value

            stack.callback(module.register_forward_hook(hook).remove)
        try:
            return not torch.equal(run(False), run(True))
        except Exception:
            return True
