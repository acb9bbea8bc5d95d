"""The numbers that a call and its modules were told."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from torch import nn

from regard.check.target.configs import is_config
from regard.check.target.preparation import modules_in
from regard.check.target.running import Invocation

__all__ = ["numbers_told"]


def numbers_told(invocation: Invocation) -> Iterator[tuple[str, int]]:
    """The whole numbers that the call or its modules were told, by name."""
    given: list[tuple[str, Any]] = [*invocation.arguments.items()]
    if not isinstance(invocation.target, nn.Module):
        try:
            parameters = inspect.signature(invocation.target).parameters.values()
        except (ValueError, TypeError):
            parameters = {}.values()
        given += [(each.name, each.default) for each in parameters if each.name not in invocation.arguments]
    for module in modules_in(invocation.target):
        for each in module.modules():
            given += vars(each).items()
    given += [part for _, value in given if is_config(value) for part in vars(value).items()]
    for name, value in given:
        if isinstance(value, int) and not isinstance(value, bool):
            yield name, value
