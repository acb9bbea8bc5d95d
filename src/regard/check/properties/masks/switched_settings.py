"""Settings of a module that hide later keys, and that are off by default: what it hides where they are on."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from torch import nn

from regard.check.properties.analysis import Analysis
from regard.check.properties.documentation import says_causal
from regard.check.properties.evidence import HIDING, SET_CAUSAL
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.argument import source_of
from regard.check.target.classes import own_classes
from regard.check.target.preparation import copied

__all__ = ["switched_setting_findings"]

OF_MASKS = frozenset({"mask-pattern", "blocked-scores"})
"""What is violated whatever a setting means: a mask that is none."""
_SWITCH = re.compile(HIDING.pattern.replace("direction|", ""), re.I)


def switched_setting_findings(analysis: Analysis, judge: Callable[[Invocation], Analysis]) -> Iterator[Finding]:
    """What is wrong with the mask of a module that is told to hide later keys, where by default it hides none.

    The setting is switched on in a copy: one without which the constructor leaves out what is needed then raises, and
    is not judged.

    Args:
        analysis: of a call of a module, without violations.
        judge: what analyzes another call.
    """
    target = analysis.invocation.target
    if not isinstance(target, nn.Module) or not any(
        each.property == "mask-pattern" and each.kind == "absent" for each in analysis.findings
    ):
        return
    for name in _switches(target):
        other = copied(target)
        setattr(other, name, True)
        judged = judge(replace(analysis.invocation, target=other))
        for each in judged.violations:
            if each.property in OF_MASKS:
                told = "" if f"{name}=True" in each.message else f"with {name}=True "
                yield replace(each, message=told + each.message)
                return
        is_full = any((each.property, each.kind) == ("mask-pattern", "absent") for each in judged.findings)
        needs_none = not analysis.invocation.masks and not analysis.invocation.causal_flags
        if judged.complete and is_full and needs_none and _is_of_later_keys(target, name):
            message = f"{name}=True says that it is causal, and every query sees every key with it as well"
            yield Finding("violation", "mask-pattern", "mask", message)
            return


def _switches(target: nn.Module) -> Iterator[str]:
    """The arguments of its constructor that are off by default, kept under their names, and speak of a mask.

    And that its calls read: one that is handed on to a part has no effect once that is made.
    """
    try:
        parameters = inspect.signature(type(target)).parameters.values()
    except (ValueError, TypeError):
        return
    for each in parameters:
        is_off = each.default is False and vars(target).get(each.name) is False
        if is_off and _SWITCH.search(each.name) and _reads(target, each.name):
            yield each.name


def _reads(target: nn.Module, name: str) -> bool:
    """Whether a method besides the constructor reads an attribute."""
    read = re.compile(rf"\bself\.{re.escape(name)}\b(?!\s*=[^=])")
    methods = [
        part for each in own_classes(type(target)) for called, part in vars(each).items() if called != "__init__"
    ]
    return any(read.search(source_of(each)) for each in methods if inspect.isroutine(each))


def _is_of_later_keys(target: nn.Module, name: str) -> bool:
    """Whether a setting is one that hides later keys, by its name or by what the documentation says of it."""
    texts = (type(target).__doc__, type(target).__init__.__doc__)
    is_documented = any(says_causal(inspect.cleandoc(each), name) for each in texts if each)
    return SET_CAUSAL.fullmatch(name) is not None or is_documented
