"""How the parameters of one module are filled from those of another: the reordering as data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.check.equivalence.tags import CONSTANT, FIRST_TAG, NOTHING, flat_parameters, tagged_parameters

__all__ = ["CopiedBlock", "TagPlan", "WeightMapping", "mapping_of", "matched", "same_shapes", "used_tags"]


@dataclass(frozen=True)
class CopiedBlock:
    """A block of numbers of a parameter of b, and where in a they are.

    Both are read as `torch.as_strided` reads them: along each of `sizes` one goes on by a stride.
    """

    target: str
    """The parameter of b."""
    source: str | None
    """The parameter of a; None for a block that is filled with `value`."""
    sizes: tuple[int, ...]
    target_offset: int
    target_strides: tuple[int, ...]
    source_offset: int = 0
    source_strides: tuple[int, ...] = ()
    value: float = 0.0


@dataclass(frozen=True)
class WeightMapping:
    """How the parameters of b are made of those of a."""

    blocks: tuple[CopiedBlock, ...]
    reordered: bool
    """Whether any number stands in another place than in a's parameter of the same shape, or in a packed one."""
    unused: tuple[str, ...] = ()
    """Parameters of a with numbers that b has no place for."""
    unset: tuple[str, ...] = ()
    """Parameters of b with numbers that come from nowhere in a: they are left as they are."""

    def apply(self, a: nn.Module, b: nn.Module) -> None:
        """Set the parameters of b."""
        sources, targets = dict(a.named_parameters()), dict(b.named_parameters())
        with torch.no_grad():
            for block in self.blocks:
                held = targets[block.target]
                target = held if held.is_contiguous() else held.contiguous()
                view = target.as_strided(block.sizes, block.target_strides, block.target_offset + _start(target))
                if block.source is None:
                    view.fill_(block.value)
                else:
                    source = sources[block.source].detach().contiguous()
                    offset = block.source_offset + _start(source)
                    view.copy_(source.as_strided(block.sizes, block.source_strides, offset))
                if target is not held:
                    held.copy_(target)


def _start(tensor: Tensor) -> int:
    """Where in its storage a tensor begins."""
    return int(tensor.storage_offset())


@dataclass(eq=False)
class TagPlan:
    """For each number of b, by its tag, the tag of a it takes; and what did not go together."""

    sources: Tensor
    """-1 where nothing is known."""
    groups: Tensor
    """Which pair asked for it, counted from 0; -1 for none."""
    conflicts: list[str]


def matched(pairs: Sequence[tuple[str, Tensor, Tensor]], total: int) -> TagPlan:
    """What pairs of tags ask for.

    Args:
        pairs: a name, tags of a and tags of b that have to hold the same numbers.
        total: how many tags b has.
    """
    sources = torch.full((total + FIRST_TAG,), -1, dtype=torch.long)
    groups = torch.full_like(sources, -1)
    conflicts = []
    for number, (name, of_a, of_b) in enumerate(pairs):
        one, other = of_a.flatten(), of_b.flatten()
        settable = other >= FIRST_TAG
        if bool((one[~settable] != other[~settable]).any()):
            lost = one[~settable][one[~settable] != other[~settable]]
            what = "B has none" if bool((other[~settable] == NOTHING).all()) else "B has others that cannot be set"
            conflicts.append(f"{name}: {what} in the place of {len(lost)} numbers of A")
        at, wanted = other[settable], one[settable]
        before = sources[at]
        sources[at] = torch.where(before < 0, wanted, before)
        groups[at] = number
        if bool((sources[at] != wanted).any()):
            conflicts.append(f"{name}: B has one number where A has several: it shares what A does not")
    return TagPlan(sources, groups, conflicts)


def mapping_of(plan: TagPlan, a: nn.Module, b: nn.Module) -> WeightMapping:
    """The mapping that fills b as a plan says."""
    of_a, of_b = tagged_parameters(a), tagged_parameters(b)
    blocks: list[CopiedBlock] = []
    unset = []
    used = used_tags(plan, of_a[-1][2] if of_a else 0)
    for name, first, last in of_b:
        wanted = plan.sources[first:last]
        if bool((wanted < 0).any()):
            unset.append(name)
        for value in (NOTHING, CONSTANT):
            at = (wanted == value).nonzero().flatten()
            blocks += [
                CopiedBlock(name, None, sizes, start, strides, value=float(value))
                for sizes, start, strides, _, _ in blocks_of(at, at, 1, 1)
            ]
        for source, begin, end in of_a:
            at = ((wanted >= begin) & (wanted < end)).nonzero().flatten()
            if not len(at):
                continue
            groups = plan.groups[first:last][at]
            apart = [at[groups == group] for group in sorted(set(groups.tolist()))]
            rows = _row(b, name), _row(a, source)
            whole, by_group = (
                [strided for places in split for strided in blocks_of(places, wanted[places] - begin, *rows)]
                for split in ([at], apart)
            )
            blocks += [
                CopiedBlock(name, source, sizes, start, strides, from_start, from_strides)
                for sizes, start, strides, from_start, from_strides in min(whole, by_group, key=len)
            ]
    unused = tuple(name for name, first, last in of_a if not bool(used[first:last].all()))
    return WeightMapping(tuple(blocks), _is_reordered(blocks, a, b), unused, tuple(unset))


def same_shapes(a: nn.Module, b: nn.Module, *, by_name: bool) -> WeightMapping | None:
    """Each parameter of b from the one of a of the same name, or of the same place in their order; None if not all fit.

    Args:
        a: the module whose parameters are taken.
        b: the module whose parameters are set.
        by_name: by names; otherwise by order.
    """
    sources, targets = dict(flat_parameters(a)), dict(flat_parameters(b))
    if len(sources) != len(targets) or (by_name and set(sources) != set(targets)):
        return None
    blocks = []
    for (name, target), other in zip(targets.items(), sources, strict=True):
        source = name if by_name else other
        if sources[source].shape != target.shape:
            return None
        size = (target.numel(),)
        blocks.append(CopiedBlock(name, source, size, 0, (1,), 0, (1,)))
    return WeightMapping(tuple(blocks), False)


def used_tags(plan: TagPlan, total: int) -> Tensor:
    """For each tag of a, below a number, whether any number of b takes it."""
    used = torch.zeros(max(total, FIRST_TAG), dtype=torch.bool)
    used[plan.sources[plan.sources >= 0]] = True
    return used


def _row(module: nn.Module, name: str) -> int:
    """The numbers of the last axis of a parameter."""
    shape = module.get_parameter(name).shape
    return shape[-1] if len(shape) else 1


def _is_reordered(blocks: Sequence[CopiedBlock], a: nn.Module, b: nn.Module) -> bool:
    for block in blocks:
        if block.source is None:
            continue
        same = a.get_parameter(block.source).shape == b.get_parameter(block.target).shape
        if not same or block.target_offset != block.source_offset or block.target_strides != block.source_strides:
            return True
    return False


Strided = tuple[tuple[int, ...], int, tuple[int, ...], int, tuple[int, ...]]
"""Sizes; where it begins and its strides in b; the same in a."""


def blocks_of(target: Tensor, source: Tensor, target_row: int, source_row: int) -> Iterator[Strided]:
    """Places of b and of a, pair by pair, as few strided blocks.

    Args:
        target: places in a parameter of b, ascending.
        source: as many places in a parameter of a.
        target_row: numbers of the last axis of b's parameter: no axis of a block goes beyond it.
        source_row: the same of a's.
    """
    sizes: list[int] = []
    steps: list[tuple[int, int]] = []
    while len(target) > 1:
        length, step = _regular(target, source)
        if length == 1:
            break
        sizes.insert(0, length)
        steps.insert(0, step)
        target, source = target[::length], source[::length]
    sizes, steps = _at_rows(sizes, steps, target_row, source_row)
    inner = tuple(sizes), tuple(one for one, _ in steps), tuple(other for _, other in steps)
    for begin, from_begin, outer in _runs(target.tolist(), source.tolist()):
        if outer is None:
            yield inner[0], begin, inner[1], from_begin, inner[2]
        else:
            count, forth, from_forth = outer
            yield (count, *inner[0]), begin, (forth, *inner[1]), from_begin, (from_forth, *inner[2])


def _regular(target: Tensor, source: Tensor) -> tuple[int, tuple[int, int]]:
    """The longest period of constant steps that the whole is made of, and its steps; 1 where there is none."""
    step = int(target[1] - target[0]), int(source[1] - source[0])
    if step[1] < 0:  # no view goes backwards
        return 1, step
    broken = ((target.diff() != step[0]) | (source.diff() != step[1])).nonzero()
    longest = len(target) if not len(broken) else int(broken[0]) + 1
    for length in _divisors(len(target), longest):
        one, other = target.view(-1, length).diff(dim=1), source.view(-1, length).diff(dim=1)
        if bool((one == step[0]).all()) and bool((other == step[1]).all()):
            return length, step
    return 1, step


def _divisors(number: int, most: int) -> list[int]:
    """Above 1 and not above another number, the largest first."""
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return sorted({each for one in small for each in (one, number // one) if 1 < each <= most}, reverse=True)


def _at_rows(
    sizes: list[int], steps: list[tuple[int, int]], target_row: int, source_row: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """The same with an innermost axis that ends where rows of the parameters do."""
    row = max(target_row, source_row)
    if sizes and sizes[-1] > row > 1 and sizes[-1] % row == 0:
        one, other = steps[-1]
        sizes = [*sizes[:-1], sizes[-1] // row, row]
        steps = [*steps[:-1], (one * row, other * row), (one, other)]
    return sizes, steps


def _runs(target: list[int], source: list[int]) -> Iterator[tuple[int, int, tuple[int, int, int] | None]]:
    """Irregular places as runs of constant steps."""
    at = 0
    while at < len(target):
        end = at + 1
        if end < len(target):
            step = target[end] - target[at], source[end] - source[at]
            while (
                step[1] >= 0
                and end + 1 < len(target)
                and (target[end + 1] - target[end], source[end + 1] - source[end]) == step
            ):
                end += 1
            if end - at > 1:
                yield target[at], source[at], (end - at + 1, *step)
                at = end + 1
                continue
        yield target[at], source[at], None
        at += 1
