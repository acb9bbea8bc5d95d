"""Residuals that a block is said to have, or that it keeps, and that nothing is added to."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from regard.check.properties.code import sentences_of
from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Finding
from regard.check.properties.modules.residuals import is_joined
from regard.check.roles.instances import AttentionInstance, TaggedRun
from regard.check.target.argument import nodes_of, source_of
from regard.check.target.preparation import is_norm

__all__ = ["promised_residual_findings"]

_KEPT = re.compile(r"(?:\w+_)?(?:residual|shortcut|identity|skip)(?:_?\w)?", re.I)
"""The name of what is kept to be added in the end."""
_SAID = re.compile(
    r"\b(?:with|and|plus|includ(?:es?|ing)|uses)\s+(?:an?\s+|the\s+|its\s+)?(?:\w+[- ]){0,2}"
    r"(?:residual|skip)[- ]connections?\b",
    re.I,
)
_ELSEWHERE = re.compile(
    r"\b(?:no|not|never|without|caller|calling|outside|elsewhere|parent|expects?|must|should|optional\w*|if|when|by|"
    r"before|after|else|around|holds?|wraps?|todo)\b|n't",
    re.I,
)
"""In such a sentence: another part adds it, or it depends on something."""
_JOINS = frozenset({"addcmul", "cat", "lerp", "stack"})
"""What puts two things together otherwise than as a sum."""


def promised_residual_findings(
    target: Any, run: TaggedRun, instances: Sequence[AttentionInstance]
) -> Iterator[Finding]:
    """An attention whose output is added to nothing, in a class that keeps its input for that, or says that it is.

    Args:
        target: what was called.
        run: the run.
        instances: its attentions.
    """
    if not isinstance(target, nn.Module) or len(instances) != 1:
        return
    if any(_KEPT.fullmatch(each) or "res" in each.lower() for each in inspect.signature(type(target)).parameters):
        return  # it may be told to have none
    attended = run.trace.made_of({each.operation.outputs[0].storage for each in instances[0].sums})
    if any(is_joined(each, attended) or _is_put_together(each.name) for each in run.trace):
        return
    kept = _kept_and_unread(target)
    said = next((each for each in sentences_of(documentation_of(target)) if _is_promise(each)), None)
    if kept is not None or said is not None:
        why = f"{kept} is kept and never read" if kept is not None else "it says that it has a residual connection"
        message = f"{why}: what the attention returns is added to nothing"
        yield Finding("violation", "residual-of-the-input", "block", message)


def _is_put_together(name: str) -> bool:
    return name.rstrip("_") in _JOINS


def _is_promise(sentence: str) -> bool:
    return _SAID.search(sentence) is not None and _ELSEWHERE.search(sentence) is None


def _kept_and_unread(target: nn.Module) -> str | None:
    """The name of a residual that a method keeps and no line of it reads; None where there is none.

    A class with a norm for the sum is meant to add it; without one, the block that holds the attention may do so.
    """
    if type(target).__module__.partition(".")[0] == "torch" or not any(map(is_norm, target.modules())):
        return None
    names = nodes_of(source_of(type(target).forward), ast.Name)
    read = {each.id for each in names if isinstance(each.ctx, ast.Load)}
    kept = (each.id for each in names if isinstance(each.ctx, ast.Store) and _KEPT.fullmatch(each.id))
    return next((each for each in kept if each not in read and not read & {"locals", "vars"}), None)
