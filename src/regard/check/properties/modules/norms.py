"""Norms that are written by hand: what they return hangs on no other token and on no length, and is bounded."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.argument import source_of
from regard.check.target.classes import own_classes
from regard.check.target.double_precision import double_precision
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied

__all__ = ["norm_findings"]

OF_ONE_TOKEN = re.compile(r"layer_?norm|rms_?norm|scale_?norm", re.I)
"""In the name of a class: each token is normalized by itself. Norms of batches, groups and instances are not."""
OF_NO_KIND = re.compile(
    r"_*(?:(?:my|custom|own|simple|basic|manual)_?)?norm(?:ali[sz](?:e|er|ing|ation))?(?:_?(?:layer|module))?[_\d]*",
    re.I,
)
"""The name of a class that says no more than that: in an attention's block it is the norm of layers."""
OVER_TOKENS = re.compile(
    r"instance|batch[\s_-]*(?:norm|stat)|group|running|tempor|rev-?in\b|\bseries\b|\bgraph"
    r"|\b(?:over|across|along) (?:the |all |each |whole |entire |its )*"
    r"(?:time|tokens?|sequences?|positions?|nodes?|samples?|batch)\b|\b(?:per|each|every)[\s-]channel\b",
    re.I,
)
"""In the code of such a class: what it normalizes is meant to lie along the tokens."""
LENGTH = 100.0
"""What its input is multiplied by first: beside its variance a small number in a denominator is nothing then."""
LONGER = 10.0
FAR = 1e5
"""What is added to all channels."""
SAME = 1e-2
"""Of the largest number that a norm returns: so much may a small number in a denominator do, as 0.01 beside 1."""
LARGEST_ADDED = 0.1
"""To a variance that is about 1: published norms add 1e-3 and less."""
BOUNDED = 10.0
"""How much larger the numbers of a vector that was moved may be, by the square root of the width."""


def norm_findings(invocation: Invocation) -> Iterator[Finding]:
    """A module that is called a norm, and does not normalize.

    Ba, Kiros and Hinton 2016, "Layer Normalization", and Zhang and Sennrich 2019, "Root Mean Square Layer
    Normalization": both return the same for a vector and for its multiples, and no number above the square root of the
    width, before their own factors.
    """
    if not isinstance(invocation.target, nn.Module):
        return
    yield from itertools.islice(_wide_eps(invocation.target), 1)
    live, given = copied(invocation.target), dict[str, Tensor]()
    names = [name for name, module in live.named_modules() if name and _is_a_norm_by_hand(module)]
    for name in names:
        live.get_submodule(name).register_forward_pre_hook(partial(_keep, given, name))
    try:
        if names:
            invocation.run(target=live)
    except Failed:
        return
    for name, value in given.items():
        kind = type(live.get_submodule(name)).__name__
        if _is_of_one_token(live.get_submodule(name), value) and _mixes_tokens(live.get_submodule(name), value):
            message = f"{name} ({kind}) normalizes over tokens: what it returns for one changes with another"
            yield Finding("violation", "norm-of-one-token", "block", message)
            return
        wrong = _wrong(live.get_submodule(name), LENGTH * value)
        if not wrong and OF_ONE_TOKEN.search(kind):
            wrong = _adds_to_the_variance(live.get_submodule(name), value)
        if wrong:
            message = f"{name} ({kind}) is no norm: {wrong}"
            yield Finding("violation", "norm-normalizes", "block", message)
            return


def _wide_eps(target: nn.Module) -> Iterator[Finding]:
    """Norms of PyTorch's own whose eps is as large as what it is added to."""
    for name, module in target.named_modules():
        eps = module.eps if isinstance(module, nn.LayerNorm | nn.RMSNorm | nn.GroupNorm) else None
        if eps is not None and eps > LARGEST_ADDED:
            message = (
                f"{name} ({type(module).__name__}) is no norm: {eps:g} is added to the variance, which is about 1: "
                "another argument was handed over as its eps"
            )
            yield Finding("violation", "norm-normalizes", "block", message)


def _is_of_one_token(norm: nn.Module, value: Tensor) -> bool:
    """Whether a norm is one of layers by its name; or by its factors, where its name and its code say nothing else.

    Those of a norm of layers are one for each channel, which lie along the last axis of what it takes.
    """
    kind = type(norm)
    if OF_ONE_TOKEN.search(kind.__name__):
        return True
    has_factors = any(each.shape == value.shape[-1:] for each in norm.parameters())
    is_sequence = value.ndim == 3 and value.shape[-1] not in value.shape[:-1]
    says_nothing = OF_NO_KIND.fullmatch(kind.__name__) and not any(
        OVER_TOKENS.search(source_of(each)) for each in own_classes(kind)
    )
    return has_factors and is_sequence and bool(says_nothing)


def _mixes_tokens(norm: nn.Module, value: Tensor) -> bool:
    """Whether what a norm returns for one vector changes with the vector before it."""
    if value.ndim < 2 or value.shape[-2] < 2 or not _is_of_last_axis(norm, value):
        return False
    other = value.clone()
    other[..., 0, :] = value[..., 0, :].flip(-1) * 3 + 1
    one, two = _returned(norm, value, other) or (value, value)
    return float((one - two)[..., 1:, :].abs().max()) > 1e-9 * float(one.abs().max())


def _is_of_last_axis(norm: nn.Module, value: Tensor) -> bool:
    """Whether the vectors of a norm may lie along the last axis: they are as wide as its factors, where it has some.

    In a map (batch, channels, rows, columns) the last axis is another one.
    """
    widths = {each.numel() for each in norm.parameters() if each.numel() > 1}
    return not widths or value.shape[-1] in widths


def _is_a_norm_by_hand(module: nn.Module) -> bool:
    kind = type(module)
    is_leaf = not any(True for _ in module.children()) and not any(True for _ in module.buffers())
    has_matrix = any(each.ndim == 2 and min(each.shape) > 1 for each in module.parameters())
    is_own = kind.__module__.partition(".")[0] != "torch"
    return "norm" in kind.__name__.lower() and is_own and is_leaf and not has_matrix


def _keep(given: dict[str, Tensor], name: str, _: nn.Module, args: tuple[Any, ...]) -> None:
    if len(args) == 1 and isinstance(args[0], Tensor) and args[0].is_floating_point():
        given.setdefault(name, args[0].detach().clone())


def _wrong(norm: nn.Module, value: Tensor) -> str:
    """What a norm does that none does, in words; empty where it does as they do."""
    returned = _returned(norm, value, LONGER * value, value + FAR)
    if returned is None:
        return ""
    found, longer, moved = returned
    largest = float(found.abs().max())
    if float((longer - found).abs().max()) > SAME * largest:
        return f"what it returns for a vector {LONGER:g} times as long differs by up to {_gap(longer, found):.2g}"
    if float(moved.abs().max()) > BOUNDED * value.shape[-1] ** 0.5 * max(largest, SAME):
        return f"the larger the mean of a vector, the larger is what it returns: up to {float(moved.abs().max()):.3g}"
    return ""


def _adds_to_the_variance(norm: nn.Module, value: Tensor) -> str:
    """That a number is added to the variance that is not small beside it, in words; empty where none is.

    Of vectors whose numbers have mean 0 and variance 1, as a norm gets them: the number is for vectors of zeros alone.
    """
    if not _is_of_last_axis(norm, value):
        return ""
    centred = value - value.mean(-1, keepdim=True)
    usual = (centred / centred.square().mean(-1, keepdim=True).sqrt()).nan_to_num()
    returned = _returned(norm, usual, LONGER * usual)
    if returned is None:
        return ""
    found, longer = returned
    if float((longer - found).abs().max()) <= SAME * float(longer.abs().max()):
        return ""
    return (
        f"of numbers with variance 1 it returns others, by up to {_gap(longer, found):.2g}, than of {LONGER:g} times "
        "these: the number that is added to the variance is too large"
    )


def _returned(norm: nn.Module, *values: Tensor) -> list[Tensor] | None:
    """What a norm returns for some inputs of one shape; None where it takes no such, or returns another shape."""
    norm._forward_pre_hooks.clear()
    try:
        with torch.no_grad(), double_precision():
            found = [norm(each) for each in values]
    except Exception:  # of the user's code, which takes other inputs than these
        return None
    is_known = all(isinstance(one, Tensor) and one.shape == two.shape for one, two in zip(found, values, strict=True))
    return found if is_known else None


def _gap(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())
