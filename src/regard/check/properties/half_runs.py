"""A call in float16, with a watch on its operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from regard.check.target import Invocation
from regard.check.target.preparation import copied

__all__ = ["run_in_half"]


def run_in_half(invocation: Invocation, watch: TorchDispatchMode, scaled: Callable[[Tensor], Tensor]) -> bool:
    """Run a copy of a module in float16 without gradients, and tell whether it came to its end.

    Args:
        invocation: a call of a module.
        watch: what is told of its operations.
        scaled: makes other numbers of those of its sequences, before they are rounded.
    """
    streams = {each.argument for each in invocation.streams}

    def half(each: Any, of_stream: bool) -> Any:
        if not isinstance(each, Tensor) or not each.is_floating_point():
            return each
        return (scaled(each) if of_stream else each).to(torch.float16)

    given = {
        name: tree_map(lambda each, of_stream=name in streams: half(each, of_stream), value)
        for name, value in invocation.arguments.items()
        if value is not None
    }
    positional = [given.pop(name) for name in invocation.positional if name in given]
    try:
        live = copied(invocation.target).to(torch.float16)
        with torch.no_grad(), watch:
            live(*positional, **given)
    except Exception:  # the code's own may raise anything
        return False
    return True
