"""What is said of a temperature: whether the weights are flatter or sharper where it is larger."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from regard.check.properties.code import sentences_of
from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.preparation import copied

__all__ = ["documented_temperature_findings"]

_NAME = r"(?P<name>tau|temperature|temp)"
_HOW = (
    r"(?:(?P<flat>flat(?:ter)?|soft(?:er)?|smooth(?:er)?|uniform|even)"
    r"|(?P<sharp>sharp(?:er)?|peak(?:ier|ed)|hard(?:er)?))"
)
_SAID = re.compile(
    rf"\b(?:larger|higher|greater|bigger|large|high|increas\w+)\b[^.;]{{0,40}}?\b{_NAME}\b[^.;]{{0,60}}?\b{_HOW}\b",
    re.I,
)
_TURNED = re.compile(r"\b(?:not|no|never|smaller|lower|less|low|inverse|unlike)\b", re.I)
STEP = 0.5
"""By which a temperature, or its logarithm, is made larger."""


def documented_temperature_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """A learned temperature that makes weights sharper where the documentation says flatter, or flatter for sharper.

    Scores are divided by a temperature (Hinton et al. 2015): the larger it is, the flatter are the weights.

    Args:
        invocation: a call of a module.
        evidence: of its attention.
    """
    if not isinstance(invocation.target, nn.Module):
        return
    sentences = (each for each in sentences_of(documentation_of(invocation.target)) if not _TURNED.search(each))
    said = next((found for each in sentences if (found := _SAID.search(each))), None)
    if said is None:
        return
    live = copied(invocation.target)
    parts = {name: each for name, each in live.named_parameters() if _is_called(name, said["name"]) and each.numel()}
    if len(parts) != 1:
        return
    ((name, temperature),) = parts.items()
    with torch.no_grad():
        temperature += STEP
    run = record_invocation(replace(invocation, target=live))
    if run.error or not run.same_operations(evidence.base.instance.run.trace):
        return
    weight, before = evidence.base.of_run(run).weight, evidence.base.weight
    change = float(weight.square().sum() - before.square().sum())
    if (change > 0 and said["flat"]) or (change < 0 and said["sharp"]):
        promised, shown = ("flatter", "sharper") if said["flat"] else ("sharper", "flatter")
        message = f"by its documentation weights are {promised} where {name} is larger, and they are {shown}"
        yield Finding(
            "violation", "temperature-as-documented", "scale", message, evidence.base.instance.scores_location
        )


def _is_called(path: str, name: str) -> bool:
    """Whether a parameter is a temperature by its path: the same, or its logarithm, and not its inverse."""
    words = path.rpartition(".")[2].lower().split("_")
    is_one = any(each in (name.lower(), "tau", "temp", "temperature") for each in words)
    return is_one and not any(each.startswith("inv") for each in words)
