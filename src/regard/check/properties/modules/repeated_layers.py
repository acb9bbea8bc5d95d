"""Stacks of layers in which one and the same module stands several times."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import nn

from regard.check.properties.finding import Finding
from regard.check.target.preparation import modules_in
from regard.check.target.signature import source_of

__all__ = ["repeated_layer_findings"]

SHARED = re.compile(
    r"shar(?:e[ds]?|ing)\b|\btied?\b|universal|albert|recurren|recursi|\bloop|weight[- ]?tying|reus", re.I
)
"""In the code of a stack: its layers are meant to be one."""


def repeated_layer_findings(target: object) -> Iterator[Finding]:
    """One layer with matrices that stands twice or more in a list of modules, which nothing says is meant.

    ALBERT (Lan et al. 2020, section 3.1) and Universal Transformers apply one layer several times on purpose.
    """
    for outer in modules_in(target):
        if SHARED.search(source_of(outer)):
            continue
        for name, stack in outer.named_modules():
            layers = [*stack._modules.values()] if isinstance(stack, nn.ModuleList | nn.Sequential) else []
            first = layers[0] if len(layers) > 1 else None
            if first is None or any(each is not first for each in layers):
                continue
            if any(each.ndim > 1 for each in first.parameters()):
                message = f"the {len(layers)} layers of {name} are one and the same module: they share their parameters"
                yield Finding("violation", "layers-apart", "block", message)
                return
