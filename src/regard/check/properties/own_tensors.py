"""The learned tensors and buffers of the module of an attention itself, with the text that makes them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import Tensor, nn

from regard.check.properties.finding import Evidence
from regard.check.target import Invocation
from regard.check.target.argument import source_of
from regard.check.target.classes import own_classes

__all__ = ["OF_HEADS", "own_tensors"]

OF_HEADS = re.compile(r"head(?!_?(?:dim|size|width|channels))|\bn_?h\b|\bh\b", re.IGNORECASE)
"""In the statement that makes a tensor: that it has an axis of the heads."""
_STATEMENT = r"(?:self\.{0}\b\s*(?::[^=\n]+)?=(?!=)|[\"']{0}[\"']\s*,)[^\n]*(?:\n[^\n]*)?"
"""Where a tensor of this name is made."""


def own_tensors(invocation: Invocation, evidence: Evidence) -> Iterator[tuple[str, Tensor, str]]:
    """The parameters and buffers of an attention's module itself, by name, with the text that makes them."""
    if not isinstance(invocation.target, nn.Module):
        return
    path = evidence.base.instance.module
    module = invocation.target.get_submodule(path)
    source = "\n".join(source_of(each) for each in own_classes(type(module)))
    for name, each in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
        made = re.search(_STATEMENT.format(re.escape(name)), source) if each.is_floating_point() else None
        if made is not None and each.numel():
            yield f"{path}.{name}" if path else name, each, made.group()
