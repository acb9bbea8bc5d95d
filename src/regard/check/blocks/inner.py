"""Each attention of a block judged by itself: as a module of its own, or run by its block."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from regard.check.blocks.attentions import BlockAttention, attentions_in
from regard.check.blocks.call import BlockCall
from regard.check.sandbox.answer import error_text
from regard.check.search.budget import SearchBudget
from regard.check.search.diagnose import is_switched_off, triangular
from regard.check.search.layouts import Sizes
from regard.check.search.stage import Diagnosis, Stage
from regard.check.search.subject import Subject
from regard.check.target.preparation import copied, in_float64, in_mode
from regard.check.target.running import tensors_in

__all__ = ["judge_attentions"]


def judge_attentions(
    diagnosis: Diagnosis,
    outer: BlockCall,
    attentions: list[BlockAttention],
    budget: SearchBudget,
    judge: Callable[..., Diagnosis],
) -> None:
    """The stages of every attention, each class and role once."""
    seen = set()
    several = {}
    for one in attentions:
        key = (type(one.leaves), re.sub(r"\d+", "", one.path))
        if key not in seen:
            seen.add(key)
            several[one.path] = one
    left = len(several)
    for path, one in several.items():
        share = budget.share(left)
        left -= 1
        found = None
        if one.whole and not _bound(one.leaves):
            with suppress(Exception):
                found = judge(_alone(diagnosis.subject, one), budget=share)
        if found is None or not found.stages:
            try:
                found = judge(_in_place(diagnosis.subject, outer, one), budget=share)
            except Exception as error:
                diagnosis.why.append(f"{path}: it could not be checked by itself: {error_text(error)}")
                continue
        for stage in found.stages:
            diagnosis.stages.append(_prefixed(stage, path if one.whole else ""))
        diagnosis.setting = diagnosis.setting or (found.setting if len(several) == 1 else None)
        diagnosis.behaviour += found.behaviour
        diagnosis.why += [f"{path}: {why}" for why in found.why]
        diagnosis.unexplained += [f"{path}: {why}" for why in found.unexplained]
        diagnosis.is_random |= found.is_random
        for mine, theirs in ((diagnosis.conventions, found.conventions), (diagnosis.designs, found.designs)):
            mine += [f"{path}: {each}" for each in theirs]
        diagnosis.notes += [f"{path}: {note}" for note in found.notes]


def _prefixed(stage: Stage, path: str) -> Stage:
    before = f"{path}: " if path else ""
    return replace(
        stage,
        mask=f"{stage.mask} of {path}" if path and stage.mask else stage.mask,
        says=f"{before}{stage.says}" if stage.says else "",
        why=f"{before}{stage.why}" if stage.why else "",
    )


def _bound(module: nn.Module) -> bool:
    """Whether it needs what only the block can give it: positions turned into queries and keys."""
    means = Subject(type(module).__name__, module=module, kind=type(module)).roles()
    return bool({"rope", "cos", "sin"} & set(means.values()))


def _alone(subject: Subject, one: BlockAttention) -> Subject:
    """An attention as a subject of its own, of other sizes where the block can be made of other sizes."""
    kind = type(one.leaves)
    name, module = kind.__name__.lstrip("_"), copied(one.leaves)
    inner = Subject(name, kind=kind, module=module, file=subject.file, settings=subject.settings)
    if subject.build is not None:
        build = subject.build
        # The block was made with so many heads: `diagnose` reads that from what is said.
        inner.build = lambda sizes: (
            build(sizes)[0].get_submodule(one.path),
            [f"num_heads={sizes.heads}"],
        )
        inner.module = None
    return inner


class _InPlace(nn.Module):
    """An attention as its block calls it: the block runs, and reads x where the attention does."""

    def __init__(self, outer: BlockCall, one: BlockAttention) -> None:
        super().__init__()
        self._kept = [outer, one]
        names = {id(part): path for path, part in outer.module.named_modules()}
        for part in dict.fromkeys((*one.enters, one.leaves)):
            self.add_module(names[id(part)].rpartition(".")[2] or "inner", part)
        for path, buffer in outer.module.named_buffers():
            if triangular(buffer) and not is_switched_off(outer.module, path):
                self.register_buffer(path.replace(".", "_"), buffer)
        for name in ("num_heads", "n_heads", "n_head", "heads", "num_attention_heads"):
            for part in (outer.module, one.leaves):
                if isinstance(getattr(part, name, None), int):
                    setattr(self, name, getattr(part, name))

    def _run(self, x: Tensor, masks: dict[str, Any]) -> Tensor:
        outer, one = self._kept
        assert isinstance(outer, BlockCall)
        assert isinstance(one, BlockAttention)
        returned: list[Tensor] = []

        def enter(module: nn.Module, args: Any, kwargs: Any) -> Any:
            if returned:
                return None
            if args:
                return (x, *args[1:]), kwargs
            name = next(name for name, value in kwargs.items() if isinstance(value, Tensor))
            return args, {**kwargs, name: x}

        def leave(module: nn.Module, args: Any, result: Any) -> None:
            returned.append(next(tensors_in(result)))

        with ExitStack() as stack:
            for part in one.enters:
                stack.callback(part.register_forward_pre_hook(enter, with_kwargs=True).remove)
            stack.callback(one.leaves.register_forward_hook(leave).remove)
            outer(outer.x(3, x.shape[1], len(x)), given={k: v for k, v in masks.items() if v is not None})
        return returned[0]


def _in_place(subject: Subject, outer: BlockCall, one: BlockAttention) -> Subject:
    """An attention as a subject, run by its block; with the block's masks as its own."""
    masks = outer.names("mask", "padding", "causal") if not one.whole else []
    x = inspect.Parameter("x", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)

    def forward(self: _InPlace, x: Tensor, **given: Any) -> Tensor:
        return self._run(x, given)

    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [this, x, *(subject.called[name].replace(annotation=inspect.Parameter.empty) for name in masks)]
    )
    kind = type(subject.name, (_InPlace,), {"forward": forward})
    inner = Subject(subject.name, kind=kind, block=subject.kind, file=subject.file, settings=subject.settings)

    def build(sizes: Sizes) -> tuple[nn.Module, list[str]]:
        other, said = subject.build(sizes) if subject.build is not None else (copied(outer.module), [])
        other = in_mode(in_float64(other), training=False)
        found = next(each for each in attentions_in(other) if each.path == one.path)
        width = outer.width if subject.build is None else sizes.d_model
        made: nn.Module = kind(BlockCall(subject, other, width, outer.ids, outer.layout), found)
        return made, [*(s for s in said if s not in subject.assumptions), f"num_heads={sizes.heads}"]

    inner.build = build
    return inner
