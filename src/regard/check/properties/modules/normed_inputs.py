"""Blocks whose documentation says that all that they are given is normalized: none of it is read as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from regard.check.properties.code import sentences_of
from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied

__all__ = ["normed_input_findings"]

_INPUTS = r"(?:inputs?|arguments?|sequences?|streams?)"
_ALL_NORMALIZED = re.compile(
    rf"\b(?:all|every|each|both)\b(?:\s+one)?(?:\s+(?:of\s+)?(?:its|the|their))?\s+(?:\w+\s+)?{_INPUTS}\b[^.;]*\bnormali[sz]"
    rf"|\bnormali[sz]\w*\s+(?:all|every|each|both)\b[^.;]*\b{_INPUTS}\b"
    r"|\bx\W+and\s+(?:the\s+)?\W?(?:context|memory|source|latents)\b[^.;]*\bnormali[sz]ed\b",
    re.I,
)
_CONDITION = re.compile(
    r"\b(?:not|never|only|if|optional\w*|when|unless|except|first(?!\W*\Z)|expect\w*|assum\w*)\b|n't", re.I
)
"""In the same sentence; the word first at its end says when, and not of which of them."""
MATRIX = 2
"""Axes of a parameter that channels are mixed by."""


def normed_input_findings(invocation: Invocation) -> Iterator[Finding]:
    """A part of a model that hands one of its inputs on as it is, and says that all of them are normalized.

    As a pre-norm wrapper of attention to another sequence that normalizes the queries' sequence alone.

    Args:
        invocation: a call of a module.
    """
    if not isinstance(invocation.target, nn.Module):
        return
    live = copied(invocation.target)
    for path, part in live.named_modules():
        norms = [each for each in part.modules() if _is_norm(each)]
        if type(part).__module__.startswith("torch.") or not norms or not _says_all(documentation_of(part)):
            continue
        given, normed, read = list[Tensor](), list[Tensor](), list[tuple[str, Tensor]]()
        handles = [part.register_forward_pre_hook(partial(_keep, given), with_kwargs=True)]
        handles += [each.register_forward_pre_hook(partial(_keep, normed), with_kwargs=True) for each in norms]
        handles += [
            each.register_forward_pre_hook(partial(_keep_named, read, name), with_kwargs=True)
            for name, each in part.named_modules()
            if name and not any(_is_norm(one) for one in each.modules()) and _mixes_channels(each)
        ]
        try:
            invocation.run(target=live)
        except Failed:
            continue
        finally:
            for each in handles:
                each.remove()
        if not any(_is_one_of(each, normed) for each in given):
            continue
        raw = next((name for name, each in read if _is_one_of(each, given) and not _is_one_of(each, normed)), None)
        if raw is not None:
            where = f"{path} ({type(part).__name__})" if path else type(part).__name__
            message = f"{where} says that all that it is given is normalized, and {raw} reads a part of it as it is"
            yield Finding("violation", "norm-used", "projections", message)
            return


def _says_all(text: str) -> bool:
    return any(_ALL_NORMALIZED.search(each) and not _CONDITION.search(each) for each in sentences_of(text))


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower() and not [*module.children()]


def _mixes_channels(module: nn.Module) -> bool:
    return any(each.ndim >= MATRIX for each in module.parameters())


def _keep(kept: list[Tensor], _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    values = (*args, *kwargs.values())
    kept += [each for each in values if isinstance(each, Tensor) and each.is_floating_point() and each.ndim > MATRIX]


def _keep_named(
    kept: list[tuple[str, Tensor]], name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    found = list[Tensor]()
    _keep(found, module, args, kwargs)
    kept += [(name, each) for each in found]


def _is_one_of(tensor: Tensor, several: list[Tensor]) -> bool:
    return any(
        each is tensor or (each.data_ptr() == tensor.data_ptr() and each.shape == tensor.shape) for each in several
    )
