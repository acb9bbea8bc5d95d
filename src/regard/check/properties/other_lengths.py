"""The same call with another number of tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.check.target import Invocation

__all__ = ["with_tokens"]


def with_tokens(invocation: Invocation, change: int) -> dict[str, Any] | None:
    """The arguments of a call with so many tokens more in each sequence, or fewer; None where it takes more than these.

    Args:
        invocation: the call.
        change: of the number of tokens: further ones are those of the call, from the first on again.
    """
    streams = {each.argument: each for each in invocation.streams}
    given = dict(invocation.arguments)
    for name, value in invocation.arguments.items():
        stream = streams.get(name)
        if stream is None or len(stream.token_axes) != 1:
            if isinstance(value, Tensor):
                return None
            continue
        axis = stream.token_axes[0]
        tokens = value.shape[axis]
        if tokens + change < 2:
            return None
        given[name] = value.index_select(axis, torch.arange(tokens + change) % tokens)
    return given
