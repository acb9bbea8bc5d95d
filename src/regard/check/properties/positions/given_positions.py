"""Positions that are handed over with the tokens: they are the positions of these, and not their number alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.properties.unused_arguments import is_said_unused
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.names import call_meaning
from regard.check.trace.operation import Trace

__all__ = ["given_position_findings"]

WITH_POSITIONS = frozenset({"rotary", "absolute-positions", "relative-bias"})
"""What is found of attention that has positions."""
TABLES = frozenset({"rope", "cos", "sin"})
"""Arguments that hold what was made of positions before."""
PLACES = frozenset({"cache_position", "input_pos"})
"""Names of positions that may say where a cache is written to, and nothing else."""
SAME = 1e-9


def given_position_findings(invocation: Invocation, base: Trace, found: Sequence[Finding]) -> Iterator[Finding]:
    """Positions that change nothing, whatever they are, where the attention has positions all the same.

    As where a table is cut to as many rows as there are positions, and not read at these.

    Args:
        invocation: a call that hands over a whole number for each token.
        base: its run.
        found: what is found of its attentions.
    """
    has_positions = any(each.property in WITH_POSITIONS and each.kind in ("design", "holds") for each in found)
    meanings = {name: call_meaning(name) for name in invocation.arguments}
    if not has_positions or TABLES & {*meanings.values()} or not base.outputs or invocation.in_steps:
        return
    counts = {
        invocation.arguments[each.argument].shape[axis] for each in invocation.streams for axis in each.token_axes
    }
    for name, meaning in meanings.items():
        value = invocation.arguments[name]
        if meaning != "positions" or name in PLACES or not isinstance(value, Tensor) or not value.ndim:
            continue
        if value.dtype not in (torch.long, torch.int32) or value.shape[-1] not in counts or value.shape[-1] < 3:
            continue
        if is_said_unused(invocation.target, name):
            continue
        others = (value.flip(-1), value // 2, value * 0 + value.amin())
        if not any(_changes(invocation, base, name, each) for each in others):
            message = (
                f"{name} has no effect: what comes out is the same where its positions are in another order, repeat, "
                "or are all one; tokens stand where they are in the row"
            )
            yield Finding("violation", "positions-as-given", "positions", message)
            return


def _changes(invocation: Invocation, base: Trace, name: str, value: Tensor) -> bool:
    """Whether other positions change what is returned, or are refused."""
    run = record_invocation(invocation, {**invocation.arguments, name: value})
    if run.error or len(run.outputs) != len(base.outputs):
        return True
    pairs = [(one.data, other.data) for one, other in zip(base.outputs, run.outputs, strict=True)]
    return any(a.shape != b.shape or not torch.allclose(a, b, 0.0, SAME, equal_nan=True) for a, b in pairs)
