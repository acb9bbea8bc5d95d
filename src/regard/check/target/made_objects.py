"""Objects that an argument of a call may be: a config, a layer, a module of a class of the same file."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from regard.check.sandbox.torch_settings import UserSettings
from regard.check.target.classes import are_alike, classes_beside, takes
from regard.check.target.config_objects import config_object
from regard.check.target.construction import Construction
from regard.check.target.draft import Draft
from regard.check.target.errors import Failed, error_line
from regard.check.target.preparation import prepare

__all__ = ["called", "made_config"]


def made_config(draft: Draft, *, kind: type) -> Any:
    """An object of a class of configs, with as many heads as the sequences that it is given beside have.

    Raises:
        Failed: it cannot be made.
    """
    sizes = draft.sizes if draft.grouped else replace(draft.sizes, kv_heads=draft.sizes.heads)
    try:
        return config_object(Construction(kind, {}, UserSettings()), sizes, {})
    except Exception as error:
        raise Failed(f"{kind.__name__} cannot be made: {error_line(error)}") from error


def called(name: str, target: Any, count: int) -> dict[str, Callable[[Draft], Any]]:
    """For an argument that is called: a linear layer, or a module of a class of the same file, first of its name."""

    def layer(draft: Draft, *, is_score: bool) -> nn.Module:
        made = nn.Linear(draft.width, 1 if is_score else draft.width)
        prepare(made, seed=3)
        return made

    def of_class(draft: Draft, *, kind: type, of_a_head: bool) -> nn.Module:
        width = draft.d_head if of_a_head else draft.width
        given = tuple({**dict(draft.sizes.given), "d_model": width}.items())
        made: nn.Module = Construction(kind, {}, UserSettings()).build(replace(draft.sizes, given=given))[0]
        prepare(made, seed=3)
        return made

    found: dict[str, Callable[[Draft], Any]] = {}
    beside = classes_beside(target if inspect.isroutine(target) else type(target))
    kinds = [each for each in beside if issubclass(each, nn.Module) and takes(each.forward, count + 1)]
    alike = [each for each in kinds if are_alike(name, each.__name__)]
    linear = {"a number of each token": True, "a vector of each token": False} if count == 1 else {}
    for several in (alike, None, kinds):
        if several is None:
            found |= {label: partial(layer, is_score=is_score) for label, is_score in linear.items()}
            continue
        for kind in several:
            found.setdefault(f"{kind.__name__} of a head", partial(of_class, kind=kind, of_a_head=True))
            found.setdefault(kind.__name__, partial(of_class, kind=kind, of_a_head=False))
    return found
