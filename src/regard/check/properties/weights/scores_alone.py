"""Scores that are returned as they are: whoever calls takes the softmax, as of a pointer network's logits."""

from __future__ import annotations

import re

from torch import nn

from regard.check.location import CodeLocation
from regard.check.properties.documentation import documentation_of
from regard.check.roles.instances import TaggedRun
from regard.check.target import Invocation

__all__ = ["returned_scores"]

_SAYS_SO = re.compile(r"attention|attend|attn|pointer", re.I)


def returned_scores(invocation: Invocation, added: TaggedRun) -> tuple[int, CodeLocation | None] | None:
    """Which output holds the scores w . f(q + k) of what says that it is attention, and their line; None without.

    Anything else that makes a number of two tokens is no attention: a network that compares them does so as well.

    Args:
        invocation: the call.
        added: a run whose scores are of queries and keys that are added.
    """
    target = invocation.target
    name = type(target).__name__ if isinstance(target, nn.Module) else getattr(target, "__name__", "")
    if invocation.completion is not None or not _SAYS_SO.search(f"{name} {documentation_of(target)}"):
        return None
    for number, (record, tags) in enumerate(zip(added.trace.outputs, added.tags.returned, strict=True)):
        for scores in added.bilinear:
            start, count = added.first_tag[scores.operation.index], scores.output.data.numel()
            if record.data.numel() == count and bool(((tags >= start) & (tags < start + count)).all()):
                return number, scores.operation.location
    return None
