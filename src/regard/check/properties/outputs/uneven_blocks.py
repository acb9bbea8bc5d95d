"""Blocks of tokens that attend to one another, by a call of a token more, which makes whole blocks of no length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from regard.check.properties.analysis import Analysis
from regard.check.properties.finding import Finding
from regard.check.target import Invocation

__all__ = ["uneven_block_findings"]

OF_TOKENS = frozenset(
    {"sum-of-one-of-heads", "sum-of-one-of-queries", "query-of-one-token", "key-of-one-token", "heads-apart"}
)
"""What is violated where tokens and heads are mixed."""


def uneven_block_findings(analysis: Analysis, judge: Callable[[Invocation], Analysis]) -> Iterator[Finding]:
    """Who is mixed in a call of one token more, of an attention that has blocks of tokens.

    Where `view` was told the sizes in another order, the tokens of a block are those that stand as far apart as there
    are heads, if their number is a multiple of that of the heads, and of several heads otherwise. Blocks that are
    meant are padded, or are of no other number of tokens.

    Args:
        analysis: of a call without violations.
        judge: what analyzes another call.
    """
    if not any(each.message == "its own mask: blocks" for each in analysis.designs):
        return
    given = _longer(analysis.invocation)
    if given is None:
        return
    for each in judge(replace(analysis.invocation, arguments=given)).violations:
        if each.property in OF_TOKENS:
            names = [stream.argument for stream in analysis.invocation.streams]
            shapes = ", ".join(f"{name} {tuple(given[name].shape)}" for name in names)
            yield replace(each, message=f"{each.message}, with {shapes}: tokens and heads are mixed")
            return


def _longer(invocation: Invocation) -> dict[str, Any] | None:
    """The arguments with one token more along each axis of tokens; None where there are other tensors."""
    axes = {each.argument: each.token_axes for each in invocation.streams}
    given = dict(invocation.arguments)
    for name, value in invocation.arguments.items():
        if name not in axes:
            if any(isinstance(each, Tensor) and each.numel() > 1 for each in tree_leaves(value)):
                return None
            continue
        for axis in axes[name]:
            given[name] = torch.cat([given[name], given[name].narrow(axis, 0, 1)], axis)
    return given
