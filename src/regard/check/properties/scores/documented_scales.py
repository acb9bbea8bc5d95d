"""What is said of scores beside q . k, and not done: that they are not scaled, or that a cap holds them."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator
from typing import Any

from torch import nn

from regard.check.properties.code import code_of
from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.scores.formula import SAME_NUMBER, ScoreFit
from regard.check.target import Invocation
from regard.check.target.argument import source_of
from regard.check.target.configs import is_config
from regard.check.target.preparation import modules_in

__all__ = ["documented_scale_findings", "unused_cap_findings"]

_SCORES = r"(?:attention |dot[- ]product )?(?:scores?|logits|dot[- ]products?|products?)"
_UNSCALED = re.compile(
    rf"\b(?:un-?scaled|non-?scaled)\W+(?:attention\W+)?{_SCORES}\b|\b{_SCORES} (?:are|is|stay|stays|remain) (?:not "
    r"(?:scaled|divided)|unscaled)\b",
    re.I,
)
_QUALIFIED = re.compile(
    r"\b(?:if|when|whether|where|optional(?:ly)?|defaults?|either|or|instead|unlike|not (?:as|like)|before|then|loss"
    r"|returns?|stored?|stores|original(?:ly)?|otherwise|caller|because|would)\b",
    re.I,
)
"""What makes of a sentence a choice, another's, or one of a step before the scale."""
_CAP = re.compile(r"(?:\w+_)?(?:soft_?cap(?:ping)?|logits?_cap|attn_cap|score_cap)(?:_(?:value|size|tanh))?", re.I)
"""Settings that are a cap of scores."""
_OF_OTHER_LOGITS = re.compile(r"final|head|output|lm_|vocab|router|gate|loss|moe", re.I)
_NOT_APPLIED = re.compile(
    r"\b(?:ignor\w+|not (?:applied|supported|used|implemented)|unsupported|without (?:the )?(?:soft)?[- ]?cap\w*"
    r"|no soft[- ]?cap\w*)\b",
    re.I,
)
"""In the code, or its documentation: that it is known that nothing caps the scores."""
_SWITCH = re.compile(r"cap(?:ping|s|ped)?(?:_|$)", re.I)
"""Settings that turn a cap off."""
CAPS = frozenset({"tanh", "clamp", "clamp_min", "clamp_max", "hardtanh", "minimum", "maximum", "sigmoid"})
LARGEST = 1e4
"""A cap above it is none."""


def documented_scale_findings(invocation: Invocation, evidence: Evidence, fit: ScoreFit) -> Iterator[Finding]:
    """Scores that are divided by the square root of the width, where the documentation says that they are not scaled.

    Args:
        invocation: the call.
        evidence: of the attention.
        fit: what its scores are.
    """
    right = fit.width**-0.5
    if not fit.linear or fit.width < 2 or not abs(fit.total - right) < SAME_NUMBER * right:
        return
    for each in re.split(r"(?<=[.;])\s+|\n\s*\n", documentation_of(invocation.target).replace("*", "")):
        sentence = " ".join(each.split())
        if _UNSCALED.search(sentence) and not _QUALIFIED.search(sentence):
            message = (
                f"by its documentation scores are not scaled, and q . k is times {right:.4g} = 1/sqrt({fit.width}): "
                "weights of a model without a scale do not fit"
            )
            yield Finding("violation", "scale-as-documented", "scale", message, evidence.base.instance.scores_location)
            return


def unused_cap_findings(invocation: Invocation, evidence: Evidence, fit: ScoreFit) -> Iterator[Finding]:
    """A cap of scores that is told, and that nothing in the call applies.

    Args:
        invocation: the call.
        evidence: of the attention.
        fit: what its scores are.
    """
    if not fit.linear or any(each.name.rstrip("_") in CAPS for each in evidence.base.instance.run.trace):
        return
    told = dict(_caps(invocation))
    if len(told) != 1 or _NOT_APPLIED.search(code_of(invocation.target)):
        return
    ((name, cap),) = told.items()
    message = f"{name} = {cap:g} is told, and nothing caps the scores: they grow without bounds"
    yield Finding("violation", "softcap-applied", "scale", message, evidence.base.instance.scores_location)


def _caps(invocation: Invocation) -> Iterator[tuple[str, float]]:
    """The caps that the call, its modules or their configs were told, by name."""
    given: list[tuple[str, Any]] = [*invocation.arguments.items()]
    if not isinstance(invocation.target, nn.Module):
        try:
            parameters = [*inspect.signature(invocation.target).parameters.values()]
        except (ValueError, TypeError):
            parameters = []
        given += [(each.name, each.default) for each in parameters if each.name not in invocation.arguments]
    modules = [module for owner in modules_in(invocation.target) for module in owner.modules()]
    given += [item for module in modules for item in vars(module).items()]
    text = "\n".join({source_of(type(module)) for module in modules} | {source_of(invocation.target)})
    configs = [part for _, value in given if is_config(value) for part in vars(value).items()]
    given += [(name, value) for name, value in configs if re.search(rf"\.{re.escape(name)}\b", text)]  # not another's
    if any(value is False and _SWITCH.search(name) for name, value in [*given, *configs]):
        return
    for name, value in given:
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if is_number and 0 < value < LARGEST and _CAP.fullmatch(name) and not _OF_OTHER_LOGITS.search(name):
            yield name, float(value)
