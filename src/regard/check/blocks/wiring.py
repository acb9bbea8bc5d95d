"""How a block is wired: what its attention and its feed-forward network read, and what becomes of what they return.

A block is run once, and every tensor in it is kept. A sum is told by its numbers; a path that passes by a module is
told by what still moves when that module returns the same whatever it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.blocks.attentions import BlockAttention, is_linear, is_norm
from regard.check.blocks.recording import (
    FEED_FORWARD,
    BlockPart,
    BlockRun,
    ModuleCall,
    TensorTape,
    alike,
    parts_of,
    recorded,
    without_effect,
)
from regard.check.mistakes.catalog import MISTAKES
from regard.check.mistakes.mistake import Mistake

__all__ = ["Wiring", "wired"]


@dataclass(eq=False)
class Wiring:
    """What was shown of a block."""

    causes: list[tuple[Mistake, dict[str, object]]] = field(default_factory=list)
    says: list[str] = field(default_factory=list)
    designs: list[str] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
    """What could not be shown."""
    has_feed_forward: bool = False

    @property
    def misses_residual(self) -> bool:
        """Whether a part's output replaces its input."""
        return any(known.id == "residual-missing" for known, _ in self.causes)


def wired(block: nn.Module, run: BlockRun, given: Tensor, attentions: Sequence[BlockAttention]) -> Wiring:
    """What the wiring of a block is.

    Args:
        block: it, in eval.
        run: runs it.
        given: its input; ids, or (batch, tokens, width) in any order.
        attentions: those inside.
    """
    wiring = Wiring()
    skipped = without_effect(block, run, attentions)
    if skipped:
        wiring.causes.append((MISTAKES["ffn-skipped"], {"what": ", ".join(path for path, _ in skipped)}))
    useless = {id(linear) for _, linears in skipped for linear in linears}
    tape, events, output = recorded(block, run)
    parts = list(parts_of(block, events, attentions, useless))
    wiring.has_feed_forward = any(each.what == FEED_FORWARD for each in parts)
    missing = [one.path for one in attentions if not any(event.module is one.leaves for event in events)]
    if missing:
        wiring.why.append(f"its attention {missing[0]} is never called")
        return wiring
    _followed(wiring, run, tape, events, parts, given if given.is_floating_point() else None, output)
    return wiring


# Where it goes. -------------------------------------------------------------------------------------------------------


def _followed(
    wiring: Wiring,
    run: BlockRun,
    tape: TensorTape,
    events: list[ModuleCall],
    parts: list[BlockPart],
    stream: Tensor | None,
    output: Tensor,
) -> None:
    """Follow the residual stream from one part to the next, and to the output."""
    closes = any(alike(after, output) for _, after in tape.normed)
    opens = stream is not None and bool(parts) and _is_norm_of(tape, stream, parts[0].read)
    beside = [each for end in parts[0].ends for each in end.beside] if opens else []
    of_queries = stream is not None and any(alike(each, stream) for each in beside)
    pre = post = 0
    for number, part in enumerate(parts):
        found = _sum(tape, events, part, stream)
        if found is None:
            last = 0 < number == len(parts) - 1 and part.what == FEED_FORWARD
            if (
                last
                and stream is not None
                and (_reaches(tape, events, stream, output) or part.ends[0].returned.shape != stream.shape)
            ):
                parts = parts[:number]  # the last linear map gives logits
                break
            # Another number of tokens than it reads, as of a class token: what it is added to stands elsewhere.
            is_of_fewer = not any(end.returned.shape == part.read.shape for end in part.ends)
            if is_of_fewer or _passes(run, _fixed(part, events)):
                wiring.why.append(f"the {part.what}'s output could not be followed")
                return
            wiring.causes.append((MISTAKES["residual-missing"], {"what": part.what}))
            stream = next((end.returned for end in part.ends if end.returned.shape == part.read.shape), None)
            continue
        residual, total = found
        if stream is None or alike(residual, stream):
            pre += _is_norm_of(tape, residual, part.read)
        elif _is_norm_of(tape, stream, residual):
            if of_queries or (closes and not opens):
                post += 1
            elif opens and not closes and (number or not _passes(run, _fixed_norm(events, stream, residual))):
                wiring.causes.append((MISTAKES["residual-of-norm"], {"what": part.what}))
            else:
                wiring.why.append(f"the {part.what}'s output is added to a normalized input: pre-norm or post-norm?")
        else:
            wiring.why.append(f"the {part.what}'s output is added neither to its input nor to the normalized input")
            return
        stream = total
    if stream is not None and not _reaches(tape, events, stream, output):
        wiring.why.append("its output is not the last sum, with or without a norm")
    elif of_queries and post:
        wiring.designs.append("the queries alone are normalized, and what is attended to is added to them (SASRec)")
    elif not wiring.causes and not wiring.why and parts:
        kind = "post-norm" if closes and not pre else "pre-norm" if pre else "without norms between"
        wiring.says.append(f"{kind}: {', '.join(part.what for part in parts)}, each added to its input")


def _is_norm_of(tape: TensorTape, before: Tensor, after: Tensor) -> bool:
    return any(alike(a, before) and alike(b, after) for a, b in tape.normed)


def _sum(
    tape: TensorTape, events: list[ModuleCall], part: BlockPart, stream: Tensor | None
) -> tuple[Tensor, Tensor] | None:
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
    return _sum_inside(events, part, residuals)


def _sum_inside(events: list[ModuleCall], part: BlockPart, residuals: Sequence[Tensor]) -> tuple[Tensor, Tensor] | None:
    """The same of a part that is a module around another one, to whose output it adds what it read."""
    for end in part.ends:
        inner = {id(each) for each in end.module.modules()} - {id(end.module)}
        for residual in residuals:
            for event in events:
                if id(event.module) in inner and event.returned.shape == residual.shape == end.returned.shape:
                    total = residual + event.returned
                    if alike(end.returned, total):
                        return residual, total
    return None


def _reaches(tape: TensorTape, events: list[ModuleCall], stream: Tensor, output: Tensor) -> bool:
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


def _fixed(part: BlockPart, events: list[ModuleCall]) -> list[tuple[nn.Module, Tensor]]:
    end = next((end for end in part.ends if end.returned.shape == part.read.shape), part.ends[0])
    return [(end.module, end.returned)] if _once(end.module, events) else []


def _once(module: nn.Module, events: list[ModuleCall]) -> bool:
    return sum(event.module is module for event in events) == 1


def _fixed_norm(events: list[ModuleCall], before: Tensor, after: Tensor) -> list[tuple[nn.Module, Tensor]]:
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
