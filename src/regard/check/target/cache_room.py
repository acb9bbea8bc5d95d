"""Room for a memory of the text before, where the setting that says how much is kept says nothing."""

from __future__ import annotations

import re
from dataclasses import replace

from torch import nn

from regard.check.target.cache_forms import CacheNames
from regard.check.target.preparation import copied
from regard.check.target.running import Invocation

__all__ = ["with_room"]

_MEMORY = re.compile(r"(?:^|_)(?:mems?|memory|memories)(?:_|$)")
_AMOUNT = re.compile(r"(?:^|_)(?:max|len|length|size)(?:_|$)")
ROOM = 64
"""Tokens, more than any call has."""


def with_room(invocation: Invocation, names: CacheNames) -> Invocation:
    """The call of a module that keeps what its memory is for, as with xl_max_memories=0 it does not.

    Args:
        invocation: a call without a memory.
        names: of its caches.
    """
    target = invocation.target
    if not isinstance(target, nn.Module) or not any(_MEMORY.search(each) for each in names.arguments):
        return invocation
    found = [
        (path, name)
        for path, module in target.named_modules()
        for name, value in vars(module).items()
        if _MEMORY.search(name) and _AMOUNT.search(name) and not isinstance(value, bool) and value in (0, 0.0)
    ]
    if not found:
        return invocation
    roomy = copied(target)
    for path, name in found:
        setattr(roomy.get_submodule(path), name, ROOM)
    return replace(invocation, target=roomy)
