"""What runs inside a block: every call of a module and every tensor, and the parts that the block consists of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.check.blocks.attentions import BlockAttention, is_linear, is_norm
from regard.check.target.running import tensors_in

__all__ = [
    "FEED_FORWARD",
    "BlockPart",
    "BlockRun",
    "ModuleCall",
    "TensorTape",
    "alike",
    "parts_of",
    "recorded",
    "without_effect",
]

FEED_FORWARD = "feed-forward network"
"""What a part is called that is one."""
BlockRun = Callable[[bool], Tensor]
"""Runs a block, on its input or on another one of the same shape, and returns its output."""


@dataclass(frozen=True, eq=False)
class ModuleCall:
    """One call of a module."""

    module: nn.Module
    read: Tensor
    returned: Tensor
    at: int
    """How many tensors had been made when it returned."""
    beside: tuple[Tensor, ...] = ()
    """Other tensors of numbers that it was given, as the keys of an attention."""


@dataclass(frozen=True, eq=False)
class BlockPart:
    """An attention or a feed-forward network, as it was called."""

    what: str
    read: Tensor
    ends: tuple[ModuleCall, ...]
    """Calls that may return its output, the likeliest first."""


class TensorTape(TorchFunctionMode):
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


def _numbers(result: Any) -> list[Tensor]:
    """Copies of the tensors of numbers in what was given or returned."""
    return [tensor.detach().clone() for tensor in tensors_in(result) if tensor.is_floating_point()]


def recorded(block: nn.Module, run: BlockRun) -> tuple[TensorTape, list[ModuleCall], Tensor]:
    """Every call of a module and every tensor, of one run."""
    events: list[ModuleCall] = []
    tape = TensorTape()
    read: dict[int, list[list[Tensor]]] = {}
    with ExitStack() as stack:

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            read.setdefault(id(module), []).append(_numbers((args, kwargs)) or [torch.zeros(0)])

        def after(module: nn.Module, _: Any, result: Any) -> None:
            found, (came, *beside) = _numbers(result), read[id(module)].pop()
            if found:
                events.append(ModuleCall(module, came, found[0], len(tape.made), tuple(beside)))

        for module in block.modules():
            stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(after).remove)
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


def without_effect(
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


def parts_of(
    block: nn.Module, events: list[ModuleCall], attentions: Sequence[BlockAttention], useless: set[int]
) -> Iterator[BlockPart]:
    """Attentions and feed-forward networks in the order in which they are called."""
    leaves = {id(one.leaves): one for one in attentions}
    outside = {id(module) for _, module in _outside(block, attentions)} - useless
    enters: dict[int, Tensor] = {}
    linears: list[ModuleCall] = []
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
            yield BlockPart(name, event.read if one.whole else enters.get(id(event.module), event.read), (event,))
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


def _feed_forward(linears: list[ModuleCall]) -> BlockPart:
    return BlockPart(FEED_FORWARD, linears[0].read, tuple(reversed(linears)))
