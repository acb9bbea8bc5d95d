"""The number of cached tokens, where a call counts it and reads it nowhere: untold positions begin anew."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torch import nn

from regard.check.properties.code import line_in
from regard.check.properties.finding import Finding
from regard.check.target.argument import nodes_of, source_of
from regard.check.target.cache_runs import CachedCall

__all__ = ["unread_length_findings"]


def unread_length_findings(call: CachedCall) -> Iterator[Finding]:
    """A name for how many tokens a cache has, that no line reads.

    Args:
        call: with its cache, right where it is told positions, and not where these are left out.
    """
    target = call.invocation.target
    if not isinstance(target, nn.Module):
        return
    forward = type(target).forward
    read = {each.id for each in nodes_of(source_of(forward), ast.Name) if isinstance(each.ctx, ast.Load)}
    for each in nodes_of(source_of(forward), ast.Assign):
        match each:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name not in read and _is_size(value, call):
                message = (
                    f"{name}, the number of tokens in the cache, is read nowhere: where no positions are told, the new "
                    "tokens stand at the beginning of the text"
                )
                yield Finding("violation", "cache-positions", "positions", message, line_in(forward, each.lineno))
                return


def _is_size(value: ast.expr, call: CachedCall) -> bool:
    """Whether an expression is a size of what is handed over as the cache."""
    inside = [*ast.walk(value)]
    is_of_cache = any(isinstance(each, ast.Name) and each.id in call.form.arguments for each in inside)
    names = {each.attr for each in inside if isinstance(each, ast.Attribute)}
    calls = {each.func.id for each in inside if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)}
    return is_of_cache and bool(names & {"shape", "size", "get_seq_length"} or "len" in calls)
