"""Heads that share one projection: each reads its own part of the input's channels through the same small matrix."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from regard.check.properties.documentation import comments_of, name_and_documentation
from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.preparation import copied

__all__ = ["shared_head_findings"]

_SMALL = r"(?:weights?|matri(?:x|ces)|projections?|linear|layers?|parameters|transform(?:ation)?s?|maps?|mappings?)"
_SAME = r"(?<![a-z])(?:same|identical|common)(?![a-z])"
"""Also with a mark of emphasis before or behind it, as _same_ or *same*."""
SHARES = re.compile(
    rf"shar(?:e|es|ed|ing)\b|block[- ]?diagonal|{_SAME}[^.;]{{0,30}}\b{_SMALL}\b[^.;]{{0,30}}\bheads?\b"
    rf"|\bheads?\b[^.;]{{0,30}}{_SAME}[^.;]{{0,30}}\b{_SMALL}\b"
    r"|narrow",
    re.I,
)
"""In a name, a documentation, or a comment: it is meant.

As "narrow" attention (Bloem 2019, "Transformers from scratch"), whose heads read a part of the embedding each.
"""
OF_THE_PAPER = re.compile(r"attention.is.all.you.need|vaswani|1706\.03762", re.I)
"""In the same places: heads as in Vaswani et al. 2017 are promised."""


def shared_head_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """Whether heads change places where the parts of the input's channels do: then their matrices are one and the same.

    Of the paper ("Attention Is All You Need", 3.2.2) each head has matrices of its own, which read all channels. Code
    that does not name it may split the channels first on purpose, for fewer parameters.

    Args:
        invocation: the call.
        evidence: its attention.
    """
    base, heads = evidence.base, evidence.base.num_heads
    if heads < 2 or not isinstance(invocation.target, nn.Module):
        return
    moved: dict[str, Any] = {}
    for stream in invocation.streams:
        x = invocation.arguments[stream.argument]
        own = (stream.batch_axis, stream.head_axis, *stream.token_axes)
        if not x.is_floating_point() or x.ndim - 1 in own or x.shape[-1] % heads:
            return
        moved[stream.argument] = x.roll(x.shape[-1] // heads, -1)
    rolled = replace(invocation, arguments={**invocation.arguments, **moved})
    if not _are_the_same(rolled, evidence, base.dense(base.product).roll(1, 1)):
        return
    if _are_the_same(
        replace(invocation, target=_with_other_matrices(invocation.target)), evidence, base.dense(base.product)
    ):
        return  # no matrix stands before the scores
    message = f"one matrix projects all {heads} heads, each its own part of the channels"
    of_its_module = invocation.target.get_submodule(base.instance.module)
    told = [*map(name_and_documentation, (invocation.target, of_its_module)), *comments_of(of_its_module)]
    is_promised = any(map(OF_THE_PAPER.search, told)) and not any(map(SHARES.search, told))
    if is_promised:
        yield Finding("violation", "heads-of-their-own", "projections", message, base.instance.scores_location)
    else:
        message += ", where each head of Vaswani et al. (2017, section 3.2.2) has a matrix that reads all of them"
        yield Finding("design", "heads-of-their-own", "projections", message, base.instance.scores_location)


def _are_the_same(invocation: Invocation, evidence: Evidence, products: torch.Tensor) -> bool:
    """Whether the products of queries and keys of another call are those of every head."""
    run = record_invocation(invocation)
    if run.error or not run.same_operations(evidence.base.instance.run.trace):
        return False
    found = evidence.base.of_run(run)
    return torch.allclose(found.dense(found.product), products, rtol=1e-9, atol=1e-9, equal_nan=True)


def _with_other_matrices(module: nn.Module) -> nn.Module:
    other: nn.Module = copied(module)
    with torch.no_grad():
        for parameter in other.parameters():
            if parameter.ndim > 1 and parameter.is_floating_point():
                parameter.mul_(torch.linspace(0.5, 1.5, parameter.numel(), dtype=parameter.dtype).view_as(parameter))
    return other
