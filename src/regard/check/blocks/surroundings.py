"""What is around the attentions of a block: its inputs, its residual connections, its context."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.blocks.attentions import BlockAttention, has_more_than
from regard.check.blocks.call import CONTEXT, CONTEXT_SEED, BlockCall
from regard.check.blocks.mistakes import add_mistake
from regard.check.blocks.wiring import Wiring, wired
from regard.check.sandbox.torch_settings import UserSettings
from regard.check.search.stage import Diagnosis
from regard.check.target.running import tensors_in

__all__ = ["judge_context", "judge_inputs", "judge_wiring"]


def judge_inputs(diagnosis: Diagnosis, outer: BlockCall, attentions: list[BlockAttention]) -> None:
    """Whether it writes into what it is given."""
    if outer.ids or any(known.id == "inputs-changed" for known, _ in diagnosis.behaviour):
        return
    x = outer.laid(outer.x())
    before = x.clone()
    outer.run(x, outer.laid(outer.x(CONTEXT_SEED, CONTEXT)))
    if not torch.equal(x, before):
        add_mistake(diagnosis, "inputs-changed", what=outer.inputs[0])


def judge_context(diagnosis: Diagnosis, outer: BlockCall, attentions: list[BlockAttention]) -> None:
    """Whether the context has an effect."""
    if outer.inputs[1] is None:
        return
    x = outer.x()
    if torch.equal(outer(x), outer(x, outer.x(77, CONTEXT))):
        add_mistake(diagnosis, "context-ignored")


def judge_wiring(diagnosis: Diagnosis, outer: BlockCall, attentions: list[BlockAttention]) -> None:
    """How every kind of block is wired that an attention stands in."""
    unseeded: list[Tensor] = []
    for _ in range(2):
        unseeded.append(outer(outer.x()))
        outer.seed += 1
    if not torch.equal(*unseeded):
        diagnosis.why.append("two calls with the same input differ, so its residual connections cannot be followed")
        return
    seen = set()
    for path, inside in _blocks(outer.module, attentions):
        key = (type(outer.module.get_submodule(path)), re.sub(r"\d+", "", path))
        if key in seen:
            continue
        seen.add(key)
        found = _wiring_of(outer, path, inside)
        while path and found is not None and found.misses_residual and not found.has_feed_forward:
            # a norm and an attention: what calls them may add the residual
            above = _caller(outer.module, path)
            inside = [replace(one, path=f"{path[len(above) :].lstrip('.')}.{one.path}".strip(".")) for one in inside]
            path, found = above, _wiring_of(outer, above, inside)
        if found is None:
            diagnosis.why.append(f"{path or diagnosis.subject.name} is never called")
            continue
        for known, numbers in found.causes:
            add_mistake(diagnosis, known.id, **numbers)
        before = f"{path}: " if path else ""
        diagnosis.notes += [before + says for says in found.says]
        diagnosis.designs += [before + design for design in found.designs]
        diagnosis.why += [before + why for why in found.why]


def _wiring_of(outer: BlockCall, path: str, inside: list[BlockAttention]) -> Wiring | None:
    """How a block of what was handed over is wired; None where it is never called."""
    block = outer.module.get_submodule(path)
    given = _given(outer, block)
    if given is None:
        return None
    return wired(block, _runner(block, *given, outer.subject.settings), _first(given), inside)


def _caller(module: nn.Module, path: str) -> str:
    """The module around another one that is no mere list of modules."""
    while path:
        path = path.rpartition(".")[0]
        if not isinstance(module.get_submodule(path), nn.ModuleList | nn.ModuleDict):
            break
    return path


def _blocks(module: nn.Module, attentions: list[BlockAttention]) -> Iterator[tuple[str, list[BlockAttention]]]:
    """The innermost blocks, each with its attentions as they are named in it."""
    groups: dict[str, list[BlockAttention]] = {}
    for one in attentions:
        path = one.path
        while path:
            path = _caller(module, path)
            block = module.get_submodule(path)
            if not isinstance(block, nn.Sequential) and has_more_than(block, [one.leaves]):
                break
        groups.setdefault(path, []).append(one)
    for path, inside in groups.items():
        yield path, [replace(one, path=one.path[len(path) :].lstrip(".")) for one in inside]


def _given(outer: BlockCall, block: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """What a block is given when the whole is run."""
    kept: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def keep(module: nn.Module, args: Any, kwargs: Any) -> None:
        if not kept:
            kept.append(_copied((args, kwargs)))

    handle = block.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        outer(outer.x())
    finally:
        handle.remove()
    return kept[0] if kept else None


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(each) for each in value)
    return value


def _first(given: tuple[tuple[Any, ...], dict[str, Any]]) -> Tensor:
    return next(tensors_in(given))


def _runner(
    block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], settings: UserSettings
) -> Callable[[bool], Tensor]:
    """Runs a block on what it was given, or on another input."""

    def run(other: bool) -> Tensor:
        mine, named = _copied((args, kwargs))
        x = next(tensors_in((mine, named)))
        if other:
            with torch.no_grad():
                x.copy_(x * -0.7 + 0.4 if x.is_floating_point() else torch.where(x == 0, 1, x - 1))
        torch.manual_seed(0)
        with settings.on():
            result = block(*mine, **named)
        found: Tensor = next(each for each in tensors_in(result) if each.is_floating_point()).detach()
        return found

    return run
