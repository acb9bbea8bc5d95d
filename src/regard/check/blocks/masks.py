"""The masks that a block takes: whether each reaches its attention, and blocks what it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from regard.check.blocks.attentions import BlockAttention
from regard.check.blocks.call import BATCH, CONTEXT, CONTEXT_SEED, TOKENS, BlockCall
from regard.check.blocks.mistakes import add_mistake
from regard.check.blocks.recording import alike
from regard.check.recipes.case import causal
from regard.check.search.mask_formats import FORMS, MaskFormat
from regard.check.search.stage import Diagnosis
from regard.check.search.subject import Subject

__all__ = ["judge_masks"]

BLOCKED = 1e-9
"""What may still pass where a mask blocks: exp(-10000) is 0, and sums are rounded."""


def judge_masks(diagnosis: Diagnosis, outer: BlockCall, attentions: list[BlockAttention]) -> None:
    """Whether each mask that it takes reaches its attention, and blocks what it says."""
    if not any(one.whole for one in attentions):
        return  # its masks were those of the attention that was judged
    x = outer.x()
    before = outer(x)
    for name in outer.names("mask", "padding", "causal"):
        ran = changed = False
        says = None
        for form, mask, blocked in _written(outer, name):
            try:
                with_it = outer(x, given={name: mask})
            except Exception:
                continue
            ran = True
            changed = changed or not torch.equal(before.nan_to_num(), with_it.nan_to_num())
            if changed and _holds(outer, name, mask, blocked):
                says = form.says
                break
        if says is not None:
            if says and not any(says in each for each in diagnosis.conventions):
                diagnosis.conventions.append(says)
        elif ran and not changed:
            _unread(diagnosis, name, attentions)
        elif (
            ran
            and not diagnosis.behaviour
            and not any(stage.found and stage.found.causes for stage in diagnosis.stages)
        ):
            diagnosis.why.append(f"its {name} has an effect, but no mask format blocks later tokens or padding")
        elif not ran and not (outer.subject.roles()[name] == "causal" and outer.names("mask")):
            # beside a mask, PyTorch's is_causal is a hint that raises by itself
            diagnosis.why.append(f"it could not be called with its {name}")


def _written(outer: BlockCall, name: str) -> Iterator[tuple[MaskFormat, Any, str]]:
    """A mask in every form and shape, and what it blocks: the future, the last key of x or of the context."""
    if outer.subject.roles()[name] == "causal":
        yield FORMS[0], True, "future"
        return
    square = causal(TOKENS, TOKENS)[0, 0]
    for form in (each for each in FORMS if each.name != "regard"):
        for shape in ((TOKENS, TOKENS), (BATCH, TOKENS, TOKENS), (BATCH, 1, TOKENS, TOKENS)):
            yield form, form.write(square).expand(shape).clone(), "future"
        for keys, blocked in ((TOKENS, "x"), (CONTEXT, "context")):
            may = torch.ones(BATCH, keys, dtype=torch.bool)
            may[:, -1] = False
            shapes: tuple[tuple[int, ...], ...] = (
                (BATCH, keys),
                (BATCH, 1, keys),
                (BATCH, 1, 1, keys),
                (keys,),
                (TOKENS, keys),
            )
            for size in shapes:
                whole = may[0].expand(size) if size[0] != BATCH else may.reshape(BATCH, *(1,) * (len(size) - 2), keys)
                yield form, form.write(whole).clone(), blocked


def _holds(outer: BlockCall, name: str, mask: Any, blocked: str) -> bool:
    """Whether what a mask blocks has no effect."""
    x = outer.x()
    before = outer(x, given={name: mask})
    if blocked == "context":
        if outer.inputs[1] is None:
            return False
        context = outer.x(CONTEXT_SEED, CONTEXT)
        other = outer.moved(context, slice(None), -1)
        return alike(outer(x, other, given={name: mask}), before)
    after = outer(outer.moved(x, slice(None), -1), given={name: mask})
    if before.isnan().any():
        return False
    same = bool((before[:, :-1] - after[:, :-1]).abs().max() <= BLOCKED)
    if blocked == "x":
        return same
    middle = outer(outer.moved(x, slice(None), 2), given={name: mask})
    later = not alike(middle[:, -1], before[:, -1])
    return same and later and bool((before[:, :2] - middle[:, :2]).abs().max() <= BLOCKED)


def _unread(diagnosis: Diagnosis, name: str, attentions: list[BlockAttention]) -> None:
    """A mask without effect: dropped by the attention, as its own stages say, or never handed to it."""
    dropped = any(
        known.id == "mask-dropped"
        for stage in diagnosis.stages
        if stage.found is not None
        for known, _ in stage.found.causes
    )
    if dropped:
        return
    takes = any(
        {"mask", "padding", "causal"} & set(Subject("", module=one.leaves, kind=type(one.leaves)).roles().values())
        for one in attentions
        if one.whole
    )
    if takes:
        add_mistake(diagnosis, "mask-not-passed", what=diagnosis.subject.name, named=name)
    else:
        leak = "Nothing is masked, and no error says so."
        add_mistake(diagnosis, "mask-dropped", mask=f"argument {name}", leak=leak)
